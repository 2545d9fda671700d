package simulated

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gpu-node-provider/cloud"
)

// launchCodes are the codes that a failed launch can carry.
var launchCodes = []cloud.LaunchCode{
	cloud.InsufficientInstanceCapacity, cloud.MaxSpotInstanceCountExceeded, cloud.VcpuLimitExceeded,
	cloud.UnfulfillableCapacity, cloud.Unsupported, cloud.InsufficientFreeAddressesInSubnet,
	cloud.LaunchTemplateError, cloud.Other,
}

// validate reports everything that is wrong at once.
func (o Options) validate() error {
	problems := slices.Concat(o.badTimes(), o.badRates())
	for _, group := range slices.Sorted(maps.Keys(o.Capacity)) {
		if n := o.Capacity[group]; n < 0 {
			problems = append(problems, fmt.Errorf("capacity of %q must not be negative, is %d", group, n))
		}
	}
	if o.LaunchErrorCode != "" && !slices.Contains(launchCodes, o.LaunchErrorCode) {
		problems = append(problems, fmt.Errorf("launchErrors.code %q is not one of %v", o.LaunchErrorCode, launchCodes))
	}
	if o.StateFile != "" && o.Memory != nil {
		problems = append(problems, errors.New("a state file and a memory exclude each other"))
	}
	if k := o.Kubernetes; k != nil && (k.Client == nil || k.NewNode == nil) {
		problems = append(problems, errors.New("kubernetes needs a client and a constructor of Nodes"))
	}
	return errors.Join(problems...)
}

func (o Options) badTimes() (problems []error) {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"launchDelay", o.LaunchDelay},
		{"bootDelay", o.BootDelay},
		{"devicePluginDelay", o.DevicePluginDelay},
		{"terminateDelay", o.TerminateDelay},
		{"api.latency", o.API.Latency},
	} {
		if d.value < 0 {
			problems = append(problems, fmt.Errorf("%s must not be negative, is %s", d.name, d.value))
		}
	}
	return problems
}

func (o Options) badRates() (problems []error) {
	for _, r := range []struct {
		name  string
		value float64
	}{
		{"launchErrors.rate", o.LaunchErrorRate},
		{"api.errorRate", o.API.ErrorRate},
		{"api.lostAnswerRate", o.API.LostAnswerRate},
	} {
		if !(r.value >= 0 && r.value <= 1) { // this way round, NaN is refused too
			problems = append(problems, fmt.Errorf("%s must be from 0 to 1, is %v", r.name, r.value))
		}
	}
	return problems
}
