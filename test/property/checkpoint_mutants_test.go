package property

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"pgregory.net/rapid"

	"gpu-node-provider/provider/checkpoint"
)

// mutant is a provider with one mistake. Without any it is the provider.
type mutant struct {
	judge     func(*question) // before Judge is asked
	verdict   func(pod checkpoint.Facts, v checkpoint.Verdict) checkpoint.Verdict
	signals   func(*site, redisServer) signals // of the guard and the gate
	gate      func(*site, *checkpoint.Assessor)
	instances func([]checkpoint.Instance) []checkpoint.Instance
	held      func([]checkpoint.Held, error) ([]checkpoint.Held, error)
	news      func(runtime.Object)
	client    func(*apiServer) kubernetes.Interface
	record    func(*apiServer) kubernetes.Interface
}

// question is what Judge is asked.
type question struct {
	now     time.Time
	policy  checkpoint.Policy
	pod     checkpoint.Facts
	request *checkpoint.Request
	ack     *checkpoint.Ack
}

// signals are what an Assessor reads.
type signals interface {
	Read(ctx context.Context, pods []checkpoint.PodID) (checkpoint.Reading, error)
}

func (m mutant) rules() func(time.Time, checkpoint.Policy, checkpoint.Facts, *checkpoint.Request, *checkpoint.Ack) checkpoint.Verdict {
	if m.judge == nil && m.verdict == nil {
		return nil
	}
	return func(now time.Time, policy checkpoint.Policy, pod checkpoint.Facts, request *checkpoint.Request, ack *checkpoint.Ack) checkpoint.Verdict {
		q := question{now, policy, pod, request, ack}
		if ack != nil {
			own := *ack
			q.ack = &own
		}
		if m.judge != nil {
			m.judge(&q)
		}
		v := checkpoint.Judge(q.now, q.policy, q.pod, q.request, q.ack)
		if m.verdict != nil {
			v = m.verdict(pod, v)
		}
		return v
	}
}

const always = math.MaxInt64 / 2

// inStage is a mistake in one row of the table: a pod there passes.
func inStage(stage checkpoint.Stage) mutant {
	return mutant{verdict: func(pod checkpoint.Facts, v checkpoint.Verdict) checkpoint.Verdict {
		v.Clear = v.Clear || pod.Stage == stage
		return v
	}}
}

var mutants = map[string]mutant{
	// Judge.
	"maxAge is ignored":                   {judge: func(q *question) { q.policy.MaxAge = always }},
	"maxAge is a minute longer":           {judge: func(q *question) { q.policy.MaxAge += time.Minute }},
	"maxAge is a minute shorter":          {judge: func(q *question) { q.policy.MaxAge -= time.Minute }},
	"abandonAfter is a minute":            {judge: func(q *question) { q.policy.AbandonAfter = time.Minute }},
	"nothing is ever abandoned":           {judge: func(q *question) { q.policy.AbandonAfter = always }},
	"an ack from before the start counts": {judge: func(q *question) { q.pod.Started = time.Time{} }},
	"terminating, any ack counts": {judge: func(q *question) {
		if q.pod.Stage == checkpoint.Terminating && q.ack != nil && q.ack.SavedAt.Before(q.now) {
			q.ack.SavedAt = q.now
		}
	}},
	"terminating, grace is forgotten":     {judge: func(q *question) { q.pod.Grace = 0 }},
	"a node that is not Ready is ignored": {judge: func(q *question) { q.pod.NodeNotReadySince = time.Time{} }},
	"an ack of the future counts": {judge: func(q *question) {
		if q.ack != nil && q.ack.SavedAt.After(q.now) {
			q.ack.SavedAt = q.now
		}
	}},
	"any request's echo counts": {judge: func(q *question) {
		if q.ack != nil && q.ack.Request != "" && q.request != nil {
			q.ack.Request = q.request.ID
		}
	}},
	"echoes are not read": {judge: func(q *question) {
		if q.ack != nil {
			q.ack.Request = ""
		}
	}},
	"a request revokes a fresh ack": {judge: func(q *question) {
		if q.ack != nil && q.request != nil && q.ack.SavedAt.Before(q.request.RequestedAt) {
			q.ack.SavedAt = time.Time{}
		}
	}},
	"failed is clear":      inStage(checkpoint.Failed),
	"vanished is clear":    inStage(checkpoint.Vanished),
	"gone is clear":        inStage(checkpoint.Gone),
	"terminating is clear": inStage(checkpoint.Terminating),
	"running is clear":     inStage(checkpoint.Running),
	"a node that is not Ready clears": {verdict: func(f checkpoint.Facts, v checkpoint.Verdict) checkpoint.Verdict {
		v.Clear = v.Clear || !f.NodeNotReadySince.IsZero()
		return v
	}},
	"who waits is held": {verdict: func(f checkpoint.Facts, v checkpoint.Verdict) checkpoint.Verdict {
		v.Clear = v.Clear && f.Stage != checkpoint.Waiting
		return v
	}},
	"who has succeeded is held": {verdict: func(f checkpoint.Facts, v checkpoint.Verdict) checkpoint.Verdict {
		v.Clear = v.Clear && f.Stage != checkpoint.Succeeded
		return v
	}},

	// What Redis says.
	"a malformed ack counts": {signals: reading(func(s *site, _ checkpoint.PodID, r *checkpoint.Signals) {
		if r.BadAck != nil {
			r.Ack = &checkpoint.Ack{SavedAt: s.clock}
		}
	})},
	"acks are read by name, without the uid": {signals: func(s *site, r redisServer) signals { return byName{s, r} }},
	"Redis that is down counts as saved":     {signals: func(s *site, r redisServer) signals { return hopeful{s, r} }},
	"what was released stays so": {signals: reading(func(s *site, p checkpoint.PodID, r *checkpoint.Signals) {
		for _, t := range s.trainers {
			if t.id == p && s.everReleased(t.instance) {
				r.Ack = &checkpoint.Ack{SavedAt: s.clock}
			}
		}
	})},

	// The gate.
	"the gate does not ask the record":    {gate: func(s *site, a *checkpoint.Assessor) { a.Record = checkpoint.NewRecord(s.api, "nowhere") }},
	"the gate passes when it cannot tell": {held: func(h []checkpoint.Held, _ error) ([]checkpoint.Held, error) { return h, nil }},
	"the gate passes with Redis down": {held: func(h []checkpoint.Held, err error) ([]checkpoint.Held, error) {
		if err != nil && strings.Contains(err.Error(), "is down") {
			err = nil
		}
		return h, err
	}},
	"the gate looks at the first node only": {instances: func(i []checkpoint.Instance) []checkpoint.Instance { return i[:1] }},
	"the gate lets CA's fakes pass": {instances: func(all []checkpoint.Instance) []checkpoint.Instance {
		var named []checkpoint.Instance
		for _, i := range all {
			if i.ID != i.Node {
				named = append(named, i)
			}
		}
		return named
	}},
	"the gate goes by the node's name": {gate: func(s *site, a *checkpoint.Assessor) { a.Record = checkpoint.NewRecord(s.api, "nowhere") }, instances: func(all []checkpoint.Instance) []checkpoint.Instance {
		for n := range all {
			all[n].ID = all[n].Node
		}
		return all
	}},
	"the gate believes its memory of pods": {client: func(a *apiServer) kubernetes.Interface { return remembering{apiServer: a} }},

	// The record and the guard.
	"the record is not read at the start": {record: func(a *apiServer) kubernetes.Interface { return forgetful{apiServer: a} }},
	"the record is kept in memory alone":  {record: func(*apiServer) kubernetes.Interface { return newAPIServer() }},
	"a person's hold is taken for ours": {news: func(obj runtime.Object) {
		if node, ok := obj.(*corev1.Node); ok && node.Annotations[disabled] != "" {
			node.Annotations[heldBy] = "guard"
		}
	}},
	"our hold is taken for a person's": {news: func(obj runtime.Object) {
		if node, ok := obj.(*corev1.Node); ok {
			delete(node.Annotations, heldBy)
		}
	}},
}

// mutantSequences is how many sequences a mutant may last.
const mutantSequences = 3000

// TestEveryMistakeIsFound checks the test of sequences: each provider with a
// mistake has to fail it, and soon. The seeds are fixed, so a mistake is found in
// the same sequence each time.
func TestEveryMistakeIsFound(t *testing.T) {
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sequence := rapid.Custom(func(t *rapid.T) fault { return play(t, inMemory, m) })
			for n := range mutantSequences {
				if found := sequence.Example(n); found != "" {
					t.Logf("sequence %d: %s", n+1, found)
					return
				}
			}
			t.Errorf("not found in %d sequences", mutantSequences)
		})
	}
}

// reading changes what is read of each pod.
func reading(change func(*site, checkpoint.PodID, *checkpoint.Signals)) func(*site, redisServer) signals {
	return func(s *site, r redisServer) signals { return changed{s, r, change} }
}

type changed struct {
	site   *site
	redis  redisServer
	change func(*site, checkpoint.PodID, *checkpoint.Signals)
}

func (c changed) Read(ctx context.Context, pods []checkpoint.PodID) (checkpoint.Reading, error) {
	reading, err := c.redis.Read(ctx, pods)
	for n := range reading.Signals {
		c.change(c.site, pods[n], &reading.Signals[n])
	}
	return reading, err
}

// byName reads the newest acknowledgement of any pod of a name.
type byName struct {
	site  *site
	redis redisServer
}

func (b byName) Read(ctx context.Context, pods []checkpoint.PodID) (checkpoint.Reading, error) {
	reading, err := b.redis.Read(ctx, pods)
	for n := range reading.Signals {
		for _, t := range b.site.trainers {
			if t.id.Name != pods[n].Name {
				continue
			}
			other, err := b.redis.Read(ctx, []checkpoint.PodID{t.id})
			if err != nil {
				return reading, err
			}
			ack, have := other.Signals[0].Ack, reading.Signals[n].Ack
			if ack != nil && (have == nil || ack.SavedAt.After(have.SavedAt)) {
				reading.Signals[n].Ack = ack
			}
		}
	}
	return reading, err
}

// hopeful takes a Redis that is not there for one where all have saved.
type hopeful struct {
	site  *site
	redis redisServer
}

func (h hopeful) Read(ctx context.Context, pods []checkpoint.PodID) (checkpoint.Reading, error) {
	reading, err := h.redis.Read(ctx, pods)
	if err == nil {
		return reading, nil
	}
	reading = checkpoint.Reading{Now: h.site.clock}
	for range pods {
		reading.Signals = append(reading.Signals, checkpoint.Signals{Ack: &checkpoint.Ack{SavedAt: h.site.clock}})
	}
	return reading, nil
}

// everReleased says whether a person has ever released an instance.
func (s *site) everReleased(instance string) bool {
	for _, p := range s.trainers {
		if p.instance == instance && p.released {
			return true
		}
	}
	return false
}

// remembering answers with what it knows of Pods when it is not reached.
type remembering struct{ *apiServer }

func (r remembering) CoreV1() typedcorev1.CoreV1Interface { return r }

func (r remembering) Pods(namespace string) typedcorev1.PodInterface {
	reached := *r.apiServer
	reached.down = false
	return reached.Pods(namespace)
}

// forgetful has no record when it is asked for all of it.
type forgetful struct{ *apiServer }

func (f forgetful) CoreV1() typedcorev1.CoreV1Interface { return f }

func (f forgetful) ConfigMaps(namespace string) typedcorev1.ConfigMapInterface {
	return forgottenConfigMaps{f.apiServer.ConfigMaps(namespace)}
}

type forgottenConfigMaps struct{ typedcorev1.ConfigMapInterface }

func (forgottenConfigMaps) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	return &corev1.ConfigMapList{}, nil
}
