package awstest

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// ec2Actions are the actions of EC2 that are known here.
var ec2Actions = map[string]handler{
	"DescribeInstances":              {run: (*Stub).describeInstancesLocked},
	"DescribeInstanceTypes":          {run: (*Stub).describeTypesLocked},
	"DescribeLaunchTemplateVersions": {run: (*Stub).describeTemplatesLocked},
}

// pageEC2 is page with the names that EC2 gives its parameters. A call that
// names what it wants has no pages.
func pageEC2(r request, total, least, most int, named bool) (from, to int, next string, e *Error) {
	if !r.has("MaxResults") {
		return 0, total, "", nil
	}
	size, e := r.num("MaxResults", most)
	switch {
	case e != nil:
		return 0, 0, "", badParam("InvalidParameterValue", "%s", e.Message)
	case named:
		return 0, 0, "", badParam("InvalidParameterCombination", "The parameter MaxResults cannot be used with the list of what is described")
	case size < least || size > most:
		return 0, 0, "", badParam("InvalidParameterValue", "Value ( %d ) for parameter maxResults is invalid. Expecting a value between %d and %d.", size, least, most)
	}
	return cut(r, total, size)
}

// describeInstancesLocked also tells of instances that have ended, as EC2 does
// for about an hour.
func (s *Stub) describeInstancesLocked(r request, w *xmlWriter) *Error {
	ids := r.list("InstanceId")
	all := make(map[string]*Instance, len(s.gone))
	for n := range s.gone {
		all[s.gone[n].ID] = &s.gone[n]
	}
	for _, name := range s.names {
		for _, i := range s.groups[name].instances {
			all[i.ID] = i
		}
	}
	var found []*Instance
	if len(ids) == 0 {
		for _, i := range all {
			found = append(found, i)
		}
		slices.SortFunc(found, func(a, b *Instance) int { return cmp.Compare(a.ID, b.ID) })
	}
	for _, id := range ids {
		i := all[id]
		if i == nil {
			return badParam("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
		}
		found = append(found, i)
	}
	filters := r.filters()
	for _, f := range filters {
		if _, known := s.attributeLocked(&Instance{}, f.name); !known {
			return badParam("InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
	}
	found = slices.DeleteFunc(found, func(i *Instance) bool { return !s.passesLocked(i, filters) })
	from, to, next, e := pageEC2(r, len(found), 5, 1000, len(ids) > 0)
	if e != nil {
		return e
	}
	w.open("reservationSet")
	for _, i := range found[from:to] {
		w.in("item", func() {
			w.str("reservationId", "r-"+i.ID[2:])
			w.str("ownerId", account)
			w.in("instancesSet", func() { w.in("item", func() { s.machineLocked(w, i) }) })
		})
	}
	w.close("reservationSet")
	w.str("nextToken", next)
	return nil
}

// attributeLocked is what a filter looks at.
func (s *Stub) attributeLocked(i *Instance, filter string) (values []string, known bool) {
	_, state := i.power()
	switch filter {
	case "instance-id":
		return []string{i.ID}, true
	case "instance-state-name":
		return []string{state}, true
	case "instance-type":
		return []string{i.Type}, true
	case "availability-zone":
		return []string{i.Zone}, true
	case "tag-key":
		for key := range s.tagsLocked(i) {
			values = append(values, key)
		}
		return values, true
	}
	if key, ok := strings.CutPrefix(filter, "tag:"); ok {
		if value, ok := s.tagsLocked(i)[key]; ok {
			values = append(values, value)
		}
		return values, true
	}
	return nil, false
}

func (s *Stub) passesLocked(i *Instance, filters []filter) bool {
	for _, f := range filters {
		values, _ := s.attributeLocked(i, f.name)
		if !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(f.values, v) }) {
			return false
		}
	}
	return true
}

func (s *Stub) tagsLocked(i *Instance) map[string]string {
	tags := map[string]string{"aws:autoscaling:groupName": i.Group}
	if g := s.groups[i.Group]; g != nil {
		for key, value := range g.Tags {
			tags[key] = value
		}
	}
	return tags
}

// power is EC2's own state of the instance, which knows nothing of hooks.
func (i *Instance) power() (code int, name string) {
	switch {
	case i.State == Pending:
		return 0, "pending"
	case i.State == Terminating, i.State == TerminatingProceed:
		return 32, "shutting-down"
	case i.State == "Terminated":
		return 48, "terminated"
	case strings.HasSuffix(i.State, ":Stopped"):
		return 80, "stopped"
	default:
		return 16, "running"
	}
}

func (s *Stub) machineLocked(w *xmlWriter, i *Instance) {
	code, state := i.power()
	w.str("instanceId", i.ID)
	w.str("imageId", "ami-00000000")
	w.in("instanceState", func() { w.num("code", code); w.str("name", state) })
	w.str("instanceType", i.Type)
	w.when("launchTime", i.Launched)
	w.in("placement", func() { w.str("availabilityZone", i.Zone); w.str("tenancy", "default") })
	w.str("architecture", "x86_64")
	if i.Spot {
		w.str("instanceLifecycle", "spot")
	}
	tags := s.tagsLocked(i)
	w.open("tagSet")
	for _, key := range sortedKeys(tags) {
		w.in("item", func() { w.str("key", key); w.str("value", tags[key]) })
	}
	w.close("tagSet")
}

// templateVersion is one version of a launch template.
type templateVersion struct {
	LaunchTemplate
	instanceType string
}

// templateLocked makes a launch template for a group that names none.
func (s *Stub) templateLocked(spec Group) *LaunchTemplate {
	s.serial++
	t := LaunchTemplate{ID: fmt.Sprintf("lt-%017x", s.serial), Name: spec.Name, Version: "1"}
	s.templates = append(s.templates, templateVersion{t, spec.InstanceType})
	return &t
}

// AddLaunchTemplate adds a version of a launch template. The instance type may
// be empty, as with groups that have overrides.
func (s *Stub) AddLaunchTemplate(t LaunchTemplate, instanceType string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.templates = append(s.templates, templateVersion{t, instanceType})
}

// describeTemplatesLocked: without versions all of a template are described, without a
// template the named versions of all templates. $Latest is the last that was added, and $Default
// the first.
func (s *Stub) describeTemplatesLocked(r request, w *xmlWriter) *Error {
	id, name, versions := r.str("LaunchTemplateId"), r.str("LaunchTemplateName"), r.list("LaunchTemplateVersion")
	var found []templateVersion
	if id == "" && name == "" {
		if !aliases(versions) {
			return badParam("MissingParameter", "Either the launch template ID or the launch template name must be specified.")
		}
		for _, all := range s.allVersionsLocked() {
			for _, v := range versions {
				t, _ := version(all, v)
				found = append(found, t)
			}
		}
	} else {
		all, e := s.versionsLocked(id, name)
		if e != nil {
			return e
		}
		if found = all; len(versions) > 0 {
			found = nil
		}
		for _, v := range versions {
			t, ok := version(all, v)
			if !ok {
				return badParam("InvalidLaunchTemplateId.VersionNotFound", "Could not find the specified version %s for the launch template with ID %s.", v, all[0].ID)
			}
			found = append(found, t)
		}
	}
	from, to, next, e := pageEC2(r, len(found), 1, 200, false)
	if e != nil {
		return e
	}
	w.open("launchTemplateVersionSet")
	for _, t := range found[from:to] {
		w.in("item", func() {
			w.str("launchTemplateId", t.ID)
			w.str("launchTemplateName", t.Name)
			w.str("versionNumber", t.Version)
			w.flag("defaultVersion", s.isDefaultLocked(t))
			w.in("launchTemplateData", func() {
				w.str("imageId", "ami-00000000")
				w.str("instanceType", t.instanceType)
			})
		})
	}
	w.close("launchTemplateVersionSet")
	w.str("nextToken", next)
	return nil
}

// aliases reports whether versions are named, and none by its number.
func aliases(versions []string) bool {
	return len(versions) > 0 && !slices.ContainsFunc(versions, func(v string) bool { return v != "$Latest" && v != "$Default" })
}

// allVersionsLocked are the versions of each template, in the order in which templates were added.
func (s *Stub) allVersionsLocked() (all [][]templateVersion) {
	at := map[string]int{}
	for _, t := range s.templates {
		n, known := at[t.ID]
		if !known {
			n, at[t.ID], all = len(all), len(all), append(all, nil)
		}
		all[n] = append(all[n], t)
	}
	return all
}

func (s *Stub) isDefaultLocked(t templateVersion) bool {
	first := slices.IndexFunc(s.templates, func(other templateVersion) bool { return other.ID == t.ID })
	return s.templates[first] == t
}

func (s *Stub) versionsLocked(id, name string) (all []templateVersion, e *Error) {
	for _, t := range s.templates {
		if id != "" && t.ID == id || name != "" && t.Name == name {
			all = append(all, t)
		}
	}
	switch {
	case len(all) > 0:
		return all, nil
	case id != "":
		return nil, badParam("InvalidLaunchTemplateId.NotFound", "The specified launch template, with template ID %s, does not exist.", id)
	default:
		return nil, badParam("InvalidLaunchTemplateName.NotFoundException", "The specified launch template, with template name %s, does not exist.", name)
	}
}

func version(all []templateVersion, wanted string) (templateVersion, bool) {
	switch wanted {
	case "$Latest":
		return all[len(all)-1], true
	case "$Default":
		return all[0], true
	}
	at := slices.IndexFunc(all, func(t templateVersion) bool { return t.Version == wanted })
	if at < 0 {
		return templateVersion{}, false
	}
	return all[at], true
}

// describeTypesLocked: "DescribeInstanceTypes" of the API reference.
func (s *Stub) describeTypesLocked(r request, w *xmlWriter) *Error {
	names := r.list("InstanceType")
	if len(names) > 100 {
		return &Error{Status: http.StatusBadRequest, Code: "InvalidParameterValue", Message: "No more than 100 instance types can be described"}
	}
	var unknown []string
	for _, name := range names {
		if _, ok := s.types[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return badParam("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", strings.Join(unknown, ", "))
	}
	named := len(names) > 0
	if !named {
		names = sortedKeys(s.types)
	}
	from, to, next, e := pageEC2(r, len(names), 5, 100, named)
	if e != nil {
		return e
	}
	w.open("instanceTypeSet")
	for _, name := range names[from:to] {
		w.in("item", func() { w.instanceType(s.types[name]) })
	}
	w.close("instanceTypeSet")
	w.str("nextToken", next)
	return nil
}
