package checkpoint

import (
	"fmt"
	"time"
)

// Policy is how acknowledgements are judged.
type Policy struct {
	// MaxAge is how old an acknowledgement may be and still count.
	MaxAge time.Duration
	// AbandonAfter is how long a pod that can no longer save holds its instance.
	AbandonAfter time.Duration
}

const (
	// skew is forgiven between the trainer's savedAt and the times of the API server.
	skew = 5 * time.Second
	// killedAfter is how long after its grace period a pod may still be there
	// before nobody expects it to save: the time that Cluster Autoscaler gives it
	// too (utils/drain).
	killedAfter = 30 * time.Second
)

// Stage is how far a training pod has come.
type Stage string

// The stages. Of several the last one that applies is meant.
const (
	Waiting     Stage = "waiting"     // bound, and no container has ever started
	Running     Stage = "running"     // started
	Terminating Stage = "terminating" // deleted, and its processes may still save
	Gone        Stage = "gone"        // its processes, or the object, are gone after a termination
	Succeeded   Stage = "succeeded"   // by itself, not when it was told to stop
	Failed      Stage = "failed"      // or was stopped by its kubelet, whatever its exit code
	Vanished    Stage = "vanished"    // the object is gone without a termination that we saw
)

// Facts are what is known of a training pod that is or was on an instance.
type Facts struct {
	Stage Stage `json:"stage"`
	// Started is when its first container started; zero when none ever did.
	Started time.Time `json:"started,omitzero"`
	// TerminatingSince is when its deletion was asked for, Grace how long it has
	// from then on.
	TerminatingSince time.Time     `json:"terminatingSince,omitzero"`
	Grace            time.Duration `json:"grace,omitempty"`
	// Ended is when it failed, vanished, or was gone.
	Ended time.Time `json:"ended,omitzero"`
	// UpSince is since when a container of a running pod runs; zero when none does.
	UpSince time.Time `json:"-"`
	// StuckSince is since when its containers have not run for long, though it is not
	// over: they crash again and again, or cannot start. Zero while they run.
	StuckSince time.Time `json:"stuckSince,omitzero"`
	// NodeNotReadySince is zero while its node is Ready.
	NodeNotReadySince time.Time `json:"nodeNotReadySince,omitzero"`
}

// Verdict is what Judge says of a pod.
type Verdict struct {
	Clear bool
	// Abandoned is true when it is clear only because nobody can save any more and
	// the time for it is over: what it had not saved is lost.
	Abandoned bool
	// Reason is why it is held, or why it is clear, for people.
	Reason string
	// Until is when it will be clear without anybody's doing, if it will; zero otherwise.
	Until time.Time
}

// Judge decides whether a pod's work is safe, by the table "When a pod is clear" of
// README.md. now is Redis' time. It is a pure function.
func Judge(now time.Time, policy Policy, pod Facts, request *Request, ack *Ack) Verdict {
	saved, problem := savedAt(now, pod, request, ack)
	switch pod.Stage {
	case Waiting:
		return Verdict{Clear: true, Reason: "no container has started"}
	case Succeeded:
		return Verdict{Clear: true, Reason: "it succeeded"}
	case Running, Terminating:
		switch {
		case !pod.NodeNotReadySince.IsZero():
			return notReady(now, policy, pod, saved, problem)
		case pod.Stage == Running:
			return running(now, policy, pod, saved, problem)
		default:
			return terminating(now, policy, pod, saved, problem)
		}
	case Gone:
		return cannotSave(now, policy, pod.Ended, saved, pod.TerminatingSince.Add(-policy.MaxAge), problem, "it is gone")
	case Failed:
		return cannotSave(now, policy, pod.Ended, saved, pod.Ended.Add(-policy.MaxAge), problem, "it failed or was stopped")
	case Vanished:
		return cannotSave(now, policy, pod.Ended, saved, pod.Ended.Add(-policy.MaxAge), problem, "it disappeared")
	default: // a record of a later version: nothing is let go on a guess
		return Verdict{Reason: fmt.Sprintf("its recorded stage %q is unknown to this version", pod.Stage)}
	}
}

// savedAt is the time of the newest save that an acknowledgement proves; zero
// when it proves none, and then problem says why.
func savedAt(now time.Time, pod Facts, request *Request, ack *Ack) (saved time.Time, problem string) {
	if ack == nil {
		return time.Time{}, "it has not acknowledged a checkpoint"
	}
	saved = ack.SavedAt
	if tooEarly(now, saved) {
		saved, problem = time.Time{}, "its acknowledgement is dated in the future; check the trainer's clock"
	}
	// The trainer read the request's id before it began to save, so the save is
	// newer than the request, whatever its clock says.
	if answers(*ack, request) && request.RequestedAt.After(saved) {
		saved, problem = request.RequestedAt, ""
		if saved.After(now) { // whoever asked has a clock that is ahead
			saved = now
		}
	}
	if saved.IsZero() && problem == "" {
		problem = "its acknowledgement answers an expired request"
	}
	if !saved.IsZero() && saved.Before(pod.Started.Add(-skew)) {
		saved, problem = time.Time{}, "its acknowledgement is older than the pod"
	}
	return saved, problem
}

func tooEarly(now, saved time.Time) bool { return saved.After(now.Add(skew)) }

// answers says whether an acknowledgement names the request that stands.
func answers(ack Ack, request *Request) bool {
	return request != nil && ack.Request != "" && ack.Request == request.ID
}

// ofTheFuture says whether an acknowledgement proves nothing because of its time.
func ofTheFuture(now time.Time, ack Ack, request *Request) bool {
	return tooEarly(now, ack.SavedAt) && !answers(ack, request)
}

func running(now time.Time, policy Policy, pod Facts, saved time.Time, problem string) Verdict {
	if !saved.IsZero() && saved.Before(now.Add(-policy.MaxAge-skew)) {
		problem = fmt.Sprintf("its last acknowledgement is %s old; maxAge is %s", age(now, saved), policy.MaxAge)
	} else if !saved.IsZero() {
		return Verdict{Clear: true, Reason: "it acknowledged " + age(now, saved) + " ago"}
	}
	if !pod.StuckSince.IsZero() {
		return abandon(now, policy, pod.StuckSince, "its containers do not keep running: "+problem)
	}
	return Verdict{Reason: problem}
}

func terminating(now time.Time, policy Policy, pod Facts, saved time.Time, problem string) Verdict {
	if !saved.IsZero() && !saved.Before(pod.TerminatingSince.Add(-skew)) {
		return Verdict{Clear: true, Reason: "it acknowledged after its termination began"}
	}
	if problem == "" {
		problem = "it has not acknowledged since its termination began"
	}
	if end := killed(pod); now.After(end) {
		return abandon(now, policy, end, "its grace period is over: "+problem)
	}
	return Verdict{Reason: problem}
}

// killed is when nobody expects a terminating pod to save any more.
func killed(pod Facts) time.Time { return pod.TerminatingSince.Add(pod.Grace + killedAfter) }

func notReady(now time.Time, policy Policy, pod Facts, saved time.Time, problem string) Verdict {
	since := pod.NodeNotReadySince
	oldest := since.Add(-policy.MaxAge)
	if pod.Stage == Terminating {
		oldest = pod.TerminatingSince // it may still be saving
		if end := killed(pod); end.Before(since) {
			since = end // what it could not do before, it cannot do now either
		}
	}
	return cannotSave(now, policy, since, saved, oldest, problem, "its node is not Ready")
}

// cannotSave judges a pod that cannot save any more, since end: an
// acknowledgement that was fresh then is enough, else only time helps.
func cannotSave(now time.Time, policy Policy, end, saved, oldest time.Time, problem, why string) Verdict {
	if !saved.IsZero() && !saved.Before(oldest.Add(-skew)) {
		return Verdict{Clear: true, Reason: why + ", and it had acknowledged"}
	}
	if problem == "" {
		problem = "its last acknowledgement was too old by then"
	}
	return abandon(now, policy, end, why+": "+problem)
}

func abandon(now time.Time, policy Policy, since time.Time, reason string) Verdict {
	until := since.Add(policy.AbandonAfter)
	if now.Before(until) {
		return Verdict{Reason: reason, Until: until}
	}
	return Verdict{Clear: true, Abandoned: true, Reason: fmt.Sprintf("%s; abandoned after %s", reason, policy.AbandonAfter)}
}

func age(now, then time.Time) string {
	return max(0, now.Sub(then)).Round(time.Second).String()
}
