package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// pools are the node groups, and the Auto Scaling groups of the same names. They share a
// quota and its surge.
var pools = []string{"t4", "l4"}

var gpusOf = map[string]int{"t4": 1, "l4": 2}

const surgeWindow = 5 * time.Minute

// draw returns a number below n, from rapid or from a seed.
type draw func(n int, label string) int

// tester is what a sequence needs of a test.
type tester interface {
	awstest.TB
	Logf(format string, arguments ...any)
}

// region is an AWS, the provider, a Cluster Autoscaler, and the account of what must hold.
type region struct {
	draw    draw
	log     func(format string, arguments ...any)
	mistake mistake
	may     map[string]bool // the kinds of trouble that this sequence has
	stub    *awstest.Stub
	ticks   atomic.Int64

	file      *config.Config
	quota     int // GPUs
	surge     int // GPUs within surgeWindow
	readEvery time.Duration

	resting bool // no more trouble
	process *process
	ca      *autoscaler
	errored map[string]bool // placeholders that are known to have failed
	past    map[string]bool // placeholders that were listed and are gone
	listed  map[string]bool // placeholders that were listed last

	mu sync.Mutex // the wire is used by several goroutines
	account
}

// process is one life of the provider.
type process struct {
	proto.CloudProviderServer
	registry *prometheus.Registry
	dead     atomic.Bool // it was killed: nothing that it sends arrives any more
}

func newRegion(t tester, d draw, m mistake) (*region, error) {
	w := &region{
		draw: d, log: t.Logf, mistake: m, may: map[string]bool{}, errored: map[string]bool{}, past: map[string]bool{},
		account: newAccount(),
	}
	w.stub = awstest.NewStub(t, awstest.WithSeed(uint64(d(1000, "seed"))), awstest.WithClock(w.now))
	for _, kind := range kindsOfTrouble {
		w.may[kind] = d(3, kind) == 0
	}
	w.file = w.configure()
	for _, id := range pools {
		w.stub.CreateGroup(awstest.Group{
			Name: id, Max: 8, Desired: w.group(id).MinSize + d(2, "desired of "+id), Protected: d(2, "protected") == 1,
			Zones: []string{"us-east-1a", "us-east-1b"}[:1+d(2, "zones")],
		})
		w.need[id] = w.stub.Group(id).Desired
	}
	w.stub.Settle()
	w.stub.WorstVictims(d(2, "worst victims") == 1)
	w.readEvery = []time.Duration{0, 30 * time.Second}[d(2, "read every")]
	w.ca = newAutoscaler(w)
	return w, w.start()
}

// now is the clock of the bubble, but no two readings of it are equal: AWS's activities
// have to have an order.
func (w *region) now() time.Time {
	return time.Now().Add(time.Duration(w.ticks.Add(1)) * time.Microsecond)
}

// say tells what happens, for the output of a sequence that fails.
func (w *region) say(format string, arguments ...any) {
	w.log("%s  "+format, append([]any{time.Now().Format("04:05.000")}, arguments...)...)
}

func (t truth) String() string {
	return fmt.Sprintf("{desired %d, live %d, in service %d, leaving %d}", t.desired, t.live, t.inService, t.leaving)
}

func (w *region) configure() *config.Config {
	c := &config.Config{GPULabel: "accelerator", Cloud: config.Cloud{AWS: &config.AWS{Region: "us-east-1"}}}
	for _, id := range pools {
		g := config.NodeGroup{
			ID: id, AutoScalingGroup: id, OS: "linux", Arch: "amd64",
			Labels: map[string]string{"accelerator": "nvidia-" + id},
			Capacity: corev1.ResourceList{
				"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110"),
				"nvidia.com/gpu": *resource.NewQuantity(int64(gpusOf[id]), resource.DecimalSI),
			},
			MinSize: w.draw(2, "min of "+id), MaxSize: 2 + w.draw(5, "max of "+id),
		}
		c.NodeGroups = append(c.NodeGroups, g)
	}
	w.quota, w.surge = 6+w.draw(8, "quota"), 2+w.draw(8, "surge")
	quota := config.Quota{
		Name: "gpus", Resource: "nvidia.com/gpu", NodeGroups: []string{"*"}, Limit: resource.NewQuantity(int64(w.quota), resource.DecimalSI),
		Surge: &config.QuotaSurge{Max: *resource.NewQuantity(int64(w.surge), resource.DecimalSI), Window: config.Duration{Duration: surgeWindow}},
	}
	c.Quotas = append(c.Quotas, quota)
	return c
}

func (w *region) group(id string) config.NodeGroup {
	for _, g := range w.file.NodeGroups {
		if g.ID == id {
			return g
		}
	}
	panic("no group " + id)
}

// start starts the provider anew, as after a kill -9.
func (w *region) start() error {
	if w.process != nil {
		w.blamed()
		w.process.dead.Store(true)
	}
	p := &process{registry: prometheus.NewRegistry()}
	call := w.begin("start", "")
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), callKey{}, call), time.Minute)
	defer cancel()
	options := aws.Options{Region: "us-east-1", Endpoint: "http://aws.invalid", Client: &wire{w, p}, Now: w.now}
	if w.mistake.options != nil {
		w.mistake.options(&options)
	}
	backend, err := aws.New(ctx, options)
	if err != nil {
		return fmt.Errorf("starting the cloud: %w", err)
	}
	o := provider.Options{Backend: cloud.Backend(backend), ReadEvery: w.readEvery, Now: w.now, Registerer: p.registry}
	if w.mistake.backend != nil {
		o.Backend = w.mistake.backend(backend)
	}
	file := *w.file
	file.NodeGroups, file.Quotas = slices.Clone(file.NodeGroups), slices.Clone(file.Quotas)
	if w.mistake.file != nil {
		w.mistake.file(&file)
	}
	o.Catalogue = nodegroup.New(&file, backend.TemplateID)
	server, err := provider.New(ctx, o)
	if err != nil {
		return fmt.Errorf("starting the provider: %w", err)
	}
	p.CloudProviderServer = server
	if w.mistake.calls != nil {
		p.CloudProviderServer = w.mistake.calls(server)
	}
	w.say("the provider has started")
	w.process = p
	w.restarted()
	w.end(call, nil)
	return nil
}

// truth is a group as AWS has it.
type truth struct {
	desired, live, inService, leaving int
}

// target is what Cluster Autoscaler should be told.
func (t truth) target() int { return max(t.desired, t.live) }

func (t truth) inFlight() int { return t.target() - t.inService }

func (w *region) truth(id string) truth {
	g := w.stub.Group(id)
	t := truth{desired: g.Desired, live: g.Live(), inService: len(g.IDs(awstest.InService))}
	for _, i := range g.Instances {
		if strings.HasPrefix(i.State, awstest.Terminating) {
			t.leaving++
		}
	}
	return t
}

func (w *region) truths() map[string]truth {
	all := map[string]truth{}
	for _, id := range pools {
		all[id] = w.truth(id)
	}
	return all
}

// gpus is what counts against the quota.
func gpusUsed(all map[string]truth) int {
	n := 0
	for id, t := range all {
		n += (t.target() + t.leaving) * gpusOf[id]
	}
	return n
}

// counter is the value of one of the provider's metrics for a group.
func (w *region) counter(name, id string) int {
	families, err := w.process.registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if f.GetName() != "gpu_node_provider_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == id {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func (w *region) target(id string) int {
	response, err := w.process.NodeGroupTargetSize(context.Background(), &proto.NodeGroupTargetSizeRequest{Id: id})
	if err != nil {
		panic(err)
	}
	return int(response.GetTargetSize())
}

func (w *region) instances(id string) []*proto.Instance {
	response, err := w.process.NodeGroupNodes(context.Background(), &proto.NodeGroupNodesRequest{Id: id})
	if err != nil {
		panic(err)
	}
	return response.GetInstances()
}

func (w *region) maxima() map[string]int {
	response, err := w.process.NodeGroups(context.Background(), &proto.NodeGroupsRequest{})
	if err != nil {
		panic(err)
	}
	all := map[string]int{}
	for _, g := range response.GetNodeGroups() {
		all[g.GetId()] = int(g.GetMaxSize())
	}
	return all
}

// isPlaceholder reports whether an id stands for no machine.
func isPlaceholder(id string) bool { return strings.Contains(id, "/i-placeholder-") }

// machineOf is the instance id in a provider id.
func machineOf(id string) string { return id[strings.LastIndex(id, "/")+1:] }
