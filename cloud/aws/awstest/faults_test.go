package awstest_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud/aws/awstest"
)

// front is what takes Faults: a Stub, or a Proxy before one.
type front interface {
	URL() string
	Faults(rules ...awstest.Rule) (remove func())
	Calls(actions ...string) []awstest.Call
	Actions() []string
}

// fronts runs the test on both.
func fronts(t *testing.T, test func(t *testing.T, stub *awstest.Stub, front front, client clients)) {
	for name, before := range map[string]func(*testing.T, *awstest.Stub) front{
		"stub":  func(_ *testing.T, s *awstest.Stub) front { return s },
		"proxy": func(t *testing.T, s *awstest.Stub) front { return awstest.NewProxy(t, s.URL()) },
	} {
		t.Run(name, func(t *testing.T) {
			stub := awstest.NewStub(t)
			stub.CreateGroup(awstest.Group{Name: "gpu", Max: 9})
			front := before(t, stub)
			test(t, stub, front, newClients(t, front.URL()))
		})
	}
}

func TestWhatEachFaultDoesToACall(t *testing.T) {
	fronts(t, func(t *testing.T, stub *awstest.Stub, front front, client clients) {
		want := 0
		for _, row := range []struct {
			name    string
			fault   awstest.Fault
			code    string // of the caller's error; empty when it gets no answer
			effect  bool
			outcome string
		}{
			{"throttle", awstest.Throttle(), "Throttling", false, "Throttling"},
			{"internal", awstest.Internal(), "InternalFailure", false, "InternalFailure"},
			{"internal, after the effect", awstest.InternalAfter(), "InternalFailure", true, "InternalFailure"},
			{"denied", awstest.Deny(), "AccessDenied", false, "AccessDenied"},
			{"in progress", awstest.InProgress(), "ScalingActivityInProgress", false, "ScalingActivityInProgress"},
			{"one's own", awstest.Refuse(http.StatusBadRequest, "ResourceContention", "busy"), "ResourceContention", false, "ResourceContention"},
			{"cut before", awstest.CutBefore(), "", false, "cut"},
			{"cut after", awstest.CutAfter(), "", true, "cut"},
		} {
			front.Faults(awstest.Rule{Action: "SetDesiredCapacity", Times: 1, Fault: row.fault})
			err := client.setDesired("gpu", int32(want+1))
			require.Error(t, err, row.name)
			require.Equal(t, row.code, codeOf(err), row.name)
			if row.effect {
				want++
			}
			require.Equal(t, want, stub.Group("gpu").Desired, row.name)
			calls := front.Calls("SetDesiredCapacity")
			last := calls[len(calls)-1]
			assert.Equal(t, row.outcome, last.Outcome, row.name)
			assert.Equal(t, row.effect, last.Applied, row.name)
		}
		require.NoError(t, client.setDesired("gpu", 5), "each has befallen one call")
		require.Error(t, client.setDesired("gpu", 99))
		calls := front.Calls()
		assert.Equal(t, []string{"ok", "ValidationError"}, []string{calls[len(calls)-2].Outcome, calls[len(calls)-1].Outcome})
	})
}

func TestHangingEndsWithTheCallersDeadline(t *testing.T) {
	fronts(t, func(t *testing.T, stub *awstest.Stub, front front, client clients) {
		for want, fault := range []awstest.Fault{awstest.HangBefore(), awstest.HangAfter()} {
			front.Faults(awstest.Rule{Times: 1, Fault: fault})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_, err := client.scaling.SetDesiredCapacity(ctx, &autoscaling.SetDesiredCapacityInput{AutoScalingGroupName: aws.String("gpu"), DesiredCapacity: aws.Int32(1)})
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, want, stub.Group("gpu").Desired)
			require.Eventually(t, func() bool {
				calls := front.Calls()
				return calls[len(calls)-1].Outcome == "hung"
			}, 10*time.Second, time.Millisecond, "the server has noticed that the caller is gone")
		}
	})
}

func TestRulesCountAndNarrow(t *testing.T) {
	fronts(t, func(t *testing.T, _ *awstest.Stub, front front, client clients) {
		outcomes := func(n int) (codes []string) {
			for range n {
				codes = append(codes, codeOf(client.setDesired("gpu", 1)))
			}
			return codes
		}
		front.Faults(awstest.Rule{Action: "SetDesiredCapacity", Skip: 1, Times: 2, Fault: awstest.Throttle()})
		assert.Equal(t, []string{"", "Throttling", "Throttling", ""}, outcomes(4))

		remove := front.Faults(awstest.Rule{Fault: awstest.Internal()})
		assert.Equal(t, []string{"InternalFailure", "InternalFailure", "InternalFailure"}, outcomes(3), "until it is removed")
		remove()
		assert.Equal(t, []string{""}, outcomes(1))

		front.Faults(awstest.Rule{Match: func(c awstest.Call) bool { return c.Params["AutoScalingGroupName"] == "other" }, Fault: awstest.Throttle()})
		assert.Equal(t, []string{""}, outcomes(1), "another group's")

		did := 0
		front.Faults(awstest.Rule{Fault: awstest.Do(func() { did++ })}, awstest.Rule{Times: 1, Fault: awstest.Throttle()})
		assert.Equal(t, []string{"Throttling", ""}, outcomes(2), "the next rule has its say")
		assert.Equal(t, 2, did)
		assert.Equal(t, []string{"autoscaling:SetDesiredCapacity"}, front.Actions())
	})
}

func TestStaleAnswers(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 2})
	id := stub.Group("gpu").IDs()[0]
	require.NoError(t, client.terminate(id))
	stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Times: 2, Fault: awstest.Stale()})
	for range 2 {
		desired, instances := client.group(t)
		assert.EqualValues(t, 2, desired)
		assert.Equal(t, awstest.InService, instances[id])
	}
	desired, instances := client.group(t)
	assert.EqualValues(t, 1, desired)
	assert.Equal(t, awstest.Terminating, instances[id])

	stub.Faults(awstest.Rule{Fault: awstest.Stale()})
	require.NoError(t, client.setDesired("gpu", 3), "a write is not stale")
	assert.Equal(t, 3, stub.Group("gpu").Desired)
	desired, _ = client.group(t)
	assert.EqualValues(t, 1, desired)
	stub.Advance(time.Minute)
	desired, _ = client.group(t)
	assert.EqualValues(t, 3, desired, "no answer is that old")
}

func TestAProxyBeforeMoto(t *testing.T) {
	moto := awstest.StartMoto(t)
	moto.CreateGroup(t, awstest.Group{Name: "gpu", Max: 5, Desired: 1})
	proxy := awstest.NewProxy(t, moto.URL())
	client := newClients(t, proxy.URL())
	proxy.Faults(awstest.Rule{Action: "SetDesiredCapacity", Times: 1, Fault: awstest.CutAfter()})
	require.Error(t, client.setDesired("gpu", 3))
	desired, instances := client.group(t)
	assert.EqualValues(t, 3, desired, "the answer was lost, not the effect")
	assert.Len(t, instances, 3)
	require.Error(t, client.terminate("i-00000000000000bad"))
	assert.Equal(t, []string{
		"autoscaling:DescribeAutoScalingGroups", "autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup",
	}, proxy.Actions())
	outcomes := proxy.Calls()
	assert.Equal(t, []string{"cut", "ok"}, []string{outcomes[0].Outcome, outcomes[1].Outcome})
	assert.False(t, outcomes[2].Applied)
}
