package aws

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// underWay calls then while the answer of the first call of an action is on its
// way back: AWS has carried it out, and nobody here knows yet.
type underWay struct {
	awssdk.HTTPClient
	action string
	then   func()
	done   atomic.Bool
}

func (u *underWay) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := u.HTTPClient.Do(r)
	if bytes.Contains(body, []byte("Action="+u.action+"&")) && u.done.CompareAndSwap(false, true) {
		u.then()
	}
	return answer, err
}

// interrupted is a Backend with a group of three failed placeholders.
func interrupted(t *testing.T, action string) (*Cloud, *awstest.Stub, *underWay, cloud.Group) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "train-t4", Max: 9, Desired: 3, Protected: true})
	stub.Capacity("train-t4", 0, noCapacity)
	stub.Step()
	sdk := awstest.Config(t, stub.URL())
	u := &underWay{HTTPClient: sdk.HTTPClient, action: action}
	u.done.Store(true)
	sdk.HTTPClient = u
	c, err := open(sdk, Options{Now: stub.Now})
	require.NoError(t, err)
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	g := get(t, c)
	u.done.Store(false)
	return c, stub, u, g
}

// An answer that was on its way during a write is older than what is known.
func TestOldAnswerIsDropped(t *testing.T) {
	c, _, u, g := interrupted(t, "DescribeAutoScalingGroups")
	var raised cloud.Group
	u.then = func() {
		var err error
		raised, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
		require.NoError(t, err)
	}
	old := get(t, c)
	require.Equal(t, 5, raised.Target)
	require.Equal(t, raised, old)
	require.Subset(t, idsOf(raised, isPlaceholder), idsOf(g, isPlaceholder))
	require.Equal(t, idsOf(raised, isPlaceholder), idsOf(get(t, c), isPlaceholder))
}

// A Describe that sees the lowered value before the Cancel is over drops the
// placeholders that were named, and no others.
func TestDescribeDuringCancel(t *testing.T) {
	c, _, u, g := interrupted(t, setDesired)
	all := idsOf(g, isPlaceholder)
	left := []string{all[0], all[2]}
	u.then = func() { require.Equal(t, left, idsOf(get(t, c), isPlaceholder)) }
	g, given, err := c.Cancel(t.Context(), "t4", cloudtest.These(all[1:2]))
	require.NoError(t, err)
	require.True(t, u.done.Load())
	require.Equal(t, all[1:2], given)
	require.Equal(t, left, idsOf(g, isPlaceholder))
	require.Equal(t, left, idsOf(get(t, c), isPlaceholder))
}

// A value that is neither ours nor from before is somebody else's, and counts, also
// when a reading has shown it before our answer came.
func TestSomebodyElseDuringAWrite(t *testing.T) {
	c, stub, u, _ := interrupted(t, setDesired)
	u.then = func() {
		stub.SetDesired("train-t4", 7)
		require.Equal(t, 7, get(t, c).Target)
	}
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	require.True(t, u.done.Load())
	require.Equal(t, 7, g.Target)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.NoError(t, err)
	require.Equal(t, 8, stub.Group("train-t4").Desired, "nothing of it is taken back")
}

// The other way round: somebody else's value was seen, and ours came after it.
func TestSomebodyElseBeforeAWrite(t *testing.T) {
	c, stub, _, _ := interrupted(t, "")
	stub.Faults(awstest.Rule{Action: setDesired, Times: 1, Fault: awstest.Do(func() {
		stub.SetDesired("train-t4", 7)
		g, err := c.Describe(t.Context(), "t4")
		assert.NoError(t, err)
		assert.Equal(t, 7, g[0].Target)
	})})
	g, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.NoError(t, err)
	require.Equal(t, 5, stub.Group("train-t4").Desired, "it is an absolute value")
	require.Equal(t, 5, g.Target)
}

// What is found ended is seen by the next reading, also when the first one lags.
func TestLostAnswerOfADeleteAndAReadingThatLags(t *testing.T) {
	c, stub := one(t, awstest.Group{Desired: 1}, Options{})
	stub.Faults(
		awstest.Rule{Action: terminate, Times: 1, Fault: awstest.CutAfter()},
		awstest.Rule{Action: "DescribeAutoScalingGroups", Skip: 2, Times: 1, Fault: awstest.Stale()},
	)
	_, _, err := c.Delete(t.Context(), "t4", ids(get(t, c)))
	require.NoError(t, err)
	require.Zero(t, get(t, c).Target)
}
