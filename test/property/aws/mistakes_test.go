package aws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/config"
)

// mistake is a provider with one mistake. Without any it is the provider.
type mistake struct {
	options func(*aws.Options)
	backend func(cloud.Backend) cloud.Backend
	file    func(*config.Config)
	calls   func(proto.CloudProviderServer) proto.CloudProviderServer
	found   string // what the search says
}

var mistakes = map[string]mistake{
	// What is not known yet.
	"a lost answer counts as nothing done": {backend: func(b cloud.Backend) cloud.Backend {
		return careless{Backend: b, increase: func(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
			g, err := b.Increase(ctx, id, more)
			if errors.Is(err, cloud.ErrUnknownOutcome) {
				return cloud.Group{}, fmt.Errorf("not done: %w", cloud.ErrUnavailable)
			}
			return g, err
		}}
	}},
	"a reading from before an acknowledged write is shown": {backend: func(b cloud.Backend) cloud.Backend {
		var last []cloud.Group
		return careless{Backend: b, describe: func(ctx context.Context, ids ...string) ([]cloud.Group, error) {
			groups, err := b.Describe(ctx, ids...)
			if err != nil || len(ids) > 0 {
				return groups, err
			}
			shown := slices.Clone(last)
			if last = groups; shown == nil {
				shown = groups
			}
			for n := range shown {
				shown[n].Revision = groups[n].Revision // the newest
			}
			return shown, nil
		}}
	}},
	"a caller is thought to read every answer": {calls: func(s proto.CloudProviderServer) proto.CloudProviderServer {
		return mistaken{CloudProviderServer: s, increase: func(ctx context.Context, req *proto.NodeGroupIncreaseSizeRequest) (*proto.NodeGroupIncreaseSizeResponse, error) {
			longer, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			return s.NodeGroupIncreaseSize(longer, req)
		}}
	}, found: "before the deadline of its call"},

	// What is in flight.
	"nothing is absorbed": {backend: func(b cloud.Backend) cloud.Backend {
		return careless{Backend: b, increase: func(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
			return b.Increase(ctx, id, func(g cloud.Group) int {
				for n, i := range g.Instances {
					if i.State == cloud.Creating {
						g.Instances[n].State = cloud.Running
					}
				}
				return more(g)
			})
		}}
	}, found: "nodes are needed"},
	"each increase is absorbed": {calls: func(s proto.CloudProviderServer) proto.CloudProviderServer {
		return mistaken{CloudProviderServer: s, increase: func(ctx context.Context, req *proto.NodeGroupIncreaseSizeRequest) (*proto.NodeGroupIncreaseSizeResponse, error) {
			answer, err := s.NodeGroupIncreaseSize(ctx, req)
			_, _ = s.GPULabel(ctx, &proto.GPULabelRequest{})
			return answer, err
		}}
	}, found: "in a row"},
	"a new autoscaler is not noticed": {calls: func(s proto.CloudProviderServer) proto.CloudProviderServer {
		return mistaken{CloudProviderServer: s, label: func() {}}
	}, found: "nodes are needed"},

	// What is lowered.
	"nothing is protected before it is lowered": {options: func(o *aws.Options) { o.ScaleInProtection = aws.Ignore }},
	"the minimum is ignored": {file: func(c *config.Config) {
		for n := range c.NodeGroups {
			c.NodeGroups[n].MinSize = 0
		}
	}, found: "its minimum is"},
	"what arrives during a cancellation is not kept": {options: func(o *aws.Options) { o.Client = &once{HTTPClient: o.Client} }, found: "not kept"},
	"all placeholders are said to be given up": {backend: func(b cloud.Backend) cloud.Backend {
		return careless{Backend: b, cancel: func(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
			var named []string
			g, given, err := b.Cancel(ctx, id, func(now cloud.Group) []string {
				named = which(now)
				return named
			})
			if err == nil {
				given = named
			}
			return g, given, err
		}}
	}},

	// Limits.
	"the quota is not shared": {file: func(c *config.Config) {
		for n := range c.Quotas {
			c.Quotas[n].NodeGroups = pools[:1]
		}
	}},
	"the surge is of one group": {file: func(c *config.Config) {
		first, second := c.Quotas[0], c.Quotas[0]
		first.Surge = nil
		second.Name, second.NodeGroups = "t4", pools[:1]
		third := second
		third.Name, third.NodeGroups = "l4", pools[1:]
		c.Quotas = []config.Quota{first, second, third}
	}, found: "the surge is"},
	"a restart resets the surge": {backend: func(b cloud.Backend) cloud.Backend {
		started := false
		return careless{Backend: b, describe: func(ctx context.Context, ids ...string) ([]cloud.Group, error) {
			groups, err := b.Describe(ctx, ids...)
			if started {
				return groups, err
			}
			started = true
			for g := range groups {
				for i := range groups[g].Instances {
					groups[g].Instances[i].Since = time.Time{}
				}
			}
			return groups, err
		}}
	}, found: "the surge is"},
}

// careless is a Backend with a mistake.
type careless struct {
	cloud.Backend
	increase func(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error)
	cancel   func(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error)
	describe func(ctx context.Context, ids ...string) ([]cloud.Group, error)
}

func (c careless) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	if c.increase != nil {
		return c.increase(ctx, id, more)
	}
	return c.Backend.Increase(ctx, id, more)
}

func (c careless) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	if c.cancel != nil {
		return c.cancel(ctx, id, which)
	}
	return c.Backend.Cancel(ctx, id, which)
}

func (c careless) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	if c.describe != nil {
		return c.describe(ctx, ids...)
	}
	return c.Backend.Describe(ctx, ids...)
}

// mistaken is a service with a mistake.
type mistaken struct {
	proto.CloudProviderServer
	increase func(context.Context, *proto.NodeGroupIncreaseSizeRequest) (*proto.NodeGroupIncreaseSizeResponse, error)
	label    func()
}

func (m mistaken) NodeGroupIncreaseSize(ctx context.Context, req *proto.NodeGroupIncreaseSizeRequest) (*proto.NodeGroupIncreaseSizeResponse, error) {
	if m.increase != nil {
		return m.increase(ctx, req)
	}
	return m.CloudProviderServer.NodeGroupIncreaseSize(ctx, req)
}

func (m mistaken) GPULabel(ctx context.Context, req *proto.GPULabelRequest) (*proto.GPULabelResponse, error) {
	if m.label != nil {
		m.label()
		return &proto.GPULabelResponse{}, nil
	}
	return m.CloudProviderServer.GPULabel(ctx, req)
}

// once fails the reading that follows a lowered desired capacity in the same call: what has
// arrived meanwhile is not seen.
type once struct {
	awssdk.HTTPClient
	mu      sync.Mutex
	lowered *call
}

func (o *once) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, err
	}
	by, _ := r.Context().Value(callKey{}).(*call)
	o.mu.Lock()
	blind := form.Get("Action") == describe && o.lowered == by
	if form.Get("Action") == setDesired && (by.kind == "decrease" || by.kind == "delete") {
		o.lowered = by
	}
	o.mu.Unlock()
	if blind {
		return nil, io.ErrUnexpectedEOF
	}
	return o.HTTPClient.Do(r)
}

// silent drops what a sequence says.
type silent struct{ *testing.T }

func (silent) Logf(string, ...any) {}

// TestCapacityFindsMistakes: a search that finds nothing proves nothing.
func TestCapacityFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("it checks the test, not the provider")
	}
	for name, m := range mistakes {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(sequences) {
				random := rand.New(rand.NewPCG(seed, 1))
				var err error
				synctest.Test(t, func(t *testing.T) {
					err = play(silent{t}, func(n int, _ string) int { return random.IntN(n) }, m)
				})
				if err != nil {
					t.Logf("found by sequence %d: %v", seed, err)
					require.ErrorContains(t, err, m.found)
					return
				}
			}
			t.Errorf("%d sequences have not found it", sequences)
		})
	}
}
