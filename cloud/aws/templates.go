package aws

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	scalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpu-node-provider/cloud"
)

const (
	// templatesFor is how long it counts which version $Latest or $Default is. A new version
	// does not change machines that are there, and one that is launched meanwhile counts by its
	// own type. The in-tree provider takes twice as long
	// (cluster-autoscaler/cloudprovider/aws/instance_type_cache.go).
	templatesFor = 10 * time.Minute
	// templatesPage is the most versions that DescribeLaunchTemplateVersions returns.
	templatesPage = 200
	// fewTemplates are read one by one. Pages hold all templates of the account, with user data
	// of up to 16 KiB each.
	fewTemplates = 10
)

const (
	latestVersion  = "$Latest"
	defaultVersion = "$Default"
)

// templateVersion is a version of a launch template: its number, $Latest or $Default.
type templateVersion struct{ template, version string }

// moves reports whether another version may be meant later. A numbered version is immutable.
func (v templateVersion) moves() bool { return strings.HasPrefix(v.version, "$") }

// versionType is the instance type that a version names; it may be empty.
type versionType struct {
	name string
	read time.Time
}

func versionOf(t *scalingtypes.LaunchTemplateSpecification) templateVersion {
	v := templateVersion{awssdk.ToString(t.LaunchTemplateId), awssdk.ToString(t.Version)}
	if v.template == "" {
		v.template = awssdk.ToString(t.LaunchTemplateName)
	}
	if v.version == "" {
		v.version = defaultVersion
	}
	return v
}

// decidingTemplate returns the launch template from which an ASG takes its instance type; nil
// when its overrides decide, or when it has none.
func decidingTemplate(g *scalingtypes.AutoScalingGroup) *scalingtypes.LaunchTemplateSpecification {
	m := g.MixedInstancesPolicy
	if m == nil || m.LaunchTemplate == nil {
		return g.LaunchTemplate
	}
	for _, o := range m.LaunchTemplate.Overrides {
		if o.InstanceRequirements != nil || awssdk.ToString(o.InstanceType) != "" {
			return nil
		}
	}
	return m.LaunchTemplate.LaunchTemplateSpecification
}

// readTemplates reads those launch templates of ASGs that are not known, if they are many: a
// page of all templates of the account costs one call, as one version does. It returns the
// error that time may heal. Other errors, and what the pages do not have, are left to the
// reading of one version.
func (c *Cloud) readTemplates(ctx context.Context, seen map[string]*sighting) error {
	for _, alias := range []string{latestVersion, defaultVersion} {
		wanted := map[templateVersion]bool{}
		for _, s := range seen {
			if s.problem != nil {
				continue
			}
			t := decidingTemplate(s.asg)
			if t == nil {
				continue
			}
			v := versionOf(t)
			if _, known := c.knownVersion(v); !known && (v.version == alias || !v.moves()) { // a numbered version is often the latest
				wanted[v] = true
			}
		}
		if err := c.readVersions(ctx, alias, wanted); cloud.Passing(err) {
			return err
		}
	}
	return nil
}

// readVersions reads the latest or default versions of all launch templates, until those that
// are wanted are known or one by one would have cost no more calls.
func (c *Cloud) readVersions(ctx context.Context, alias string, wanted map[templateVersion]bool) error {
	if len(wanted) <= fewTemplates {
		return nil
	}
	pages := ec2.NewDescribeLaunchTemplateVersionsPaginator(c.ec2, &ec2.DescribeLaunchTemplateVersionsInput{
		Versions: []string{alias}, MaxResults: awssdk.Int32(templatesPage),
	})
	for calls := len(wanted); calls > 0 && len(wanted) > 0 && pages.HasMorePages(); calls-- {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fault(ctx, "reading the "+alias+" versions of launch templates in "+c.region, err)
		}
		for n := range page.LaunchTemplateVersions {
			for _, v := range c.noteVersion(&page.LaunchTemplateVersions[n], alias) {
				delete(wanted, v)
			}
		}
	}
	return nil
}

// noteVersion takes a version over, also as what an alias stands for, and returns all names of it.
func (c *Cloud) noteVersion(read *types.LaunchTemplateVersion, alias string) (names []templateVersion) {
	is := versionType{read: c.now()}
	if read.LaunchTemplateData != nil {
		is.name = string(read.LaunchTemplateData.InstanceType)
	}
	c.machines.mu.Lock()
	defer c.machines.mu.Unlock()
	c.machines.refreshLocked(c.now())
	number := strconv.FormatInt(awssdk.ToInt64(read.VersionNumber), 10)
	for _, template := range []string{awssdk.ToString(read.LaunchTemplateId), awssdk.ToString(read.LaunchTemplateName)} {
		for _, version := range []string{number, alias} {
			v := templateVersion{template, version}
			c.machines.templates[v] = is
			names = append(names, v)
		}
	}
	return names
}

// typeOfTemplate returns a launch template's instance type; it may be empty.
func (c *Cloud) typeOfTemplate(ctx context.Context, asg string, t *scalingtypes.LaunchTemplateSpecification) (string, error) {
	v := versionOf(t)
	if name, known := c.knownVersion(v); known {
		return name, nil
	}
	in := &ec2.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: t.LaunchTemplateId, Versions: []string{v.version}}
	if in.LaunchTemplateId == nil { // AWS takes one of them, not both
		in.LaunchTemplateName = t.LaunchTemplateName
	}
	out, err := c.ec2.DescribeLaunchTemplateVersions(ctx, in)
	if err != nil {
		return "", fault(ctx, fmt.Sprintf("reading version %s of the launch template of Auto Scaling group %s", v.version, asg), err)
	}
	if len(out.LaunchTemplateVersions) == 0 || out.LaunchTemplateVersions[0].LaunchTemplateData == nil {
		return "", fmt.Errorf("aws: the launch template of Auto Scaling group %s has no version %s: %w", asg, v.version, cloud.ErrPrecondition)
	}
	c.noteVersion(&out.LaunchTemplateVersions[0], v.version)
	return string(out.LaunchTemplateVersions[0].LaunchTemplateData.InstanceType), nil
}

// templateKnown reports whether the types of an ASG can be told without reading a template.
func (c *Cloud) templateKnown(g *scalingtypes.AutoScalingGroup) bool {
	t := decidingTemplate(g)
	if t == nil {
		return true
	}
	_, known := c.knownVersion(versionOf(t))
	return known
}

func (c *Cloud) knownVersion(v templateVersion) (name string, known bool) {
	c.machines.mu.Lock()
	defer c.machines.mu.Unlock()
	c.machines.refreshLocked(c.now())
	t, known := c.machines.templates[v]
	if known && v.moves() && c.now().Sub(t.read) >= templatesFor {
		return "", false
	}
	return t.name, known
}
