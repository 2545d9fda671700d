package awstest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud/aws/awstest"
)

func TestALaunchGoesThroughItsStages(t *testing.T) {
	stub := awstest.NewStub(t)
	aws := newClients(t, stub.URL())
	stub.CreateGroup(awstest.Group{Name: "gpu", Max: 5})

	require.NoError(t, aws.setDesired("gpu", 2))
	desired, instances := aws.group(t)
	assert.EqualValues(t, 2, desired)
	assert.Empty(t, instances, "nothing happens by itself")

	stub.Step()
	_, instances = aws.group(t)
	require.Len(t, instances, 2)
	for _, state := range instances {
		assert.Equal(t, awstest.Pending, state)
	}

	stub.Step()
	_, instances = aws.group(t)
	require.Len(t, instances, 2)
	for id, state := range instances {
		assert.Equal(t, awstest.InService, state)
		require.NoError(t, aws.terminate(id))
		break
	}
	desired, instances = aws.group(t)
	assert.EqualValues(t, 1, desired)
	assert.Len(t, instances, 2, "one of them still terminates")

	stub.Step()
	_, instances = aws.group(t)
	assert.Len(t, instances, 1)
	assert.Len(t, stub.Kills(), 1)
	assert.Empty(t, stub.Victims())
}

func TestActivitiesTellWhyALaunchFailed(t *testing.T) {
	const message = "We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you requested (us-east-1a)."
	stub := awstest.NewStub(t)
	client := newClients(t, stub.URL())
	stub.CreateGroup(awstest.Group{Name: "gpu", Max: 5, Desired: 3})
	stub.Capacity("gpu", 1, message)
	stub.Step()

	out, err := client.scaling.DescribeScalingActivities(t.Context(), &autoscaling.DescribeScalingActivitiesInput{AutoScalingGroupName: aws.String("gpu")})
	require.NoError(t, err)
	require.Len(t, out.Activities, 2)
	assert.EqualValues(t, "Failed", out.Activities[0].StatusCode, "the newest comes first")
	assert.Equal(t, message, *out.Activities[0].StatusMessage)
	assert.NotNil(t, out.Activities[0].EndTime)
	assert.EqualValues(t, "PreInService", out.Activities[1].StatusCode)
	assert.True(t, out.Activities[0].StartTime.After(*out.Activities[1].StartTime))
	assert.Nil(t, out.NextToken)
}

// deaths are the instances ended for a reason, with the state they were in.
func deaths(stub *awstest.Stub, why awstest.Why) (states []string) {
	for _, k := range stub.Kills() {
		if k.Why == why {
			states = append(states, k.State)
		}
	}
	return states
}

// full is a Stub with one group that has all it desires, in service.
func full(t *testing.T, g awstest.Group) (*awstest.Stub, clients) {
	t.Helper()
	stub := awstest.NewStub(t)
	g.Name = "gpu"
	stub.CreateGroup(g)
	stub.Settle()
	require.Len(t, stub.Group("gpu").IDs(awstest.InService), g.Desired)
	return stub, newClients(t, stub.URL())
}

func TestLoweringTheDesiredCapacityCostsInstances(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 5, Zones: []string{"us-east-1a", "us-east-1b"}})
	require.NoError(t, client.setDesired("gpu", 2))
	assert.Len(t, stub.Victims(), 3)
	assert.Len(t, stub.Group("gpu").IDs(awstest.Terminating), 3)
	zones := map[string]int{}
	for _, i := range stub.Group("gpu").Instances {
		if i.State == awstest.InService {
			zones[i.Zone]++
		}
	}
	assert.Len(t, zones, 2, "the zone with the most loses first")
	assert.Contains(t, stub.Group("gpu").Activities[0].Cause, "changing the desired capacity from 5 to 2")
}

func TestVictimsAreChosenByTheSeed(t *testing.T) {
	chosen := map[string]bool{}
	for seed := range uint64(20) {
		var ids [2]string
		for n := range ids {
			stub := awstest.NewStub(t, awstest.WithSeed(seed))
			stub.CreateGroup(awstest.Group{Name: "gpu", Desired: 5})
			stub.Settle()
			stub.SetDesired("gpu", 4)
			ids[n] = stub.Victims()[0].Instance
		}
		require.Equal(t, ids[0], ids[1], "the same seed chooses the same")
		chosen[ids[0]] = true
	}
	assert.Len(t, chosen, 5, "and any of them")
}

func TestProtectionStartsInService(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 2, Protected: true})
	require.NoError(t, client.setDesired("gpu", 3))
	stub.Launch("gpu", 1)
	require.True(t, stub.Group("gpu").Instances[2].Protected, "a new instance takes the group's setting")

	require.NoError(t, client.setDesired("gpu", 1))
	assert.Equal(t, []string{awstest.Pending}, deaths(stub, awstest.Victim), "the one that boots is not protected yet, the others are")
	assert.Empty(t, stub.Victims())
	g := stub.Group("gpu")
	assert.Equal(t, 1, g.Desired)
	assert.Equal(t, 2, g.Live())
	assert.Equal(t, "Could not scale to desired capacity because all remaining instances are protected from scale in.", g.Activities[0].StatusMessage)
	told := len(g.Activities)
	stub.Step()
	stub.Step()
	assert.Equal(t, 2, stub.Group("gpu").Live(), "they stay, and it is said once")
	assert.Len(t, stub.Group("gpu").Activities, told)
	assert.Len(t, deaths(stub, awstest.Victim), 1)

	ids := stub.Group("gpu").IDs(awstest.InService)
	require.NoError(t, client.setDesired("gpu", 2))
	require.NoError(t, client.terminate(ids[0]), "ending by id does not mind protection")
	assert.Equal(t, []string{awstest.InService}, deaths(stub, awstest.Asked))
	assert.Equal(t, 1, stub.Group("gpu").Desired)
}

func TestLayingOpenWhatIsTooMuch(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 2, Protected: true})
	require.NoError(t, client.setDesired("gpu", 1))
	require.Empty(t, stub.Kills())
	open := stub.Group("gpu").IDs()[1]
	_, err := client.scaling.SetInstanceProtection(t.Context(), &autoscaling.SetInstanceProtectionInput{AutoScalingGroupName: aws.String("gpu"), InstanceIds: []string{open}, ProtectedFromScaleIn: aws.Bool(false)})
	require.NoError(t, err)
	require.Len(t, stub.Victims(), 1)
	assert.Equal(t, open, stub.Victims()[0].Instance)
}

// B-01: between what is read and what is written an instance arrives.
func TestAnInstanceArrivesBetweenReadingAndWriting(t *testing.T) {
	for _, protected := range []bool{false, true} {
		stub, client := full(t, awstest.Group{Max: 9, Desired: 6, Protected: protected})
		require.NoError(t, client.setDesired("gpu", 7))
		require.Equal(t, 1, stub.BeginLaunch("gpu", 1))
		stub.Faults(awstest.Rule{Action: "SetDesiredCapacity", Times: 1, Fault: awstest.Do(func() { stub.Arrive("gpu", 1, true) })})
		_, instances := client.group(t)
		require.Len(t, instances, 6)
		require.NoError(t, client.setDesired("gpu", 6))
		if protected {
			assert.Empty(t, stub.Kills())
			assert.Equal(t, 7, stub.Group("gpu").Live())
		} else {
			assert.Len(t, stub.Victims(), 1)
		}
	}
}

func TestALaunchUnderWayArrivesTooLate(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 1})
	require.NoError(t, client.setDesired("gpu", 3))
	require.Equal(t, 2, stub.BeginLaunch("gpu", 5))
	require.NoError(t, client.setDesired("gpu", 1))
	require.Empty(t, stub.Kills(), "what nobody sees cannot be chosen")
	stub.WorstVictims(true)
	require.Equal(t, 2, stub.Arrive("gpu", 2, false))
	assert.Equal(t, []string{awstest.InService, awstest.Pending}, deaths(stub, awstest.Victim), "the worst: the one with work goes first")

	require.NoError(t, client.setDesired("gpu", 3))
	require.Equal(t, 2, stub.BeginLaunch("gpu", 2))
	require.Equal(t, 2, stub.FailArrival("gpu", 2, "none left"))
	assert.Equal(t, "none left", stub.Group("gpu").Activities[0].StatusMessage)
	assert.Equal(t, 1, stub.Group("gpu").Live())
	require.Equal(t, 2, stub.BeginLaunch("gpu", 2))
	stub.Suspend("gpu", "Launch")
	stub.Step()
	assert.Equal(t, 3, stub.Group("gpu").Live(), "a Step brings what is under way")
}

func TestProtectionIsInheritedEarlyOrLate(t *testing.T) {
	for _, early := range []bool{false, true} {
		stub, _ := full(t, awstest.Group{Max: 9})
		stub.InheritEarly(early)
		stub.SetDesired("gpu", 1)
		stub.BeginLaunch("gpu", 1)
		stub.SetGroupProtected("gpu", true)
		stub.Arrive("gpu", 1, true)
		assert.Equal(t, !early, stub.Group("gpu").Instances[0].Protected)
	}
}

func TestScaleInMayBePutOff(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 3})
	stub.DeferScaleIn(true)
	require.NoError(t, client.setDesired("gpu", 2))
	require.NoError(t, client.setDesired("gpu", 3))
	stub.Step()
	assert.Empty(t, stub.Kills(), "raised in time")
	require.NoError(t, client.setDesired("gpu", 2))
	stub.Step()
	assert.Len(t, stub.Victims(), 1)
}

func TestEndingWhatEndsAlready(t *testing.T) {
	for _, row := range []struct {
		do      awstest.RepeatedTerminate
		desired int
		victims int
		code    string
	}{
		{awstest.DecrementsAgain, 1, 1, ""},
		{awstest.ChangesNothing, 2, 0, ""},
		{awstest.IsRefused, 2, 0, "ScalingActivityInProgress"},
	} {
		stub, client := full(t, awstest.Group{Max: 9, Desired: 3})
		stub.OnRepeatedTerminate(row.do)
		id := stub.Group("gpu").IDs()[0]
		require.NoError(t, client.terminate(id))
		assert.Equal(t, row.code, codeOf(client.terminate(id)))
		assert.Equal(t, row.desired, stub.Group("gpu").Desired)
		assert.Len(t, stub.Victims(), row.victims)
		assert.Len(t, deaths(stub, awstest.Asked), 1)
	}
}

func TestEndingSeveralAtOnce(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 3})
	ids := stub.Group("gpu").IDs()
	end := func(ids ...string) (*autoscaling.TerminateInstanceInAutoScalingGroupOutput, error) {
		return client.scaling.TerminateInstanceInAutoScalingGroup(t.Context(), &autoscaling.TerminateInstanceInAutoScalingGroupInput{
			AutoScalingGroupName: aws.String("gpu"), InstanceIds: ids, ShouldDecrementDesiredCapacity: aws.Bool(true),
		})
	}
	_, err := end(ids[0], "i-00000000000000bad")
	require.Equal(t, "ValidationError", codeOf(err))
	require.Empty(t, stub.Kills(), "all or none")
	out, err := end(ids[:2]...)
	require.NoError(t, err)
	assert.Len(t, out.Activities, 2)
	assert.Equal(t, 1, stub.Group("gpu").Desired)
	assert.Len(t, deaths(stub, awstest.Asked), 2)
}

func TestSuspendedProcesses(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 2})
	_, err := client.scaling.SuspendProcesses(t.Context(), &autoscaling.SuspendProcessesInput{AutoScalingGroupName: aws.String("gpu"), ScalingProcesses: []string{"Launch", "Terminate"}})
	require.NoError(t, err)
	boots := stub.Add("gpu", awstest.Pending, 1)[0]
	require.NoError(t, client.setDesired("gpu", 5))
	stub.Launch("gpu", 5)
	require.Equal(t, 3, stub.Group("gpu").Live(), "nothing is launched")
	require.NoError(t, client.setDesired("gpu", 0))
	require.Len(t, stub.Kills(), 1)
	assert.Equal(t, boots, stub.Kills()[0].Instance, "only what is in service is spared")
	_, err = client.scaling.ResumeProcesses(t.Context(), &autoscaling.ResumeProcessesInput{AutoScalingGroupName: aws.String("gpu")})
	require.NoError(t, err)
	assert.Len(t, stub.Victims(), 2, "what has waited happens")
}

func TestHooksHoldInstances(t *testing.T) {
	stub := awstest.NewStub(t)
	client := newClients(t, stub.URL())
	stub.CreateGroup(awstest.Group{Name: "gpu", Desired: 1, LaunchHook: true, TerminateHook: true})
	stub.Settle()
	id := stub.Group("gpu").IDs(awstest.PendingWait)[0]
	stub.Settle()
	require.NotEmpty(t, stub.Group("gpu").IDs(awstest.PendingWait), "it waits")
	stub.CompleteHook(id)
	require.NotEmpty(t, stub.Group("gpu").IDs(awstest.PendingProceed))
	stub.Settle()
	require.NotEmpty(t, stub.Group("gpu").IDs(awstest.InService))

	require.NoError(t, client.terminate(id))
	stub.Settle()
	require.NotEmpty(t, stub.Group("gpu").IDs(awstest.TerminatingWait), "it waits again")
	stub.CompleteHook(id)
	stub.Settle()
	assert.Empty(t, stub.Group("gpu").Instances)
}

func TestStandbyIsOutsideOfTheDesiredCapacity(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 2})
	ids := stub.Group("gpu").IDs()
	stub.SetState(ids[0], awstest.Standby)
	stub.SetDesired("gpu", 1)
	stub.Settle()
	require.Empty(t, stub.Kills())
	require.NoError(t, client.terminate(ids[0]))
	assert.Equal(t, 1, stub.Group("gpu").Desired, "nothing is taken off for it")
}

func TestWeights(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "gpu", Max: 9, Desired: 5, Overrides: []awstest.Override{{InstanceType: "g4dn.xlarge", Weight: 2}}})
	stub.Settle()
	g := stub.Group("gpu")
	assert.Len(t, g.Instances, 3, "the last one goes over")
	assert.Equal(t, 6, g.Live())
	stub.SetDesired("gpu", 2)
	assert.Len(t, stub.Victims(), 2)
	assert.True(t, g.Instances[0].Spot)
}

func TestWhatOthersDo(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 3})
	ids := stub.Group("gpu").IDs()
	stub.End(ids[0], awstest.Interrupted)
	stub.Settle()
	assert.Len(t, stub.Group("gpu").IDs(awstest.InService), 3, "it is replaced")
	stub.Detach(ids[1], true)
	assert.Equal(t, 2, stub.Group("gpu").Desired)
	stub.SetHealth(ids[2], "Unhealthy")
	assert.Equal(t, "Unhealthy", stub.Group("gpu").Instances[0].Health)
	stub.Record("gpu", "Cancelled", "Launching a new EC2 instance", "on request")
	assert.Equal(t, "Cancelled", stub.Group("gpu").Activities[0].Status)
	stub.DeleteGroup("gpu")
	out, err := client.scaling.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{AutoScalingGroupNames: []string{"gpu"}})
	require.NoError(t, err)
	assert.Empty(t, out.AutoScalingGroups)
	assert.Empty(t, stub.Victims())
}

func TestUpdatingBounds(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 3})
	update := func(least, most int32) error {
		_, err := client.scaling.UpdateAutoScalingGroup(t.Context(), &autoscaling.UpdateAutoScalingGroupInput{AutoScalingGroupName: aws.String("gpu"), MinSize: &least, MaxSize: &most})
		return err
	}
	require.NoError(t, update(0, 2))
	assert.Equal(t, 2, stub.Group("gpu").Desired, "it follows the bounds")
	require.NoError(t, update(4, 5))
	assert.Equal(t, 4, stub.Group("gpu").Desired)
	assert.Equal(t, "ValidationError", codeOf(update(6, 5)))
}

func TestTheLedger(t *testing.T) {
	stub, client := full(t, awstest.Group{Max: 9, Desired: 2})
	require.NoError(t, client.setDesired("gpu", 2))
	require.Error(t, client.setDesired("gpu", 99))
	client.group(t)
	all := stub.Calls()
	require.Len(t, all, 3)
	assert.Equal(t, []string{"SetDesiredCapacity", "SetDesiredCapacity", "DescribeAutoScalingGroups"}, []string{all[0].Action, all[1].Action, all[2].Action})
	assert.Equal(t, "99", all[1].Params["DesiredCapacity"])
	assert.Equal(t, []string{"ok", "ValidationError", "ok"}, []string{all[0].Outcome, all[1].Outcome, all[2].Outcome})
	assert.Equal(t, []bool{true, false, true}, []bool{all[0].Applied, all[1].Applied, all[2].Applied})
	assert.Equal(t, []string{"gpu"}, all[2].Names("AutoScalingGroupNames.member"))
	assert.Len(t, stub.Calls("SetDesiredCapacity"), 2)
	assert.Equal(t, map[string]int{"SetDesiredCapacity": 2, "DescribeAutoScalingGroups": 1}, stub.Counts())
	assert.Equal(t, 1, stub.Count("DescribeAutoScalingGroups"))
	assert.Equal(t, []string{"autoscaling:DescribeAutoScalingGroups", "autoscaling:SetDesiredCapacity"}, stub.Actions())
	stub.End(stub.Group("gpu").IDs()[0], awstest.Unhealthy)
	require.Len(t, stub.Kills(), 1)
	assert.Equal(t, 3, stub.Kills()[0].Call)
}

func TestAnswersAreDatedByTheStubsClock(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.Advance(time.Hour)
	for _, url := range []string{stub.URL(), awstest.NewProxy(t, stub.URL()).URL()} {
		answer, err := http.Post(url, "application/x-www-form-urlencoded", strings.NewReader("Action=DescribeAutoScalingGroups&Version=2011-01-01"))
		require.NoError(t, err)
		answer.Body.Close()
		assert.Equal(t, "Sat, 01 Aug 2026 13:00:00 GMT", answer.Header.Get("Date"))
	}
	http.DefaultClient.CloseIdleConnections()
	own := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	assert.Equal(t, own, awstest.NewStub(t, awstest.WithClock(func() time.Time { return own })).Now())
}

func BenchmarkDescribeTenThousandInstances(b *testing.B) {
	stub := awstest.NewStub(b)
	for n := range 1000 {
		stub.CreateGroup(awstest.Group{Name: fmt.Sprintf("g%04d", n), Desired: 10})
	}
	stub.Settle()
	client := newClients(b, stub.URL())
	b.Run("with the SDK's decoding", func(b *testing.B) {
		for b.Loop() {
			pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(client.scaling, &autoscaling.DescribeAutoScalingGroupsInput{MaxRecords: aws.Int32(100)})
			for pages.HasMorePages() {
				if _, err := pages.NextPage(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			for from := 0; from < 1000; from += 100 {
				form := fmt.Sprintf("Action=DescribeAutoScalingGroups&Version=2011-01-01&MaxRecords=100&NextToken=%d", from)
				answer, err := http.Post(stub.URL(), "application/x-www-form-urlencoded", strings.NewReader(form))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, answer.Body); err != nil {
					b.Fatal(err)
				}
				answer.Body.Close()
			}
		}
	})
	http.DefaultClient.CloseIdleConnections()
}
