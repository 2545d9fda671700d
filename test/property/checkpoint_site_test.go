package property

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"pgregory.net/rapid"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
)

const (
	trainingLabel = "gpu-node-provider.io/checkpoint"
	groupLabel    = "gpu-node-provider.io/node-group"
	disabled      = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	heldBy        = "gpu-node-provider.io/held-by"
	blockedBy     = "gpu-node-provider.io/blocked-by"
	ofAPerson     = "example.com/note"
	toBeDeleted   = "ToBeDeletedByClusterAutoscaler"
	terminateTime = 10 * time.Second
)

var (
	siteRules    = rules{maxAge: 20 * time.Minute, abandonAfter: time.Hour}
	siteSelector = labels.SelectorFromSet(labels.Set{trainingLabel: "required"})
	siteConfig   = &config.Config{
		GPULabel: "accelerator", Cloud: config.Cloud{Simulated: &config.Simulated{}},
		NodeGroups: []config.NodeGroup{{
			ID: "t4", OS: "linux", Arch: "amd64", MaxSize: 6,
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32Gi"), "pods": resource.MustParse("110"), "nvidia.com/gpu": resource.MustParse("4")},
		}},
	}
)

// fault is something that must not happen.
type fault string

func faultf(format string, args ...any) fault { return fault(fmt.Sprintf(format, args...)) }

// site is a cluster, its Redis, a provider that holds nodes for training pods,
// and what is true of all of them.
type site struct {
	*rapid.T
	mutant mutant
	rules  rules
	clock  time.Time
	memory *simulated.Memory
	cloud  *simulated.Cloud
	api    *apiServer
	redis  redisServer

	redisDown bool
	unread    time.Time // since when the guard knows
	laggy     bool      // news of the cluster arrives late
	stale     map[string]runtime.Object
	heard     map[string]*corev1.Node // Nodes as the provider was told of them

	process
	before  *process // what led before, and has not noticed yet
	late    bool     // it has looked once more, ever
	looking *process // whose guard looks

	trainers []*trainer
	persons  map[string]bool // Nodes that a person has kept from scaling down
	asked    map[types.UID]string
}

// process is a provider: what a restart makes anew.
type process struct {
	view   *cluster.View
	known  cluster.Memory
	record *checkpoint.Record
	gate   *checkpoint.Assessor
	guard  *guard.Guard
	server *provider.Server

	looked bool // after another had taken the lead
}

func newSite(t *rapid.T, redis func(time.Time) redisServer, m mutant) *site {
	s := &site{
		T: t, mutant: m, rules: siteRules, clock: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		memory: &simulated.Memory{}, api: newAPIServer(), stale: map[string]runtime.Object{},
		persons: map[string]bool{}, asked: map[types.UID]string{},
	}
	s.redis = redis(s.clock)
	s.api.patched = s.patched
	s.laggy = rapid.Bool().Draw(t, "news arrives late")
	var err error
	if s.cloud, err = simulated.New(simulated.Options{Memory: s.memory, TerminateDelay: terminateTime, Now: s.now, Rand: rand.NewPCG(1, 1)}); err != nil {
		panic(err)
	}
	s.start()
	s.grow(rapid.IntRange(1, 3).Draw(t, "nodes"))
	return s
}

func (s *site) now() time.Time { return s.clock }

// start starts a provider as serve does: the record is read, every node is
// looked at, and only then it answers.
func (s *site) start() {
	ctx := context.Background()
	p := process{}
	s.heard = map[string]*corev1.Node{}
	var client, records kubernetes.Interface = s.api, s.api
	if s.mutant.client != nil {
		client = s.mutant.client(s.api)
	}
	if s.mutant.record != nil {
		records = s.mutant.record(s.api)
	}
	p.view, p.known = cluster.NewMemory(client, &record.FakeRecorder{})
	for _, node := range s.api.nodes {
		s.tell(p.known, node)
	}
	for _, pod := range s.api.pods {
		s.tell(p.known, pod)
	}
	p.record = checkpoint.NewRecord(records, "gpu-node-provider")
	if err := p.record.Load(ctx); err != nil {
		panic(faultf("the record cannot be read: %v", err))
	}
	policy := checkpoint.Policy{MaxAge: s.rules.maxAge, AbandonAfter: s.rules.abandonAfter}
	judge := &checkpoint.Assessor{
		View: p.view, Record: p.record, Signals: s.redis, Selector: siteSelector, Now: s.now,
		Policy: func() checkpoint.Policy { return policy }, Rules: s.mutant.rules(),
	}
	if s.mutant.signals != nil {
		judge.Signals = s.mutant.signals(s, s.redis)
	}
	gate := *judge
	if s.mutant.gate != nil {
		s.mutant.gate(s, &gate)
	}
	p.gate = &gate
	server, err := provider.New(ctx, provider.Options{Catalogue: nodegroup.New(siteConfig, s.cloud.TemplateID), Backend: s.cloud, Gate: s.ask, Cluster: p.view, Now: s.now})
	if err != nil {
		panic(err)
	}
	p.server = server
	p.guard = guard.New(guard.Options{
		Assessor: judge, View: p.view, Record: p.record, Asker: s.redis, Log: zap.NewNop(), Now: s.now, GroupLabel: groupLabel,
		Policy: func() guard.Policy {
			return guard.Policy{Policy: policy, AskAfter: 10 * time.Minute, AskEvery: 30 * time.Minute, AskOnTaints: []string{"spot"}}
		},
		Read: server.GroupRead,
		Place: func(id string) (nodegroup.Place, bool) {
			p, ok := server.Place(id)
			return nodegroup.Place{Group: p.Group, AboveMin: p.AboveMin}, ok
		},
	})
	p.guard.AllPlaced()
	s.process = p
	for _, t := range s.trainers {
		t.seen = t.written
	}
	s.unread = time.Time{}
	s.pass()
}

// ask is the gate, with what a mutant puts around it.
func (s *site) ask(ctx context.Context, instances []checkpoint.Instance) ([]checkpoint.Held, error) {
	if s.mutant.instances != nil {
		instances = s.mutant.instances(instances)
	}
	held, err := s.gate.Hold(ctx, instances)
	if s.mutant.held != nil {
		return s.mutant.held(held, err)
	}
	return held, err
}

// tell brings news of a Node or Pod to a provider.
func (s *site) tell(known cluster.Memory, obj runtime.Object) {
	if node, ok := obj.(*corev1.Node); ok {
		s.heard[node.Name] = node
	}
	if s.mutant.news != nil {
		obj = obj.DeepCopyObject()
		s.mutant.news(obj)
	}
	if err := known.Put(obj); err != nil {
		panic(err)
	}
}

// changed notes that a Node or Pod is different now; there says whether it still is.
func (s *site) changed(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.Node:
		s.stale["node "+o.Name] = o
	case *corev1.Pod:
		s.stale["pod "+o.Namespace+"/"+o.Name] = o
	}
	if !s.laggy {
		s.news()
	}
}

// news brings all changes to the providers.
func (s *site) news() {
	if s.api.down {
		return
	}
	all := []cluster.Memory{s.known}
	if s.before != nil {
		all = append(all, s.before.known)
	}
	for _, key := range slices.Sorted(maps.Keys(s.stale)) {
		kind, name, _ := strings.Cut(key, " ")
		var now runtime.Object
		if node, ok := s.api.nodes[name]; ok && kind == "node" {
			now = node
		}
		if pod, ok := s.api.pods[name]; ok && kind == "pod" {
			now = pod
		}
		for _, known := range all {
			if now != nil {
				s.tell(known, now)
			} else if err := known.Delete(s.stale[key]); err != nil {
				panic(err)
			}
		}
		if now == nil && kind == "node" {
			delete(s.heard, name)
		}
	}
	clear(s.stale)
}

// pass has the guard look at everything, and checks what comes of it.
func (s *site) pass() {
	s.learn()
	released := s.releases()
	if s.lookOf(&s.process) {
		for _, p := range s.of(func(p *trainer) bool { return p.seen }) {
			p.written = true
			p.seenToEnd = p.seenToEnd || p.terminating() && len(s.stale) == 0
		}
	}
	s.remembered()
	if !s.laggy && !s.api.down && !s.api.readOnly {
		s.marked(released)
	}
}

// lookOf has a provider's guard look at everything, and says whether the record
// was written.
func (s *site) lookOf(p *process) bool {
	failed := s.api.unwritten
	s.looking = p
	if p == &s.process && s.unread.IsZero() && s.redisDown {
		s.unread = s.clock
	}
	if !s.redisDown {
		s.unread = time.Time{}
	}
	p.guard.Pass(context.Background())
	if !s.laggy {
		s.news()
	}
	for _, p := range s.of(func(p *trainer) bool { return p.seen && p.over() }) {
		if ok, _ := s.clear(p); p.released || ok && !s.redisDown {
			p.settled = true
		}
	}
	return s.api.unwritten == failed
}

// releases are the Nodes that a person wants to be released.
func (s *site) releases() map[string]bool {
	all := map[string]bool{}
	for name, node := range s.api.nodes {
		all[name] = node.Annotations[guard.ReleaseAnnotation] != ""
	}
	return all
}

// marked checks that Cluster Autoscaler is kept away from each Node with a pod
// that is not clear, and from no other. One that has just been released is looked at again.
func (s *site) marked(released map[string]bool) {
	for _, id := range s.machines() {
		node, ok := s.api.nodes[nodeOf(id)]
		if !ok || released[node.Name] {
			continue
		}
		sure := !s.redisDown
		for _, p := range s.of(func(p *trainer) bool { return p.instance == id && !p.stranger }) {
			sure = sure && s.surely(p)
			if ok, why := s.clear(p); !ok && s.owed(p) && !s.patient() && node.Annotations[disabled] != "true" {
				panic(faultf("%s is not held: %s: %s", node.Name, p.name, why))
			}
		}
		if sure && node.Annotations[heldBy] != "" {
			panic(faultf("%s is held for nothing: %v", node.Name, node.Annotations))
		}
	}
}

// learn is what a look at the cluster, as it is known, shows.
func (s *site) learn() {
	for _, p := range s.trainers {
		_, read := s.server.Place(p.instance)
		if p.stranger || !read || s.heard[p.node] == nil {
			continue // nobody has said yet which instance the pod is on, or whose that is
		}
		p.seen = p.seen || ran(s.view, p)
	}
}

// ran says whether a pod is seen to have something to lose.
func ran(view *cluster.View, p *trainer) bool {
	for _, pod := range view.PodsOn(p.node, nil) {
		byItself := pod.Status.Phase == corev1.PodSucceeded && p.end == succeeded
		if pod.UID == p.id.UID && !byItself && len(pod.Status.ContainerStatuses) > 0 {
			return true
		}
	}
	return false
}

// remembered checks that the record in the API server has who is owed something,
// whatever has become of the Pod, its Node, Redis, or the process that wrote it.
func (s *site) remembered() {
	all := ""
	for _, m := range s.api.records {
		for _, text := range m.Data {
			all += text
		}
	}
	for _, p := range s.trainers {
		if !p.written || p.settled || p.released || !s.exists(p.instance) {
			continue
		}
		if ok, why := s.clear(p); !ok && !strings.Contains(all, `"`+string(p.id.UID)+`"`) {
			panic(faultf("the record has lost %s of %s: %s", p.name, p.instance, why))
		}
	}
}

// patched is told of each patch of a Node.
func (s *site) patched(before, after *corev1.Node) {
	for key, value := range before.Annotations {
		now, there := after.Annotations[key]
		ours := slices.Contains([]string{heldBy, blockedBy, guard.ReleaseAnnotation, guard.RequestAnnotation}, key) ||
			key == disabled && !s.persons[before.Name]
		if !ours && (!there || now != value) {
			panic(faultf("the guard changed a person's %s of %s from %q to %q", key, before.Name, value, now))
		}
	}
	if before.Annotations[guard.ReleaseAnnotation] != "" && after.Annotations[guard.ReleaseAnnotation] == "" {
		s.release(before.Spec.ProviderID)
	}
	s.stale["node "+before.Name] = after
}

// release is for the pods that the provider has seen by now.
func (s *site) release(instance string) {
	for _, p := range s.trainers {
		if p.instance == instance && (p.seen || ran(s.looking.view, p)) {
			p.released = true
		}
	}
}

// truth is what the cloud says of the one group.
func (s *site) truth() map[string]cloud.Instance {
	groups, err := s.cloud.Describe(context.Background())
	if err != nil || len(groups) != 1 {
		panic(faultf("the cloud answers %v, %v", groups, err))
	}
	all := map[string]cloud.Instance{}
	for _, i := range groups[0].Instances {
		all[i.ID] = i
	}
	return all
}

// machines are the instances that are not on their way out.
func (s *site) machines() []string {
	var all []string
	for id, i := range s.truth() {
		if i.State != cloud.Deleting {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

func (s *site) exists(instance string) bool {
	i, ok := s.truth()[instance]
	return ok && i.State != cloud.Deleting
}

// nodeOf is the name that an instance's Node has, if there is one.
func nodeOf(instance string) string { return "node" + instance[strings.LastIndex(instance, "-"):] }

func (s *site) grow(n int) {
	before := s.machines()
	if _, err := s.server.NodeGroupIncreaseSize(context.Background(), &proto.NodeGroupIncreaseSizeRequest{Id: "t4", Delta: int32(n)}); err != nil {
		panic(faultf("growing: %v", err))
	}
	for _, id := range s.machines() {
		if !slices.Contains(before, id) {
			s.join(id)
		}
	}
}

// join registers the Node of an instance.
func (s *site) join(instance string) {
	name := nodeOf(instance)
	s.putNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "/" + s.api.next()), Labels: map[string]string{groupLabel: "t4"}, Annotations: map[string]string{ofAPerson: "keep"}},
		Spec:       corev1.NodeSpec{ProviderID: instance},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(4, resource.DecimalSI)},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: s.clock}}},
		},
	})
}

func (s *site) putNode(node *corev1.Node) {
	node.ResourceVersion = s.api.next()
	s.api.nodes[node.Name] = node
	s.changed(node)
}

// editNode changes the Node of an instance, which must be there.
func (s *site) editNode(instance string, edit func(*corev1.Node)) {
	node := s.api.nodes[nodeOf(instance)].DeepCopy()
	edit(node)
	s.putNode(node)
}

// putPod puts a trainer's Pod into the API server as edited.
func (s *site) putPod(p *trainer, edit func(*corev1.Pod)) {
	pod := p.pod.DeepCopy()
	edit(pod)
	pod.ResourceVersion = s.api.next()
	p.pod = pod
	s.api.pods[pod.Namespace+"/"+pod.Name] = pod
	s.changed(pod)
}

func (s *site) dropPod(p *trainer) {
	delete(s.api.pods, p.pod.Namespace+"/"+p.pod.Name)
	s.changed(p.pod)
	p.pod = nil
}
