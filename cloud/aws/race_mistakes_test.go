package aws

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/cloud/cloudtest"
)

// rival replaces the Backend or its connection, to show that the races find it.
type rival struct {
	options    Options
	connection func(awssdk.HTTPClient) awssdk.HTTPClient
	backend    func(cloud.Backend, *awstest.Stub) cloud.Backend
}

// again sends a call once more when its answer was lost, as some clients do.
type again struct{ awssdk.HTTPClient }

func (a again) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := a.HTTPClient.Do(r)
	if err != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		return a.HTTPClient.Do(r)
	}
	return answer, nil
}

// careless is a Backend with one mistake.
type careless struct {
	cloud.Backend
	increase func(ctx context.Context, id string, delta int) (cloud.Group, error)
	cancel   func(ctx context.Context, id string, names []string) (cloud.Group, []string, error)
	describe func(ctx context.Context, ids ...string) ([]cloud.Group, error)
}

func (c careless) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	if c.increase != nil {
		return c.increase(ctx, id, more(cloud.Group{}))
	}
	return c.Backend.Increase(ctx, id, more)
}

func (c careless) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	if c.cancel != nil {
		return c.cancel(ctx, id, which(cloud.Group{}))
	}
	return c.Backend.Cancel(ctx, id, which)
}

func (c careless) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	if c.describe != nil {
		return c.describe(ctx, ids...)
	}
	return c.Backend.Describe(ctx, ids...)
}

// rivals make the mistakes that the cases tell of.
var rivals = map[string]struct {
	rival rival
	found string
}{
	"B-01, B-02, B-03: nothing is protected":         {rival{options: Options{ScaleInProtection: Ignore}}, "nobody asked for its end"},
	"B-16: lost answers are followed by another try": {rival{connection: func(c awssdk.HTTPClient) awssdk.HTTPClient { return again{c} }}, ""},
	"B-14: an increase in doubt is repeated": {rival{backend: func(b cloud.Backend, _ *awstest.Stub) cloud.Backend {
		return careless{Backend: b, increase: func(ctx context.Context, id string, delta int) (cloud.Group, error) {
			g, err := b.Increase(ctx, id, cloudtest.Exactly(delta))
			if isInDoubt(err) {
				return b.Increase(ctx, id, cloudtest.Exactly(delta))
			}
			return g, err
		}}
	}}, "increase by"},
	"all are said to be given up": {rival{backend: func(b cloud.Backend, _ *awstest.Stub) cloud.Backend {
		return careless{Backend: b, cancel: func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
			g, given, err := b.Cancel(ctx, id, cloudtest.These(names))
			if err == nil {
				given = names
			}
			return g, given, err
		}}
	}}, "given up"},
	"B-04: what is missing is taken off by a count": {rival{backend: func(b cloud.Backend, stub *awstest.Stub) cloud.Backend {
		return careless{Backend: b, cancel: func(_ context.Context, _ string, names []string) (cloud.Group, []string, error) {
			g := stub.Group(asgOfRaces)
			stub.SetDesired(asgOfRaces, max(0, g.Desired-len(names)-1))
			return cloud.Group{}, names, nil
		}}
	}}, ""},
	"what is shown is one look behind": {rival{backend: func(b cloud.Backend, _ *awstest.Stub) cloud.Backend {
		var last []cloud.Group
		return careless{Backend: b, describe: func(ctx context.Context, ids ...string) ([]cloud.Group, error) {
			groups, err := b.Describe(ctx, ids...)
			shown := last
			last = groups
			if shown == nil {
				shown = groups
			}
			return shown, err
		}}
	}}, ""},
}

// scope ends what a run has opened when it is over.
type scope struct{ ends []func() }

func (*scope) Helper() {}

func (s *scope) Cleanup(end func()) { s.ends = append(s.ends, end) }

func (s *scope) close() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// TestRacesFindMistakes: a property that nothing can break says nothing.
func TestRacesFindMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("what it checks is the test, not the Backend")
	}
	for name, row := range rivals {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(500) {
				random := rand.New(rand.NewPCG(seed, 1))
				s := &scope{}
				err := play(s, func(n int, _ string) int { return random.IntN(n) }, row.rival)
				s.close()
				if err != nil {
					t.Logf("found by run %d: %v", seed, err)
					require.ErrorContains(t, err, row.found)
					return
				}
			}
			t.Error("500 runs have not found it")
		})
	}
}
