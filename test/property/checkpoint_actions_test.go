package property

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/guard"
)

// What can happen to a site. Each is one event, since what counts is their order.

func (s *site) pick(from []*trainer) *trainer {
	if len(from) == 0 {
		s.Skip("nobody")
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(s.T, "pod")]
}

// of are the trainers of which something is true.
func (s *site) of(is func(*trainer) bool) []*trainer {
	var all []*trainer
	for _, p := range s.trainers {
		if is(p) {
			all = append(all, p)
		}
	}
	return all
}

// alive are those that run, or wait to.
func alive(p *trainer) bool { return p.pod != nil && !p.over() }

func (s *site) instance() string {
	all := s.machines()
	if len(all) == 0 {
		s.Skip("no machines")
	}
	return rapid.SampledFrom(all).Draw(s.T, "instance")
}

// registered is an instance whose Node is there.
func (s *site) registered() string {
	id := s.instance()
	if s.api.nodes[nodeOf(id)] == nil {
		s.Skip("no Node")
	}
	return id
}

func (s *site) wait() {
	d := rapid.SampledFrom([]time.Duration{time.Second, 6 * time.Second, 31 * time.Second, 5 * time.Minute, 20 * time.Minute, 61 * time.Minute}).Draw(s.T, "time")
	s.passTime(d)
}

func (s *site) passTime(d time.Duration) {
	s.clock = s.clock.Add(d)
	s.redis.passTime(s.clock, d)
}

// train binds a pod to a Node, and mostly starts it.
func (s *site) train() {
	instance := s.registered()
	number := len(s.trainers)
	p := &trainer{number: number, instance: instance, node: nodeOf(instance), bound: s.clock}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "train", Labels: map[string]string{trainingLabel: "required"}},
		Spec:       corev1.PodSpec{NodeName: p.node},
		Status:     corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{Time: s.clock}},
	}
	pod.Name = "job-" + strconv.Itoa(number)
	if kind := rapid.SampledFrom([]string{"Job", "Indexed", "StatefulSet", "StatefulSet"}).Draw(s.T, "of"); kind != "Job" {
		index := strconv.Itoa(rapid.IntRange(0, 1).Draw(s.T, "index"))
		p.slot = kind + "/" + index
		pod.Labels["apps.kubernetes.io/pod-index"] = index
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "set", UID: types.UID(kind), Controller: new(true)}}
		if kind == "StatefulSet" { // one at a time has its name; an indexed Job replaces a pod that still terminates
			pod.Name = "set-" + index
		}
		s.free(pod.Name)
	}
	if p.stranger = rapid.IntRange(0, 9).Draw(s.T, "stranger") == 9; p.stranger {
		pod.Labels = nil
	}
	pod.UID = types.UID("uid-" + strconv.Itoa(number))
	p.id = checkpoint.PodID{Namespace: "train", Name: pod.Name, UID: pod.UID}
	p.name = pod.Name + "/" + string(pod.UID)
	p.pod = pod
	s.trainers = append(s.trainers, p)
	s.putPod(p, func(pod *corev1.Pod) {
		if rapid.IntRange(0, 3).Draw(s.T, "starts later") > 0 {
			s.runs(p, pod)
		}
	})
}

// free makes room for the next pod of a name: the one before goes, if it is on its way.
func (s *site) free(name string) {
	for _, p := range s.of(func(p *trainer) bool { return p.pod != nil && p.pod.Name == name }) {
		if alive(p) && !p.terminating() {
			s.Skip("the place is taken")
		}
		s.ends(p, gone)
		s.dropPod(p)
	}
}

func (s *site) runs(p *trainer, pod *corev1.Pod) {
	p.started = true
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

func (s *site) startPod() {
	p := s.pick(s.of(func(p *trainer) bool { return alive(p) && !p.started && !p.terminating() }))
	s.putPod(p, func(pod *corev1.Pod) { s.runs(p, pod) })
}

func (s *site) deletePod() {
	p := s.pick(s.of(func(p *trainer) bool { return alive(p) && !p.terminating() }))
	s.terminate(p)
}

func (s *site) terminate(p *trainer) {
	p.term = s.clock
	p.grace = rapid.SampledFrom([]time.Duration{30 * time.Second, 2 * time.Hour}).Draw(s.T, "grace")
	s.putPod(p, func(pod *corev1.Pod) {
		pod.DeletionTimestamp = &metav1.Time{Time: s.clock.Add(p.grace)}
		pod.DeletionGracePeriodSeconds = new(int64(p.grace / time.Second))
	})
}

// ends is a pod's end. Who has started nothing has nothing to lose.
func (s *site) ends(p *trainer, how ending) {
	if !p.over() {
		p.end, p.endedAt = how, s.clock
	}
}

// goAway removes the object of a pod that was deleted or is over.
func (s *site) goAway() {
	p := s.pick(s.of(func(p *trainer) bool { return p.pod != nil && (p.terminating() || p.over()) }))
	s.ends(p, gone)
	s.dropPod(p)
}

// vanish removes the object of a pod that nobody deleted in peace.
func (s *site) vanish() {
	p := s.pick(s.of(func(p *trainer) bool { return alive(p) && !p.terminating() }))
	s.ends(p, vanished)
	s.dropPod(p)
}

func (s *site) succeed() {
	p := s.pick(s.of(func(p *trainer) bool { return alive(p) && p.started }))
	s.finish(p, succeeded, corev1.PodSucceeded)
}

// finish ends a pod's processes. Whoever was told to stop has not succeeded or
// failed by itself, whatever its exit code.
func (s *site) finish(p *trainer, how ending, phase corev1.PodPhase) {
	if p.terminating() {
		how = gone
	}
	s.ends(p, how)
	s.putPod(p, func(pod *corev1.Pod) {
		pod.Status.Phase = phase
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Time{Time: s.clock}}}}}
	})
}

// breakPod makes a pod fail, by its own exit, by the Pod garbage collector, which
// leaves the statuses as they were, by a kubelet that wipes them, or by one that evicts
// it and is told code 0.
func (s *site) breakPod() {
	p := s.pick(s.of(func(p *trainer) bool { return alive(p) && p.started }))
	switch rapid.SampledFrom([]string{"exit", "collected", "wiped", "evicted"}).Draw(s.T, "how") {
	case "exit":
		s.finish(p, failed, corev1.PodFailed)
	case "evicted":
		s.finish(p, failed, corev1.PodSucceeded)
		s.putPod(p, func(pod *corev1.Pod) {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
		})
	case "collected":
		s.ends(p, failed)
		s.putPod(p, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	case "wiped":
		p.wiped = true
		s.ends(p, failed)
		s.putPod(p, func(pod *corev1.Pod) {
			pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodFailed, nil
		})
	}
}

// acknowledge writes what a trainer may write, late ones included.
func (s *site) acknowledge() {
	p := s.pick(s.of(func(p *trainer) bool { return p.started && !p.stranger }))
	kinds := []string{"fresh", "fresh", "old", "old", "future", "malformed", "other request"}
	request, asked := s.request(p)
	if asked {
		kinds = append(kinds, "echo", "echo")
	}
	if s.asked[p.id.UID] != "" {
		kinds = append(kinds, "older request")
	}
	ack := acknowledgement{savedAt: s.clock}
	switch rapid.SampledFrom(kinds).Draw(s.T, "kind") {
	case "echo":
		ack = acknowledgement{request: request.ID, savedAt: s.skewed()}
	case "old":
		ago := rapid.SampledFrom([]time.Duration{4 * time.Second, 6 * time.Second, 5 * time.Minute, 20 * time.Minute, 20*time.Minute + 6*time.Second, 2 * time.Hour}).Draw(s.T, "ago")
		ack.savedAt = s.clock.Add(-ago)
	case "future":
		ahead := rapid.SampledFrom([]time.Duration{4 * time.Second, 6 * time.Second, time.Hour, 48 * time.Hour}).Draw(s.T, "ahead")
		ack.savedAt = s.clock.Add(ahead)
	case "malformed":
		ack = acknowledgement{malformed: true}
	case "other request":
		ack = acknowledgement{request: "nobodys", savedAt: s.skewed()}
	case "older request":
		ack = acknowledgement{request: s.asked[p.id.UID]}
	}
	s.write(p, ack)
}

// skewed is the clock of a trainer that goes wrong, or is not told at all.
func (s *site) skewed() time.Time {
	switch rapid.IntRange(0, 2).Draw(s.T, "clock") {
	case 0:
		return time.Time{}
	case 1:
		return s.clock.Add(-48 * time.Hour)
	default:
		return s.clock.Add(48 * time.Hour)
	}
}

// write puts an acknowledgement into Redis, in one of its forms.
func (s *site) write(p *trainer, ack acknowledgement) {
	p.ack = &ack
	var text string
	switch {
	case ack.malformed:
		text = rapid.SampledFrom([]string{"done", "1", "{}", `{"v":2,"savedAt":1767268800}`, `{"v":1}`, "1767268800000"}).Draw(s.T, "malformed")
	case ack.request != "":
		fields := map[string]any{"v": 1, "request": ack.request}
		if !ack.savedAt.IsZero() {
			fields["savedAt"] = ack.savedAt.Unix()
		}
		raw, err := json.Marshal(fields)
		if err != nil {
			panic(err)
		}
		text = string(raw)
	default:
		text = rapid.SampledFrom([]string{
			strconv.FormatInt(ack.savedAt.Unix(), 10), ack.savedAt.Format(time.RFC3339) + "\n",
			fmt.Sprintf(`{"v":1,"savedAt":%q,"step":7}`, ack.savedAt.Format(time.RFC3339)),
		}).Draw(s.T, "form")
	}
	s.redis.set(checkpoint.AckKey(keyPrefix, p.id), text)
}

func (s *site) redisFails() {
	s.redisDown = !s.redisDown
	s.redis.fail(s.redisDown)
}

func (s *site) redisForgets() {
	s.redis.flush()
	for _, p := range s.trainers {
		p.ack = nil
	}
}

func (s *site) redisEvicts() {
	p := s.pick(s.of(func(p *trainer) bool { return p.ack != nil }))
	p.ack = nil
	s.redis.del(checkpoint.AckKey(keyPrefix, p.id))
}

func (s *site) requestExpires() {
	p := s.pick(s.of(func(p *trainer) bool { _, asked := s.request(p); return asked }))
	request, _ := s.request(p)
	s.asked[p.id.UID] = request.ID
	s.redis.del(checkpoint.RequestKey(keyPrefix, p.id))
}

func (s *site) apiFails() {
	switch {
	case s.api.down || s.api.readOnly:
		s.api.down, s.api.readOnly = false, false
	case rapid.Bool().Draw(s.T, "read only"):
		s.api.readOnly = true
	default:
		s.api.down = true
	}
	if !s.laggy {
		s.news()
	}
}

func (s *site) restart() {
	if s.api.down {
		s.Skip("nothing starts without an API server")
	}
	s.before = nil
	clear(s.stale) // it reads everything
	s.start()
}

func (s *site) newLeader() {
	if s.api.down {
		s.Skip("nothing starts without an API server")
	}
	before := s.process
	s.start()
	s.before = &before
}

// lateLook is the last look of who led before, and has not noticed yet that it
// does not any more.
func (s *site) lateLook() {
	if s.before == nil {
		s.Skip("nobody")
	}
	before := s.before
	if before.looked { // the second time; nobody is behind for longer than that
		s.news()
		s.before = nil
	}
	before.looked, s.late = true, true
	s.lookOf(before)
	s.remembered()
}

func (s *site) refresh() {
	if err := s.refreshed(); err != nil {
		panic(faultf("refresh: %v", err))
	}
}

func (s *site) interrupt() {
	if err := s.cloud.Interrupt(context.Background(), s.instance()); err != nil {
		panic(faultf("interrupt: %v", err))
	}
}

func (s *site) more() {
	if len(s.truth()) > 3 {
		s.Skip("enough")
	}
	s.grow(1)
}

func (s *site) notReady() {
	s.editNode(s.registered(), func(n *corev1.Node) {
		c := &n.Status.Conditions[0]
		c.LastTransitionTime = metav1.Time{Time: s.clock}
		if c.Status = corev1.ConditionTrue; rapid.IntRange(0, 2).Draw(s.T, "ready") > 0 {
			c.Status = rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown}).Draw(s.T, "status")
		}
	})
}

func (s *site) deleteNode() {
	id := s.registered()
	node := s.api.nodes[nodeOf(id)]
	delete(s.api.nodes, node.Name)
	delete(s.persons, node.Name)
	s.changed(node)
}

func (s *site) registerAgain() {
	id := s.instance()
	if s.api.nodes[nodeOf(id)] != nil {
		s.Skip("it is there")
	}
	s.join(id)
}

func (s *site) taint() {
	s.editNode(s.registered(), func(n *corev1.Node) {
		switch rapid.SampledFrom([]string{"cordon", "delete", "spot", "none"}).Draw(s.T, "taint") {
		case "cordon":
			n.Spec.Unschedulable = true
		case "delete":
			n.Spec.Taints = []corev1.Taint{{Key: toBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
		case "spot":
			n.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
		default:
			n.Spec.Unschedulable, n.Spec.Taints = false, nil
		}
	})
}

// annotate is a person at work on a Node.
func (s *site) annotate() {
	s.editNode(s.registered(), func(n *corev1.Node) {
		switch rapid.SampledFrom([]string{"hold", "let go", "release", "release", "request", "note"}).Draw(s.T, "annotation") {
		case "hold":
			if n.Annotations[heldBy] == "" {
				n.Annotations[disabled], s.persons[n.Name] = "true", true
			}
		case "let go": // also what is the guard's
			delete(n.Annotations, disabled)
			delete(s.persons, n.Name)
		case "release":
			n.Annotations[guard.ReleaseAnnotation] = "alex"
		case "request":
			n.Annotations[guard.RequestAnnotation] = "alex"
		case "note":
			n.Annotations[ofAPerson] = strconv.Itoa(len(s.trainers))
		}
	})
}

// touchRecord writes to a ConfigMap of the record what is not of it: the next
// write of the provider meets a conflict.
func (s *site) touchRecord() {
	for _, m := range s.api.records {
		m.ResourceVersion = s.api.next()
	}
}

// evict asks for an eviction, as Cluster Autoscaler and kubectl drain do.
func (s *site) evict() {
	p := s.pick(s.of(func(p *trainer) bool { return alive(p) && !p.terminating() && s.exists(p.instance) }))
	body, err := json.Marshal(admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: "review", Namespace: p.pod.Namespace, Name: p.pod.Name, SubResource: "eviction",
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
	}})
	if err != nil {
		panic(err)
	}
	answer := httptest.NewRecorder()
	guard.Webhook{Guard: s.guard, Leads: func() bool { return true }}.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, guard.EvictionPath, bytes.NewReader(body)))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil {
		panic(err)
	}
	if !review.Response.Allowed {
		return
	}
	if ok, why := s.clear(p); !p.stranger && !p.released && !ok {
		panic(faultf("%s may be evicted: %s", p.name, why))
	}
	s.terminate(p)
}
