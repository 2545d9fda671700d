package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"gpu-node-provider/provider/cluster"
)

// signals are read by a Store; tests of races put something in between.
type signals interface {
	Read(ctx context.Context, pods []PodID) (Reading, error)
}

// Assessor brings together what is known of training pods: the cluster, the
// record, and what Redis holds.
type Assessor struct {
	View     *cluster.View
	Record   *Record
	Signals  signals
	Selector labels.Selector
	// GroupLabel is on Nodes of this cloud.
	GroupLabel string
	// Policy is asked at each use, since a reload may change it.
	Policy func() Policy
	// Now is the provider's clock. It is used only for what the record notes
	// itself; Redis' judges.
	Now func() time.Time
	// Rules are Judge when nil; whoever checks a test of the whole puts wrong ones in.
	Rules func(now time.Time, policy Policy, pod Facts, request *Request, ack *Ack) Verdict
}

// ID is the identity of a pod in the record.
func (p Pod) ID() PodID { return PodID{Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)} }

// PodOf is a Pod's entry in the record.
func PodOf(pod *corev1.Pod, node *corev1.Node) Pod {
	return Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Slot: SlotOf(pod), Facts: FactsOf(pod, node)}
}

// On are the Pods in memory that are on a Node and train, or are in its record.
func (a *Assessor) On(node string, recorded []Pod) []*corev1.Pod {
	return a.View.PodsOn(node, func(uid types.UID, of labels.Labels) bool {
		return a.Selector.Matches(of) || slices.ContainsFunc(recorded, func(p Pod) bool { return p.UID == string(uid) })
	})
}

// Merge is what an instance holds: the training pods that are there, and those
// in the record that are not there any more, in an order that does not change by itself.
func (a *Assessor) Merge(recorded []Pod, there []*corev1.Pod, node *corev1.Node) []Pod {
	var all []Pod
	known := map[string]Pod{}
	for _, p := range recorded {
		known[p.UID] = p
	}
	for _, pod := range there {
		if Trains(pod, a.Selector) {
			all = append(all, a.present(pod, node, known[string(pod.UID)]))
		}
		delete(known, string(pod.UID))
	}
	for _, p := range known {
		all = append(all, a.missing(p))
	}
	slices.SortFunc(all, func(a, b Pod) int { return cmp.Compare(a.UID, b.UID) })
	return all
}

// present is the entry of a pod that is there; before is what the record has of
// it, if it has something.
func (a *Assessor) present(pod *corev1.Pod, node *corev1.Node, before Pod) Pod {
	entry := PodOf(pod, node)
	entry.There, entry.Released = true, before.Released
	told := before.Stage == Terminating || before.Stage == Gone
	ran := before.Stage != "" && before.Stage != Waiting
	switch {
	case entry.Stage == Succeeded && told: // the object says so no more: a finalizer keeps it
		entry.Stage, entry.TerminatingSince, entry.Ended = Gone, before.TerminatingSince, before.Ended
	case entry.Stage == Waiting && ran: // a kubelet that rejects it after a restart wipes its statuses
		entry.Started, entry.Stage = before.Started, phaseOf(pod)
	}
	entry.StuckSince = a.stuckSince(entry.Facts, before.Facts)
	if (entry.Stage == Failed || entry.Stage == Gone) && entry.Ended.IsZero() {
		if entry.Ended = before.Ended; entry.Ended.IsZero() {
			entry.Ended = a.Now()
		}
	}
	return entry
}

// phaseOf is the stage of a pod that has run, whatever its statuses say.
func phaseOf(pod *corev1.Pod) Stage {
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		return Failed
	case pod.DeletionTimestamp != nil:
		return Terminating
	default:
		return Running
	}
}

// steadyAfter is how long a container has to run until it is not taken for one that
// crashes again and again: a kubelet's own measure (its back-off is reset then).
// Where pods are abandoned sooner, half of that time.
const steadyAfter = 10 * time.Minute

// stuckSince is since when a pod's containers have not run for long.
func (a *Assessor) stuckSince(now, before Facts) time.Time {
	steady := min(steadyAfter, a.Policy().AbandonAfter/2)
	up := a.Now().Sub(now.UpSince).Abs() // far ahead means that the node's clock is wrong
	switch {
	case now.Stage != Running:
		return time.Time{}
	case now.UpSince.IsZero() && before.StuckSince.IsZero():
		return a.Now()
	case !now.UpSince.IsZero() && up >= steady:
		return time.Time{}
	default:
		return before.StuckSince
	}
}

// missing notes that a recorded pod is no more.
func (a *Assessor) missing(p Pod) Pod {
	p.There = false
	switch p.Stage {
	case Running:
		p.Stage, p.Ended = Vanished, a.Now()
	case Terminating:
		p.Stage, p.Ended = Gone, a.Now()
	case Failed: // its end is known
		p.Stage = Vanished
	}
	p.NodeNotReadySince, p.StuckSince = time.Time{}, time.Time{} // it is the pod that is gone now
	return p
}

// Judged is a pod and what Judge says of it.
type Judged struct {
	Pod
	Verdict
	Signals Signals

	saved time.Time // what its acknowledgement proves; zero when that is nothing
}

// Judge judges pods on one reading of Redis. Without pods nothing is read. An
// error means that nobody can tell.
func (a *Assessor) Judge(ctx context.Context, pods []Pod) ([]Judged, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	ids := make([]PodID, 0, len(pods))
	for _, p := range pods {
		ids = append(ids, p.ID())
	}
	heirs := a.heirs(pods)
	for _, h := range heirs {
		ids = append(ids, h.ID())
	}
	reading, err := a.Signals.Read(ctx, ids)
	if err != nil {
		return nil, err
	}
	judged := make([]Judged, 0, len(pods))
	for n, p := range pods {
		judged = append(judged, a.judge(reading.Now, p, reading.Signals[n]))
	}
	for n, h := range heirs {
		s := reading.Signals[len(pods)+n]
		saved, _ := savedAt(reading.Now, h.Facts, s.Request, s.Ack)
		inherit(judged, h, saved)
	}
	return judged, nil
}

func (a *Assessor) judge(now time.Time, p Pod, s Signals) Judged {
	rules := Judge
	if a.Rules != nil {
		rules = a.Rules
	}
	if s.Ack != nil && ofTheFuture(now, *s.Ack, s.Request) {
		s.BadAck = errFuture
	}
	v := rules(now, a.Policy(), p.Facts, s.Request, s.Ack)
	if !v.Clear && p.Released != "" {
		v = Verdict{Clear: true, Reason: "released by " + p.Released}
	}
	if !v.Clear && s.BadAck != nil {
		v.Reason = "acknowledgement ignored: " + s.BadAck.Error()
	}
	saved, _ := savedAt(now, p.Facts, s.Request, s.Ack)
	return Judged{Pod: p, Verdict: v, Signals: s, saved: saved}
}

// HadSaved says whether a pod that was told to stop had an acknowledgement that
// counted then. It may save once more, but its end loses no more than letting it
// go did: it is clear once it is gone.
func (j Judged) HadSaved(policy Policy) bool {
	return j.Stage == Terminating && !j.saved.Before(j.TerminatingSince.Add(-policy.MaxAge-skew))
}

// errFuture is why an acknowledgement that comes before its time is none.
var errFuture = errors.New("dated in the future; check the trainer's clock")

// heirs are the pods that have taken the places of pods that are no more.
func (a *Assessor) heirs(pods []Pod) []Pod {
	var heirs []Pod
	for _, p := range pods {
		if p.Slot == "" || p.Ended.IsZero() {
			continue
		}
		controller, _, _ := cutSlot(p.Slot)
		for _, pod := range a.View.PodsOf(types.UID(controller)) {
			if string(pod.UID) != p.UID && SlotOf(pod) == p.Slot {
				heirs = append(heirs, PodOf(pod, nil))
			}
		}
	}
	return heirs
}

// inherit clears earlier incarnations of a pod that has saved after they ended: it
// goes on with the same work, so theirs is safe or done anew. A pod that has not
// ended has no heir yet: an indexed Job replaces one that still terminates.
func inherit(judged []Judged, heir Pod, saved time.Time) {
	for n := range judged {
		p := &judged[n]
		if p.Clear || p.Slot != heir.Slot || p.UID == heir.UID || p.Ended.IsZero() {
			continue
		}
		if heir.Started.After(p.Started) && saved.After(p.Ended) {
			p.Verdict = Verdict{Clear: true, Reason: "its successor has acknowledged"}
		}
	}
}
