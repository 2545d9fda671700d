package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	pb "google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-node-provider/proto"
)

// world is a cluster with a recording server that has one group, t4, of at most
// four nodes with a GPU each, and a scheduler and a kubelet small enough to read.
type world struct {
	proto.UnimplementedCloudProviderServer

	t     *testing.T
	kube  *fake.Clientset
	story story
	looks map[string]*corev1.Node // labels and annotations of nodes, by name

	mu        sync.Mutex
	calls     []call
	target    int
	made      int
	instances []*machine
	refused   int
	events    []string
	evictions []time.Time
}

// story is how a world differs from one where all goes well.
type story struct {
	boot, work      time.Duration    // of nodes, and of pods once they are bound
	after           time.Duration    // that the autoscaler lives once all is gone
	short           int              // that many machines are not to be had
	refusals        int              // of DeleteNodes, before they are allowed
	fail            map[string]error // by method
	evictionFails   func(pod string, try int) error
	keepTerminating bool                        // evicted pods stay
	max             func(target int) int32      // instead of 4
	grant           func(target, delta int) int // of an increase, instead of all
	flags           []string
	silent          bool // what was bought is not listed
	settled         bool // nodes say that they have long been ready
}

type machine struct {
	*proto.Instance
	bootsAt time.Time
	node    string
}

// newWorld has to be called inside a bubble.
func newWorld(t *testing.T, s story) *world {
	w := &world{t: t, story: s, looks: map[string]*corev1.Node{}, kube: fake.NewClientset(unmanagedNode())}
	tries := map[string]int{}
	w.kube.PrependReactor("create", "pods/eviction", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		require.True(t, ok)
		eviction, ok := create.GetObject().(*policyv1.Eviction)
		require.True(t, ok)
		return true, nil, w.evict(eviction, tries)
	})
	return w
}

func (w *world) evict(e *policyv1.Eviction, tries map[string]int) error {
	w.mu.Lock()
	tries[e.Name]++
	try := tries[e.Name]
	w.evictions = append(w.evictions, time.Now())
	w.events = append(w.events, fmt.Sprintf("evict %s grace %d", e.Name, *e.DeleteOptions.GracePeriodSeconds))
	w.mu.Unlock()
	if fails := w.story.evictionFails; fails != nil {
		if err := fails(e.Name, try); err != nil {
			return err
		}
	}
	if w.story.keepTerminating {
		return nil
	}
	return w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), e.Namespace, e.Name)
}

// process is one autoscaler.
type process struct {
	a    *autoscaler
	kill func()
	done chan struct{}
}

// run starts an autoscaler with the flags of the recorded ones.
func (w *world) run() *process {
	t := w.t
	o, err := parseOptions(append([]string{
		"--cloud-provider=externalgrpc", "--scan-interval=3s", "--scale-down-delay-after-add=5s", "--scale-down-unneeded-time=10s",
	}, w.story.flags...), io.Discard)
	require.NoError(t, err)
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.UnaryInterceptor(w.record), grpc.WaitForHandlers(true))
	proto.RegisterCloudProviderServer(server, w)
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///world", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{done: make(chan struct{})}
	p.a = newAutoscaler(o, proto.NewCloudProviderClient(conn), 5*time.Second, w.kube, w, slog.New(slog.NewTextHandler(t.Output(), nil)))
	go func() {
		defer close(p.done)
		p.a.run(ctx)
	}()
	p.kill = sync.OnceFunc(func() {
		cancel()
		<-p.done
		_ = conn.Close()
		server.Stop()
		_ = listener.Close()
	})
	t.Cleanup(p.kill)
	return p
}

// terminate is a SIGTERM.
func (p *process) terminate(t *testing.T) {
	p.a.exit(t.Context())
	p.kill()
}

// live lets the world go on by itself for a while.
func (w *world) live(d time.Duration) {
	const tick = 100 * time.Millisecond
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(tick) //nolint:forbidigo // fake clock
		w.step()
	}
	synctest.Wait()
}

// until lives until something is so.
func (w *world) until(what string, so func() bool) {
	w.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !so(); w.live(100 * time.Millisecond) {
		require.True(w.t, time.Now().Before(end), "never: %s", what)
	}
}

// step boots what is due, binds pods, and drops nodes whose machine is gone.
func (w *world) step() {
	w.mu.Lock()
	var due []*machine
	for _, m := range w.instances {
		if m.node == "" && m.GetStatus().GetErrorInfo() == nil && !m.bootsAt.After(time.Now()) {
			m.node = strings.TrimPrefix(m.GetId(), "sim://")
			m.Status.InstanceState = proto.InstanceStatus_instanceRunning
			due = append(due, m)
		}
	}
	w.mu.Unlock()
	for _, m := range due {
		w.addNode(m.node)
	}
	pods, err := w.kube.CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	for i := range pods.Items {
		w.schedule(&pods.Items[i], pods.Items)
	}
}

func (w *world) schedule(pod *corev1.Pod, all []corev1.Pod) {
	if pod.Spec.NodeName != "" {
		return
	}
	nodes, err := w.kube.CoreV1().Nodes().List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	for i := range nodes.Items {
		bound := []*corev1.Pod{}
		for j := range all {
			if all[j].Spec.NodeName == nodes.Items[i].Name {
				bound = append(bound, &all[j])
			}
		}
		if newSnapshot([]*corev1.Node{&nodes.Items[i]}, bound).infos[0].misfit(pod) == "" {
			pod.Spec.NodeName, pod.Status.Phase, pod.Status.Conditions = nodes.Items[i].Name, corev1.PodRunning, nil
			_, err := w.kube.CoreV1().Pods(pod.Namespace).Update(w.t.Context(), pod, metav1.UpdateOptions{})
			require.NoError(w.t, err)
			return
		}
	}
	if unschedulable(pod) == nil {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.Now(),
		}}
		_, err := w.kube.CoreV1().Pods(pod.Namespace).UpdateStatus(w.t.Context(), pod, metav1.UpdateOptions{})
		require.NoError(w.t, err)
	}
}

func (w *world) addNode(name string) {
	node := gpuNode(name)
	if w.story.settled {
		node.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
	}
	if look := w.looks[name]; look != nil {
		node.Labels, node.Annotations = look.Labels, look.Annotations
	}
	_, err := w.kube.CoreV1().Nodes().Create(w.t.Context(), node, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

func (w *world) addPods(names ...string) {
	for _, name := range names {
		_, err := w.kube.CoreV1().Pods("default").Create(w.t.Context(), gpuPod(name), metav1.CreateOptions{})
		require.NoError(w.t, err)
	}
}

func (w *world) removePods(names ...string) {
	for _, name := range names {
		require.NoError(w.t, w.kube.CoreV1().Pods("default").Delete(w.t.Context(), name, metav1.DeleteOptions{}))
	}
}

func (w *world) bound(names ...string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			pod, err := w.kube.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
			return err != nil || pod.Spec.NodeName == ""
		})
	}
}

// node is the first of the group.
func (w *world) node() *corev1.Node {
	node, err := w.kube.CoreV1().Nodes().Get(w.t.Context(), "gpu-1", metav1.GetOptions{})
	require.NoError(w.t, err)
	return node
}

// failing makes calls of a method fail from now on, or no more.
func (w *world) failing(method string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story.fail = map[string]error{method: err}
}

func (w *world) recorded() []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

func (w *world) called(method string) func() bool {
	return func() bool {
		return slices.ContainsFunc(w.recorded(), func(c call) bool { return c.method == method })
	}
}

func (w *world) count(method string) int {
	n := 0
	for _, c := range w.recorded() {
		if c.method == method {
			n++
		}
	}
	return n
}

func (w *world) told(event string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e string) bool { return strings.Contains(e, event) })
}

// Event and its kin make the world an EventRecorder.
func (w *world) Event(object runtime.Object, kind, reason, message string) {
	w.Eventf(object, kind, reason, "%s", message)
}

func (w *world) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	on, ok := object.(metav1.Object)
	require.True(w.t, ok)
	w.events = append(w.events, fmt.Sprintf("%s %s %s: %s", on.GetName(), kind, reason, fmt.Sprintf(format, args...)))
}

func (w *world) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	w.Eventf(object, kind, reason, format, args...)
}

func (w *world) record(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	var response any
	time.Sleep(time.Millisecond) //nolint:forbidigo // fake clock, which has to move within a loop
	w.mu.Lock()
	err := w.story.fail[method]
	w.mu.Unlock()
	if err == nil {
		response, err = handler(ctx, request)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	message, ok := request.(pb.Message)
	require.True(w.t, ok)
	w.calls = append(w.calls, call{method, pb.Clone(message), status.Code(err).String()})
	return response, err
}

func (w *world) t4() *proto.NodeGroup {
	g := &proto.NodeGroup{Id: "t4", MaxSize: 4}
	if w.story.max != nil {
		g.MaxSize = w.story.max(w.target)
	}
	return g
}

func (w *world) NodeGroups(context.Context, *proto.NodeGroupsRequest) (*proto.NodeGroupsResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &proto.NodeGroupsResponse{NodeGroups: []*proto.NodeGroup{w.t4()}}, nil
}

func (w *world) NodeGroupForNode(_ context.Context, r *proto.NodeGroupForNodeRequest) (*proto.NodeGroupForNodeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.instances {
		if m.GetId() == r.GetNode().GetProviderID() {
			return &proto.NodeGroupForNodeResponse{NodeGroup: w.t4()}, nil
		}
	}
	return &proto.NodeGroupForNodeResponse{NodeGroup: &proto.NodeGroup{}}, nil
}

func (w *world) GPULabel(context.Context, *proto.GPULabelRequest) (*proto.GPULabelResponse, error) {
	return &proto.GPULabelResponse{Label: "accelerator"}, nil
}

func (w *world) GetAvailableGPUTypes(context.Context, *proto.GetAvailableGPUTypesRequest) (*proto.GetAvailableGPUTypesResponse, error) {
	return &proto.GetAvailableGPUTypesResponse{}, nil
}

func (w *world) Cleanup(context.Context, *proto.CleanupRequest) (*proto.CleanupResponse, error) {
	return &proto.CleanupResponse{}, nil
}

func (w *world) Refresh(context.Context, *proto.RefreshRequest) (*proto.RefreshResponse, error) {
	return &proto.RefreshResponse{}, nil
}

func (w *world) NodeGroupTargetSize(context.Context, *proto.NodeGroupTargetSizeRequest) (*proto.NodeGroupTargetSizeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &proto.NodeGroupTargetSizeResponse{TargetSize: int32(w.target)}, nil
}

func (w *world) NodeGroupNodes(context.Context, *proto.NodeGroupNodesRequest) (*proto.NodeGroupNodesResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	answer := &proto.NodeGroupNodesResponse{}
	for _, m := range w.instances {
		answer.Instances = append(answer.Instances, pb.CloneOf(m.Instance))
	}
	return answer, nil
}

func (w *world) NodeGroupTemplateNodeInfo(context.Context, *proto.NodeGroupTemplateNodeInfoRequest) (*proto.NodeGroupTemplateNodeInfoResponse, error) {
	node := gpuNode("template")
	raw, err := node.Marshal()
	return &proto.NodeGroupTemplateNodeInfoResponse{NodeBytes: raw, NodeInfo: raw}, err
}

func (w *world) NodeGroupIncreaseSize(_ context.Context, r *proto.NodeGroupIncreaseSizeRequest) (*proto.NodeGroupIncreaseSizeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	granted := int(r.GetDelta())
	if w.story.grant != nil {
		granted = w.story.grant(w.target, granted)
	}
	w.target += granted
	if w.story.silent {
		return &proto.NodeGroupIncreaseSizeResponse{}, nil
	}
	for range granted {
		m := &machine{
			Instance: &proto.Instance{Status: &proto.InstanceStatus{InstanceState: proto.InstanceStatus_instanceCreating}},
			bootsAt:  time.Now().Add(w.story.boot),
		}
		if w.made < w.story.short {
			m.Id = fmt.Sprintf("sim://i-placeholder-t4-%d", w.made)
			m.Status.ErrorInfo = &proto.InstanceErrorInfo{ErrorCode: "InsufficientInstanceCapacity", InstanceErrorClass: 1}
			w.made++
		} else {
			w.made++
			m.Id = fmt.Sprintf("sim://gpu-%d", w.made)
		}
		w.instances = append(w.instances, m)
	}
	return &proto.NodeGroupIncreaseSizeResponse{}, nil
}

func (w *world) NodeGroupDecreaseTargetSize(_ context.Context, r *proto.NodeGroupDecreaseTargetSizeRequest) (*proto.NodeGroupDecreaseTargetSizeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target += int(r.GetDelta())
	return &proto.NodeGroupDecreaseTargetSizeResponse{}, nil
}

func (w *world) NodeGroupDeleteNodes(ctx context.Context, r *proto.NodeGroupDeleteNodesRequest) (*proto.NodeGroupDeleteNodesResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused < w.story.refusals {
		w.refused++
		return nil, status.Error(codes.FailedPrecondition, "held")
	}
	for _, n := range r.GetNodes() {
		w.instances = slices.DeleteFunc(w.instances, func(m *machine) bool { return m.GetId() == n.GetProviderID() })
		w.target--
		if n.GetName() != n.GetProviderID() {
			if err := w.kube.CoreV1().Nodes().Delete(ctx, n.GetName(), metav1.DeleteOptions{}); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
		}
	}
	return &proto.NodeGroupDeleteNodesResponse{}, nil
}

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func readyNode(name, providerID string, resources corev1.ResourceList) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}, CreationTimestamp: metav1.Now()},
		Spec:       corev1.NodeSpec{ProviderID: providerID},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
		},
	}
}

func unmanagedNode() *corev1.Node {
	node := readyNode("control-plane", "", quantities("cpu", "4", "memory", "16Gi", "pods", "110"))
	node.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	return node
}

func gpuNode(name string) *corev1.Node {
	node := readyNode(name, "sim://"+name, quantities("cpu", "4", "memory", "16Gi", "pods", "110", "nvidia.com/gpu", "1"))
	node.Labels["accelerator"] = "nvidia-tesla-t4"
	return node
}

func gpuPod(name string) *corev1.Pod {
	controller := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, CreationTimestamp: metav1.Now(),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "trainers", Controller: &controller}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: quantities("cpu", "1", "nvidia.com/gpu", "1")},
		}}},
	}
}
