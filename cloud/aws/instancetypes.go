package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"gpu-node-provider/cloud"
)

// typesFor is how long an instance type counts as known. What a type has never
// changes; a day later a type that was not to be had in the region may be.
const typesFor = 24 * time.Hour

// instanceType is what EC2 says of one.
type instanceType struct {
	resources    cloud.Resources
	architecture string
}

// machineCache holds instance types, and those that versions of launch templates name.
type machineCache struct {
	mu        sync.Mutex
	types     map[string]instanceType
	templates map[templateVersion]versionType
	since     time.Time
}

func (m *machineCache) refreshLocked(now time.Time) {
	if m.types == nil || now.Sub(m.since) > typesFor {
		m.types, m.templates, m.since = map[string]instanceType{}, map[templateVersion]versionType{}, now
	}
}

// instanceTypes finds types by name; those that the region does not have are
// left out.
func (c *Cloud) instanceTypes(ctx context.Context, names []string) (map[string]instanceType, error) {
	known, missing := c.cachedTypes(names)
	for batch := range slices.Chunk(missing, filterValues) {
		// A filter, since one unknown name in InstanceTypes fails all.
		pages := ec2.NewDescribeInstanceTypesPaginator(c.ec2, &ec2.DescribeInstanceTypesInput{
			Filters: []types.Filter{{Name: awssdk.String("instance-type"), Values: batch}},
		})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, fault(ctx, fmt.Sprintf("reading instance types %s", shorten(strings.Join(missing, ", "), 100)), err)
			}
			for _, info := range page.InstanceTypes {
				if name := string(info.InstanceType); slices.Contains(batch, name) {
					known[name] = typeOf(info)
				}
			}
		}
	}
	c.machines.mu.Lock()
	defer c.machines.mu.Unlock()
	for _, name := range missing {
		if t, ok := known[name]; ok {
			c.machines.types[name] = t
		}
	}
	return known, nil
}

func (c *Cloud) cachedTypes(names []string) (known map[string]instanceType, missing []string) {
	c.machines.mu.Lock()
	defer c.machines.mu.Unlock()
	c.machines.refreshLocked(c.now())
	known = make(map[string]instanceType, len(names))
	for _, name := range names {
		if t, ok := c.machines.types[name]; ok {
			known[name] = t
		} else if !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	return known, missing
}

func typeOf(info types.InstanceTypeInfo) instanceType {
	t := instanceType{resources: cloud.Resources{Devices: map[string]int{}}}
	if info.VCpuInfo != nil {
		t.resources.VCPUs = int(awssdk.ToInt32(info.VCpuInfo.DefaultVCpus))
	}
	if info.MemoryInfo != nil {
		t.resources.Memory = memoryOf(string(info.InstanceType), awssdk.ToInt64(info.MemoryInfo.SizeInMiB))
	}
	t.resources.Pods = podsOf(info.NetworkInfo)
	if info.ProcessorInfo != nil {
		t.architecture = architecture(info.ProcessorInfo.SupportedArchitectures)
	}
	if info.GpuInfo != nil {
		for _, g := range info.GpuInfo.Gpus {
			count := int(awssdk.ToInt32(g.Count))
			if logical := int(awssdk.ToInt32(g.LogicalGpuCount)); logical > 0 { // parts of a GPU count as devices
				count = logical
			}
			t.resources.Devices[gpuResource(awssdk.ToString(g.Manufacturer))] += count
		}
	}
	if info.NeuronInfo != nil {
		for _, d := range info.NeuronInfo.NeuronDevices {
			count := int(awssdk.ToInt32(d.Count))
			t.resources.Devices["aws.amazon.com/neuron"] += count
			if d.CoreInfo != nil {
				t.resources.Devices["aws.amazon.com/neuroncore"] += count * int(awssdk.ToInt32(d.CoreInfo.Count))
			}
		}
	}
	return t
}

// gpuResource is the resource name of a maker's device plugin. An unknown maker
// gets a name that nobody asks for, rather than a GPU that is not one.
func gpuResource(maker string) string {
	switch strings.ToLower(maker) {
	case "nvidia":
		return "nvidia.com/gpu"
	case "amd":
		return "amd.com/gpu"
	case "habana":
		return "habana.ai/gaudi"
	case "intel":
		return "gpu.intel.com/xe"
	default:
		return strings.ToLower(maker) + ".unknown/gpu"
	}
}

func podsOf(n *types.NetworkInfo) int {
	if n == nil {
		return 0
	}
	interfaces := awssdk.ToInt32(n.MaximumNetworkInterfaces)
	// The CNI uses the first of several cards.
	if card := int(awssdk.ToInt32(n.DefaultNetworkCardIndex)); card < len(n.NetworkCards) {
		interfaces = awssdk.ToInt32(n.NetworkCards[card].MaximumNetworkInterfaces)
	}
	return int(interfaces*(awssdk.ToInt32(n.Ipv4AddressesPerInterface)-1) + 2)
}

// architecture is in Kubernetes' words.
func architecture(supported []types.ArchitectureType) string {
	switch {
	case slices.Contains(supported, types.ArchitectureTypeX8664):
		return "amd64"
	case slices.Contains(supported, types.ArchitectureTypeArm64):
		return "arm64"
	default:
		return ""
	}
}

func (c *Cloud) typeOfConfiguration(ctx context.Context, asg, name string) (string, error) {
	out, err := c.asg.DescribeLaunchConfigurations(ctx, &autoscaling.DescribeLaunchConfigurationsInput{LaunchConfigurationNames: []string{name}})
	if err != nil {
		return "", fault(ctx, fmt.Sprintf("reading launch configuration %s of Auto Scaling group %s", name, asg), err)
	}
	if len(out.LaunchConfigurations) == 0 {
		return "", fmt.Errorf("aws: launch configuration %s of Auto Scaling group %s does not exist: %w", name, asg, cloud.ErrPrecondition)
	}
	return awssdk.ToString(out.LaunchConfigurations[0].InstanceType), nil
}
