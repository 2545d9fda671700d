package nodegroup

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-node-provider/cloud"
	"gpu-node-provider/provider/config"
)

// declare adds what the cloud's group declares about its Nodes. The file wins over it, and it
// over the instance type. Each declaration is judged alone, by the rules of the file: one
// that breaks a rule is left out and named in Ignored, since a mistake in a tag must not take
// a group out of service.
func declare(file *config.Config, g config.NodeGroup, m cloud.Machine) config.NodeGroup {
	whole := builder{NodeGroup: g, file: g, machine: m}
	whole.build()
	known := brokenRules(file, whole.NodeGroup)
	for _, d := range m.Declared {
		next := whole
		problem := next.add(d)
		if problem == "" {
			next.build()
			broken := brokenRules(file, next.NodeGroup)
			if problem = first(broken, known); problem == "" {
				whole, known = next, broken
				continue
			}
		}
		whole.Ignored = append(slices.Clip(whole.Ignored), d.Source+": "+problem)
	}
	return whole.NodeGroup
}

// brokenRules are the rules of the file that a group breaks, without the group's path.
func brokenRules(file *config.Config, g config.NodeGroup) (rules []string) {
	var broken *config.Error
	if !errors.As(alone(file, g).Validate(), &broken) {
		return nil
	}
	for _, p := range broken.Problems {
		rules = append(rules, p.Message)
	}
	return rules
}

// first returns the first rule that is not among the known ones.
func first(rules, known []string) string {
	for _, r := range rules {
		if !slices.Contains(known, r) {
			return r
		}
	}
	return ""
}

// builder makes a group of what the file writes, the cloud describes and its group declares.
type builder struct {
	config.NodeGroup
	file      config.NodeGroup
	machine   cloud.Machine
	resources corev1.ResourceList // declared
}

// add adds a declaration, or returns why it declares nothing. What the file or an earlier
// declaration sets stays.
func (b *builder) add(d cloud.Declaration) (problem string) {
	switch {
	case d.Problem != "":
		return d.Problem
	case d.Key == "":
		return "names nothing"
	}
	switch d.Kind {
	case cloud.DeclaredLabel:
		if d.Key == corev1.LabelOSStable && b.file.Discovered { // of such a group nothing else tells it
			b.OS = d.Value
		}
		b.Labels = over(b.Labels, map[string]string{d.Key: d.Value})
	case cloud.DeclaredTaint:
		taint := corev1.Taint{Key: d.Key, Value: d.Value, Effect: corev1.TaintEffect(d.Effect)}
		if !slices.ContainsFunc(b.Taints, func(have corev1.Taint) bool { return have.MatchTaint(&taint) }) {
			b.Taints = append(slices.Clip(b.Taints), taint)
		}
	case cloud.DeclaredResource:
		amount, err := resource.ParseQuantity(d.Value)
		if err != nil {
			return fmt.Sprintf("%q is not a quantity", d.Value)
		}
		b.resources = over(b.resources, corev1.ResourceList{corev1.ResourceName(d.Key): amount})
	case cloud.DeclaredOption:
		return option(&b.ScaleDown, d)
	default:
		return fmt.Sprintf("%q is nothing that can be declared", d.Kind)
	}
	return ""
}

// over returns a new map with the entries of both, those of high over those of low.
func over[M ~map[K]V, K comparable, V any](high, low M) M {
	all := maps.Clone(low)
	maps.Copy(all, high)
	return all
}

// option sets an option of scaling down that is open. The names are those of Cluster
// Autoscaler (cluster-autoscaler/config/const.go).
func option(s *config.ScaleDown, d cloud.Declaration) (problem string) {
	switch d.Key {
	case "scaledownutilizationthreshold":
		return set(&s.UtilizationThreshold, d.Value, parseFloat, "a share such as 0.5")
	case "scaledowngpuutilizationthreshold":
		return set(&s.GPUUtilizationThreshold, d.Value, parseFloat, "a share such as 0.5")
	case "scaledownunneededtime":
		return set(&s.UnneededTime, d.Value, parseDuration, "a duration such as 10m")
	case "scaledownunreadytime":
		return set(&s.UnreadyTime, d.Value, parseDuration, "a duration such as 10m")
	case "maxnodeprovisiontime":
		return set(&s.MaxNodeProvisionTime, d.Value, parseDuration, "a duration such as 15m")
	case "ignoredaemonsetsutilization":
		return set(&s.IgnoreDaemonSets, d.Value, strconv.ParseBool, "true or false")
	default:
		return "is no option that an answer to NodeGroupGetOptions can carry"
	}
}

// set sets an option that is open to a value, or returns why it does not.
func set[T any](option **T, text string, parse func(string) (T, error), want string) (problem string) {
	value, err := parse(text)
	if err != nil {
		return fmt.Sprintf("%q is not %s", text, want)
	}
	if *option == nil {
		*option = &value
	}
	return ""
}

func parseFloat(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func parseDuration(text string) (config.Duration, error) {
	d, err := time.ParseDuration(text)
	return config.Duration{Duration: d}, err
}

// build sets what a node has, and what machines of each type use of quotas.
func (b *builder) build() {
	written := b.file.Capacity
	b.MostCapacity = capacity(b.machine.Most, written, b.resources, b.OS)
	b.Capacity = capacity(b.machine.Least, written, b.resources, b.OS)
	b.Each = make(map[string]config.MachineType, len(b.machine.Each))
	for name, t := range b.machine.Each {
		if !slices.Contains(b.machine.InstanceTypes, name) { // from before: what the cloud says of its type
			b.Each[name] = config.MachineType{Capacity: capacity(t.Resources, nil, nil, b.OS), HourlyPrice: t.HourlyPrice}
			continue
		}
		launched := config.MachineType{Capacity: capacity(t.Resources, written, b.resources, b.OS), HourlyPrice: b.HourlyPrice}
		if launched.HourlyPrice == nil {
			launched.HourlyPrice = t.HourlyPrice
		}
		b.Each[name] = launched
	}
}

// defaultEphemeralStorage stands for the root volume, whose size only the image tells.
// A Pod that asks for more fits no template.
const defaultEphemeralStorage = "100Gi"

// capacity is that of a node: the type's amounts, the declared ones over them, the file's over
// all. Devices of the type are left out where the file or the group declares devices: MIG
// slices or shared GPUs are the same devices under other names.
func capacity(r cloud.Resources, file, declared corev1.ResourceList, os string) corev1.ResourceList {
	all := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(r.VCPUs), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(r.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: resource.MustParse(defaultEphemeralStorage),
	}
	if r.Pods > 0 {
		all[corev1.ResourcePods] = *resource.NewQuantity(int64(r.Pods), resource.DecimalSI)
	}
	for name, n := range r.Devices {
		if os == "windows" && slices.Contains(gpuResources, corev1.ResourceName(name)) {
			name = "microsoft.com/directx" // what the device plugin for Windows offers GPUs as
		}
		if !replaced(name, file) && !replaced(name, declared) {
			all[corev1.ResourceName(name)] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		}
	}
	maps.Copy(all, declared)
	maps.Copy(all, file)
	if _, written := file[corev1.ResourceMemory]; !written {
		hugepages(all)
	}
	return all
}

// replaced reports whether resources hold a type's device under another name: all GPUs but
// one kind, MIG slices, or shared ones.
func replaced(device string, resources corev1.ResourceList) bool {
	maker, _, _ := strings.Cut(device, "/")
	isGPU := slices.Contains(gpuResources, corev1.ResourceName(device))
	for name := range resources {
		switch {
		case isGPU && slices.Contains(gpuResources, name),
			strings.HasPrefix(string(name), maker+"/mig-"), string(name) == maker+"/gpu.shared":
			return true
		}
	}
	return false
}

// hugepages takes the huge pages of a node off its memory: the kernel sets them aside.
func hugepages(all corev1.ResourceList) {
	memory := all[corev1.ResourceMemory]
	for name, amount := range all {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			memory.Sub(amount)
		}
	}
	all[corev1.ResourceMemory] = memory
}
