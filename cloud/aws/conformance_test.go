package aws

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

var conformanceSpecs = []cloud.Spec{
	{ID: "t4", Name: "train-t4"}, {ID: "a100", Name: "train-a100"}, {ID: "placeholder", Name: "train-x"},
}

const noCapacity = "We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a). " +
	"Our system will be working on provisioning additional capacity. Launching EC2 instance failed."

// harness is a Backend on a Stub with empty groups. There is no Reopen, since
// placeholders have new ids after a restart: TestRestart says what holds instead.
func harness(t *testing.T) (cloudtest.Harness, *awstest.Stub) {
	stub := awstest.NewStub(t)
	asgs := map[string]string{}
	for _, spec := range conformanceSpecs {
		stub.CreateGroup(awstest.Group{Name: spec.Name, Max: 20, Zones: []string{"us-east-1a", "us-east-1b"}})
		asgs[spec.ID] = spec.Name
	}
	c := opened(t, stub, Options{})
	require.NoError(t, c.Configure(t.Context(), conformanceSpecs))
	return cloudtest.Harness{
		Backend: c,
		Specs:   conformanceSpecs,
		Settle:  func(testing.TB) { stub.Settle() },
		Starve:  func(_ testing.TB, group string) { stub.Capacity(asgs[group], 0, noCapacity) },
	}, stub
}

// TestConformance has an AWS in which nothing happens between calls.
func TestConformance(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		h, _ := harness(t)
		return h
	})
}

// TestConformanceWhileTimePasses has instances come and go just before each call.
func TestConformanceWhileTimePasses(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		h, stub := harness(t)
		h.Immediate = true
		stub.Faults(awstest.Rule{Fault: awstest.Do(func() { stub.Step() })})
		return h
	})
}

// TestConformanceImmediate has an AWS that has done everything when it answers.
func TestConformanceImmediate(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		h, stub := harness(t)
		h.Immediate = true
		stub.Immediate(true)
		return h
	})
}

// TestConformanceStaleReads has the reading of a group after each write to it
// show what was before, until everything has settled.
func TestConformanceStaleReads(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		h, stub := harness(t)
		l := &laggard{stub: stub}
		for _, write := range []string{"SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"} {
			stub.Faults(awstest.Rule{Action: write, Match: l.writes, Fault: awstest.Do(l.lag)})
		}
		h.Settle = func(testing.TB) {
			l.end()
			stub.Settle()
		}
		return h
	})
}

// laggard makes the reading of a group stale after a write to it.
type laggard struct {
	stub    *awstest.Stub
	mu      sync.Mutex
	written []string // groups whose reading is to lag
	ends    []func()
}

func (l *laggard) writes(call awstest.Call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, spec := range conformanceSpecs {
		asg := spec.Name
		if call.Params["AutoScalingGroupName"] == asg || slices.Contains(l.stub.Group(asg).IDs(), call.Params["InstanceId"]) {
			l.written = append(l.written, asg)
		}
	}
	return true
}

// lag does not hold the lock while it adds rules: writes has it, and is called
// while the Stub looks at its rules.
func (l *laggard) lag() {
	l.mu.Lock()
	written := l.written
	l.written = nil
	l.mu.Unlock()
	var ends []func()
	for _, asg := range written {
		ends = append(ends, l.stub.Faults(awstest.Rule{
			Action: "DescribeAutoScalingGroups", Times: 1, Fault: awstest.Stale(),
			// Not when others are read too: the Stub would show those as before their own last write, however long ago.
			Match: func(c awstest.Call) bool { return slices.Equal(c.Names("AutoScalingGroupNames.member"), []string{asg}) },
		}))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = append(l.ends, ends...)
}

func (l *laggard) end() {
	l.mu.Lock()
	ends := l.ends
	l.ends = nil
	l.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// TestConformanceAbandoned has calls whose caller gives up while AWS is silent,
// before and after it has done what it was asked.
func TestConformanceAbandoned(t *testing.T) {
	cloudtest.Run(t, func(t *testing.T) cloudtest.Harness {
		h, stub := harness(t)
		h.EndMidway = endMidway(stub)
		return h
	})
}

func endMidway(stub *awstest.Stub) func(t testing.TB) context.Context {
	writes := []string{"SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"}
	turns := []func() []awstest.Rule{
		func() []awstest.Rule { return hanging(awstest.HangAfter(), writes...) },
		func() []awstest.Rule { return hanging(awstest.HangBefore(), writes...) },
		func() []awstest.Rule { return hanging(awstest.CutAfter(), writes...) },
		func() []awstest.Rule { return hanging(awstest.HangBefore(), "DescribeAutoScalingGroups") },
	}
	turn := 0
	remove := func() {}
	return func(t testing.TB) context.Context {
		remove()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		remove = stub.Faults(turns[turn%len(turns)]()...)
		context.AfterFunc(ctx, remove)
		turn++
		return ctx
	}
}

func hanging(fault awstest.Fault, actions ...string) []awstest.Rule {
	rules := make([]awstest.Rule, 0, len(actions))
	for _, action := range actions {
		rules = append(rules, awstest.Rule{Action: action, Fault: fault})
	}
	return rules
}
