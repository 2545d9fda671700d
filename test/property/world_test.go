package property

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// groupIDs are the groups that a file may have; fleeting comes and goes.
var groupIDs = []string{"t4", "a100", "fleeting"}

var gpusPerNode = map[string]int{"t4": 1, "a100": 8, "fleeting": 2}

// world is a provider, its cloud, and what the test remembers of both.
type world struct {
	*rapid.T
	clock  time.Time
	memory *simulated.Memory
	api    simulated.API
	seed   uint64

	config *config.Config
	cloud  *simulated.Cloud
	server *provider.Server

	// retired holds every id that was seen and is gone.
	seen, gone map[string]bool
	deleted    map[string][]string // what DeleteNodes accepted, by group
	growth     []growth
	// outside is true after the cloud has changed a group by itself, until the
	// provider has read it: a limit can only be held against what is known.
	outside bool
	// surgeUnclear is true once something other than growth has moved a surge.
	surgeUnclear bool
}

// growth is a rise of a target that an IncreaseSize brought.
type growth struct {
	at    time.Time
	group string
	nodes int
}

func newWorld(t *rapid.T) *world {
	w := &world{
		T:       t,
		clock:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		memory:  &simulated.Memory{},
		seed:    rapid.Uint64().Draw(t, "seed"),
		seen:    map[string]bool{},
		gone:    map[string]bool{},
		deleted: map[string][]string{},
	}
	if rapid.Bool().Draw(t, "flaky") {
		w.api = simulated.API{ErrorRate: 0.1, LostAnswerRate: 0.2}
	}
	w.config = w.file()
	w.startCloud()
	w.startServer()
	return w
}

// file draws a node group file.
func (w *world) file() *config.Config {
	c := &config.Config{GPULabel: "accelerator", Cloud: config.Cloud{Simulated: &config.Simulated{}}}
	for _, id := range groupIDs {
		if id == "fleeting" && rapid.Bool().Draw(w.T, "without fleeting") {
			continue
		}
		g := config.NodeGroup{
			ID: id, OS: "linux", Arch: "amd64",
			Labels: map[string]string{"accelerator": "nvidia-" + id},
			Capacity: corev1.ResourceList{
				"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110"),
				"nvidia.com/gpu": *resource.NewQuantity(int64(gpusPerNode[id]), resource.DecimalSI),
			},
			MaxSize: rapid.IntRange(0, 6).Draw(w.T, "max of "+id),
		}
		g.MinSize = rapid.IntRange(0, min(2, g.MaxSize)).Draw(w.T, "min of "+id)
		if rapid.IntRange(0, 4).Draw(w.T, "retired "+id) == 0 {
			g.Retired, g.MinSize = true, 0
		}
		if rapid.Bool().Draw(w.T, "surge of "+id) {
			g.Surge = &config.Surge{Max: rapid.IntRange(1, 3).Draw(w.T, "surge"), Window: config.Duration{Duration: 5 * time.Minute}}
		}
		c.NodeGroups = append(c.NodeGroups, g)
	}
	limit := resource.NewQuantity(int64(rapid.IntRange(0, 24).Draw(w.T, "gpu quota")), resource.DecimalSI)
	c.Quotas = []config.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Limit: limit, NodeGroups: []string{"*"}}}
	return c
}

func (w *world) now() time.Time { return w.clock }

func (w *world) startCloud() {
	w.seed++
	pretend, err := simulated.New(simulated.Options{
		Memory: w.memory, LaunchDelay: 2 * time.Second, BootDelay: 40 * time.Second, TerminateDelay: 10 * time.Second,
		Capacity: map[string]int{"a100": 2}, LaunchErrorRate: 0.1, API: w.api,
		Now: w.now, Rand: rand.NewPCG(w.seed, 1),
	})
	if err != nil {
		w.Fatalf("starting the cloud: %v", err)
	}
	w.cloud = pretend
}

// startServer starts the provider anew, as after a kill -9.
func (w *world) startServer() {
	for range 100 { // the flaky cloud fails one call in ten
		server, err := provider.New(context.Background(), provider.Options{
			Catalogue: nodegroup.New(w.config, w.cloud.TemplateID), Backend: w.cloud, Now: w.now,
		})
		if err == nil {
			w.server, w.outside = server, false
			return
		}
		if !errors.Is(err, cloud.ErrUnavailable) {
			w.Fatalf("starting the provider: %v", err)
		}
	}
	w.Fatalf("the provider did not start in 100 tries")
}

// truth is what the cloud itself says, by group. It is asked past the faults
// that calls of the provider meet with.
func (w *world) truth() map[string]cloud.Group {
	for range 200 {
		groups, err := w.cloud.Describe(context.Background())
		if err != nil {
			continue
		}
		truth := map[string]cloud.Group{}
		for _, g := range groups {
			truth[g.ID] = g
		}
		return truth
	}
	w.Fatalf("the cloud never answered")
	return nil
}

// live are the machines that run or boot.
func live(groups map[string]cloud.Group) map[string]bool {
	machines := map[string]bool{}
	for _, g := range groups {
		for _, i := range g.Instances {
			if !i.Placeholder && i.State != cloud.Deleting {
				machines[i.ID] = true
			}
		}
	}
	return machines
}

func (w *world) ids() []string {
	var ids []string
	for _, g := range w.config.NodeGroups {
		ids = append(ids, g.ID)
	}
	return ids
}

func (w *world) drawGroup() string { return rapid.SampledFrom(w.ids()).Draw(w.T, "group") }

func (w *world) group(id string) config.NodeGroup {
	for _, g := range w.config.NodeGroups {
		if g.ID == id {
			return g
		}
	}
	w.Fatalf("no group %s", id)
	return config.NodeGroup{}
}

// call is a context that is sometimes over already.
func (w *world) call() (context.Context, bool) {
	if rapid.IntRange(0, 9).Draw(w.T, "too late") > 0 {
		return context.Background(), false
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, true
}

func (w *world) target(id string) int {
	response, err := w.server.NodeGroupTargetSize(context.Background(), &proto.NodeGroupTargetSizeRequest{Id: id})
	if err != nil {
		w.Fatalf("NodeGroupTargetSize(%s): %v", id, err)
	}
	return int(response.GetTargetSize())
}

func (w *world) nodes(id string) []*proto.Instance {
	response, err := w.server.NodeGroupNodes(context.Background(), &proto.NodeGroupNodesRequest{Id: id})
	if err != nil {
		w.Fatalf("NodeGroupNodes(%s): %v", id, err)
	}
	return response.GetInstances()
}

func (w *world) maximum(id string) int {
	response, err := w.server.NodeGroups(context.Background(), &proto.NodeGroupsRequest{})
	if err != nil {
		w.Fatalf("NodeGroups: %v", err)
	}
	for _, g := range response.GetNodeGroups() {
		if g.GetId() == id {
			return int(g.GetMaxSize())
		}
	}
	w.Fatalf("NodeGroups does not list %s", id)
	return 0
}

// gpus is what all groups use of the quota, what is terminating included.
func gpus(groups map[string]cloud.Group) int {
	n := 0
	for id, g := range groups {
		n += len(g.Instances) * gpusPerNode[id]
	}
	return n
}

func (w *world) gpuLimit() int { return int(w.config.Quotas[0].Limit.Value()) }

// unsure says whether an error leaves open what has happened.
func unsure(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	default:
		return false
	}
}
