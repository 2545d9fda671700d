package awstest

import (
	"cmp"
	"maps"
	"slices"
)

// InstanceType is what EC2 tells of one.
type InstanceType struct {
	Name      string
	CPUs      int
	MemoryMiB int
	// Arch is x86_64 when empty.
	Arch string
	GPUs []GPU
	// DiskGB is the size of the instance store.
	DiskGB int
	// Interfaces and Addresses limit the pods of the VPC CNI; 3 and 10 when zero.
	Interfaces, Addresses int
}

// GPU is a kind of device in an instance type.
type GPU struct {
	Name, Maker      string
	Count, MemoryMiB int
}

// catalogue holds the types that every Stub knows, with the numbers that
// DescribeInstanceTypes gives: https://aws.amazon.com/ec2/instance-types/
var catalogue = []InstanceType{
	{Name: "m5.large", CPUs: 2, MemoryMiB: 8 << 10},
	{Name: "m5.xlarge", CPUs: 4, MemoryMiB: 16 << 10, Interfaces: 4, Addresses: 15},
	{Name: "m7g.large", CPUs: 2, MemoryMiB: 8 << 10, Arch: "arm64"},
	{Name: "g4dn.xlarge", CPUs: 4, MemoryMiB: 16 << 10, DiskGB: 125, GPUs: nvidia("T4", 1, 16<<10)},
	{Name: "g4dn.2xlarge", CPUs: 8, MemoryMiB: 32 << 10, DiskGB: 225, GPUs: nvidia("T4", 1, 16<<10)},
	{Name: "g4dn.12xlarge", CPUs: 48, MemoryMiB: 192 << 10, DiskGB: 900, GPUs: nvidia("T4", 4, 16<<10), Interfaces: 8, Addresses: 30},
	{Name: "g4dn.metal", CPUs: 96, MemoryMiB: 384 << 10, DiskGB: 1800, GPUs: nvidia("T4", 8, 16<<10), Interfaces: 15, Addresses: 50},
	{Name: "g4ad.xlarge", CPUs: 4, MemoryMiB: 16 << 10, DiskGB: 150, GPUs: []GPU{{"Radeon Pro V520", "AMD", 1, 8 << 10}}, Interfaces: 2, Addresses: 4},
	{Name: "g5.xlarge", CPUs: 4, MemoryMiB: 16 << 10, DiskGB: 250, GPUs: nvidia("A10G", 1, 22888), Interfaces: 4, Addresses: 15},
	{Name: "g5.48xlarge", CPUs: 192, MemoryMiB: 768 << 10, DiskGB: 7600, GPUs: nvidia("A10G", 8, 22888), Interfaces: 7, Addresses: 50},
	{Name: "g6.xlarge", CPUs: 4, MemoryMiB: 16 << 10, DiskGB: 250, GPUs: nvidia("L4", 1, 22888), Interfaces: 4, Addresses: 15},
	{Name: "p3.2xlarge", CPUs: 8, MemoryMiB: 61 << 10, GPUs: nvidia("V100", 1, 16<<10), Interfaces: 4, Addresses: 15},
	{Name: "p4d.24xlarge", CPUs: 96, MemoryMiB: 1152 << 10, DiskGB: 8000, GPUs: nvidia("A100", 8, 40<<10), Interfaces: 60, Addresses: 50},
	{Name: "p5.48xlarge", CPUs: 192, MemoryMiB: 2048 << 10, DiskGB: 30400, GPUs: nvidia("H100", 8, 80<<10), Interfaces: 64, Addresses: 50},
}

func nvidia(name string, count, memoryMiB int) []GPU {
	return []GPU{{Name: name, Maker: "NVIDIA", Count: count, MemoryMiB: memoryMiB}}
}

// AddInstanceType adds a type, or replaces one.
func (s *Stub) AddInstanceType(kind InstanceType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.types[kind.Name] = kind
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (w *xmlWriter) instanceType(kind InstanceType) {
	arch := cmp.Or(kind.Arch, "x86_64")
	w.str("instanceType", kind.Name)
	w.flag("currentGeneration", true)
	w.list("supportedUsageClasses", "item", []string{"on-demand", "spot"})
	w.in("processorInfo", func() { w.list("supportedArchitectures", "item", []string{arch}) })
	w.in("vCpuInfo", func() { w.num("defaultVCpus", kind.CPUs) })
	w.in("memoryInfo", func() { w.num("sizeInMiB", kind.MemoryMiB) })
	w.flag("instanceStorageSupported", kind.DiskGB > 0)
	if kind.DiskGB > 0 {
		w.in("instanceStorageInfo", func() { w.num("totalSizeInGB", kind.DiskGB) })
	}
	w.in("networkInfo", func() {
		w.num("maximumNetworkInterfaces", cmp.Or(kind.Interfaces, 3))
		w.num("ipv4AddressesPerInterface", cmp.Or(kind.Addresses, 10))
	})
	if len(kind.GPUs) == 0 {
		return
	}
	w.in("gpuInfo", func() {
		total := 0
		w.open("gpus")
		for _, g := range kind.GPUs {
			total += g.Count * g.MemoryMiB
			w.in("item", func() {
				w.str("name", g.Name)
				w.str("manufacturer", g.Maker)
				w.num("count", g.Count)
				w.in("memoryInfo", func() { w.num("sizeInMiB", g.MemoryMiB) })
			})
		}
		w.close("gpus")
		w.num("totalGpuMemoryInMiB", total)
	})
}

// Catalogue are the names of the types that every Stub knows.
func Catalogue() []string {
	names := make([]string, len(catalogue))
	for n, kind := range catalogue {
		names[n] = kind.Name
	}
	return names
}
