package property

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/provider/checkpoint"
)

// What must hold, written from the table "When a pod is clear" of
// provider/checkpoint/README.md and from nothing else. It goes
// by what is true in the cluster, where the provider goes by what it has seen;
// where the provider sees late it may only hold longer.

// tolerance is the skew that the protocol forgives.
const tolerance = 5 * time.Second

// killedAfter is how long after its grace period a pod is still expected to save.
const killedAfter = 30 * time.Second

// rules is the policy that the model goes by.
type rules struct{ maxAge, abandonAfter time.Duration }

// ending is how a pod came to its end.
type ending string

const (
	lives     ending = ""
	succeeded ending = "succeeded"
	failed    ending = "failed"
	gone      ending = "gone"     // after a termination
	vanished  ending = "vanished" // without one
)

// trainer is a pod, and all that is true of it.
type trainer struct {
	name, instance, node string
	id                   checkpoint.PodID
	number               int    // a later pod has a greater one
	slot                 string // its place with its controller, or nothing
	stranger             bool   // no training pod

	pod     *corev1.Pod // as the API server has it; nil when it is gone
	bound   time.Time
	started bool // a container has run
	term    time.Time
	grace   time.Duration
	end     ending
	endedAt time.Time
	wiped   bool // a kubelet has wiped its statuses

	ack *acknowledgement // what Redis has of it

	seen      bool // the provider that leads has seen it run, or has read of it
	written   bool // the record in the API server has it
	released  bool // a person has let it go
	seenToEnd bool // the provider, and its record, have it as terminating
	settled   bool // it was over, and clear, when the provider looked
}

// acknowledgement is what a trainer wrote, before it was put into words.
type acknowledgement struct {
	malformed bool
	savedAt   time.Time // zero without
	request   string
}

func (p *trainer) over() bool { return p.end != lives }

// terminating says whether it was deleted, and may still save.
func (p *trainer) terminating() bool { return !p.term.IsZero() && !p.over() }

// saved is the newest save that its acknowledgement proves at a time; zero when
// it proves none.
func (s *site) saved(p *trainer) time.Time {
	if p.ack == nil || p.ack.malformed {
		return time.Time{}
	}
	var at time.Time
	if !p.ack.savedAt.After(s.clock.Add(tolerance)) {
		at = p.ack.savedAt
	}
	if asked, ok := s.request(p); ok && p.ack.request == asked.ID && asked.RequestedAt.After(at) {
		at = asked.RequestedAt
	}
	if at.Before(p.bound.Add(-tolerance)) {
		return time.Time{}
	}
	return at
}

// request is the one in force.
func (s *site) request(p *trainer) (checkpoint.Request, bool) {
	raw, ok := s.redis.get(checkpoint.RequestKey(keyPrefix, p.id))
	if !ok {
		return checkpoint.Request{}, false
	}
	request, err := checkpoint.DecodeRequest([]byte(raw))
	return request, err == nil
}

// clear is the table. Its error is why the pod is not.
func (s *site) clear(p *trainer) (bool, string) {
	if !p.started {
		return true, ""
	}
	switch p.end {
	case succeeded:
		return true, ""
	case failed, vanished, gone:
		return s.clearAtLast(p)
	}
	at := s.saved(p)
	notReady := s.notReadySince(p.instance)
	switch {
	case p.terminating():
		if newer(at, p.term) || s.abandoned(p.term.Add(p.grace+killedAfter)) || s.abandoned(notReady) {
			return true, ""
		}
		return false, "it terminates and has not acknowledged since"
	case !notReady.IsZero():
		if newer(at, notReady.Add(-s.rules.maxAge)) || s.abandoned(notReady) {
			return true, ""
		}
		return false, "its node is not Ready, and it had not acknowledged"
	default:
		if newer(at, s.clock.Add(-s.rules.maxAge)) {
			return true, ""
		}
		return false, "it runs and has no fresh acknowledgement"
	}
}

// clearAtLast is the table's part for pods that are over.
func (s *site) clearAtLast(p *trainer) (bool, string) {
	since := p.endedAt
	if !p.term.IsZero() && p.term.Before(since) {
		since = p.term
	}
	if newer(s.saved(p), since.Add(-s.rules.maxAge)) || s.abandoned(p.endedAt) || s.succeededBy(p) {
		return true, ""
	}
	return false, "it is " + string(p.end) + " and had not acknowledged"
}

// succeededBy says whether a later pod of the same place has acknowledged since.
func (s *site) succeededBy(p *trainer) bool {
	for _, q := range s.trainers {
		if p.slot == "" || q.slot != p.slot || q.number < p.number || q == p {
			continue
		}
		if at := s.saved(q); !at.IsZero() && at.After(p.endedAt) {
			return true
		}
	}
	return false
}

// newer says whether a save is not older than a time.
func newer(saved, than time.Time) bool {
	return !saved.IsZero() && !saved.Before(than.Add(-tolerance))
}

// abandoned says whether it is long enough ago that somebody could save last.
func (s *site) abandoned(since time.Time) bool {
	return !since.IsZero() && !s.clock.Before(since.Add(s.rules.abandonAfter))
}

// notReadySince is since when the provider has seen an instance's Node not Ready.
func (s *site) notReadySince(instance string) time.Time {
	node, ok := s.heard[nodeOf(instance)]
	if !ok {
		return time.Time{}
	}
	if c := node.Status.Conditions[0]; c.Status != corev1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// recorded says whether the provider has a pod in its record.
func (s *site) recorded(p *trainer) bool { return p.seen && !p.settled && p.end != succeeded }

// owed says whether the provider knows of a pod that has something to lose.
func (s *site) owed(p *trainer) bool { return s.recorded(p) && !p.released }

// patient says whether the guard bears with a Redis that has just gone: its marks stay as
// they were, since nothing dies of it.
func (s *site) patient() bool {
	const patience = 15 * time.Second
	return s.redisDown && s.clock.Sub(s.unread) < patience
}

// unsafe is why an instance must not go; nothing when it may. inSight says
// whether the provider knows at this moment which Node stands for it.
func (s *site) unsafe(instance string, inSight bool) string {
	var why []string
	for _, p := range s.trainers {
		if p.stranger || p.instance != instance {
			continue
		}
		there := p.pod != nil && inSight
		if s.redisDown && (there || s.recorded(p)) {
			why = append(why, p.name+": Redis cannot be asked")
			continue
		}
		unheardOf := there && !p.seen && !p.wiped && !p.released // nobody can know that a pod has run whose statuses are gone
		if !s.owed(p) && !unheardOf {
			continue
		}
		if ok, because := s.clear(p); !ok {
			why = append(why, p.name+": "+because)
		}
	}
	return strings.Join(why, "; ")
}
