package aws

import (
	"net/http"
	"slices"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opened is a Backend on a Stub, with the Stub's clock.
func opened(t testing.TB, stub *awstest.Stub, o Options) *Cloud {
	t.Helper()
	sdk := awstest.Config(t, stub.URL())
	sdk.Retryer = func() awssdk.Retryer { // the SDK's own, with pauses that a test can wait for
		return retry.NewStandard(func(s *retry.StandardOptions) {
			s.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
		})
	}
	sdk.HTTPClient = dated{sdk.HTTPClient, stub}
	if o.Now == nil {
		o.Now = stub.Now
	}
	c, err := open(sdk, o)
	require.NoError(t, err)
	return c
}

// dated puts the Stub's clock into its answers, as AWS has its own.
type dated struct {
	awssdk.HTTPClient
	stub *awstest.Stub
}

func (d dated) Do(r *http.Request) (*http.Response, error) {
	answer, err := d.HTTPClient.Do(r)
	if err == nil {
		answer.Header.Set("Date", d.stub.Now().UTC().Format(http.TimeFormat))
	}
	return answer, err
}

// one is a Backend with one group, t4, on the ASG train-t4, of which all that is
// desired runs.
func one(t testing.TB, spec awstest.Group, o Options) (*Cloud, *awstest.Stub) {
	t.Helper()
	stub := awstest.NewStub(t)
	spec.Name = "train-t4"
	if spec.Max == 0 {
		spec.Max = 100
	}
	stub.CreateGroup(spec)
	stub.Settle()
	c := opened(t, stub, o)
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	return c, stub
}

func get(t testing.TB, c *Cloud) cloud.Group {
	t.Helper()
	groups, err := c.Describe(t.Context())
	require.NoError(t, err)
	at := slices.IndexFunc(groups, func(g cloud.Group) bool { return g.ID == "t4" })
	require.NotEqual(t, -1, at)
	return groups[at]
}

func idsOf(g cloud.Group, wanted func(cloud.Instance) bool) []string {
	var ids []string
	for _, i := range g.Instances {
		if wanted(i) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

func isPlaceholder(i cloud.Instance) bool { return i.Placeholder }

func isMachine(i cloud.Instance) bool { return !i.Placeholder }
