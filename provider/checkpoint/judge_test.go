package checkpoint

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	noon   = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	policy = Policy{MaxAge: 20 * time.Minute, AbandonAfter: time.Hour}
)

func at(minutes float64) time.Time { return noon.Add(time.Duration(minutes * float64(time.Minute))) }

func ackAt(minutes float64) *Ack { return &Ack{SavedAt: at(minutes)} }

// TestJudge has cases for every row of the table "When a pod is clear" in README.md.
// Times are minutes around noon, which is now.
func TestJudge(t *testing.T) {
	running := Facts{Stage: Running, Started: at(-60)}
	terminating := Facts{Stage: Terminating, Started: at(-60), TerminatingSince: at(-2), Grace: 5 * time.Minute}
	late := Facts{Stage: Terminating, Started: at(-90), TerminatingSince: at(-10), Grace: 5 * time.Minute}
	gone := Facts{Stage: Gone, Started: at(-60), TerminatingSince: at(-30), Grace: 5 * time.Minute, Ended: at(-25)}
	failed := Facts{Stage: Failed, Started: at(-60), Ended: at(-30)}
	vanished := Facts{Stage: Vanished, Started: at(-60), Ended: at(-30)}
	notReady := Facts{Stage: Running, Started: at(-120), NodeNotReadySince: at(-30)}
	echo := func(id string, savedAt time.Time) *Ack { return &Ack{SavedAt: savedAt, Request: id} }
	asked := &Request{ID: "r1", RequestedAt: at(-3)}

	for name, c := range map[string]struct {
		pod       Facts
		request   *Request
		ack       *Ack
		clear     bool
		abandoned bool
		reason    string
		until     time.Time
	}{
		"runs, never acknowledged":                         {pod: running, reason: "has not acknowledged"},
		"runs, acknowledged lately":                        {pod: running, ack: ackAt(-5), clear: true},
		"runs, acknowledged just within maxAge":            {pod: running, ack: ackAt(-20), clear: true},
		"runs, acknowledged too long ago":                  {pod: running, ack: ackAt(-21), reason: "21m0s old; maxAge is 20m0s"},
		"runs, acknowledged before it started":             {pod: Facts{Stage: Running, Started: at(-2)}, ack: ackAt(-5), reason: "older than the pod"},
		"runs, acknowledged at its start, within the skew": {pod: Facts{Stage: Running, Started: at(-2)}, ack: ackAt(-2 - 4.0/60), clear: true},
		"runs, acknowledged in the future":                 {pod: running, ack: ackAt(60), reason: "dated in the future"},
		"runs, its clock a little ahead":                   {pod: running, ack: ackAt(4.0 / 60), clear: true},
		"runs, a request does not revoke a fresh one":      {pod: running, ack: ackAt(-5), request: asked, clear: true},
		"runs, clock off, but it echoes the request":       {pod: running, ack: echo("r1", at(60)), request: asked, clear: true},
		"runs, clock off the other way, and echoes":        {pod: running, ack: echo("r1", at(-600)), request: asked, clear: true},
		"runs, echoes without a time":                      {pod: running, ack: echo("r1", time.Time{}), request: asked, clear: true},
		"runs, echoes another request":                     {pod: running, ack: echo("r0", time.Time{}), request: asked, reason: "an expired request"},
		"runs, echoes an empty request":                    {pod: running, ack: echo("", at(60)), request: &Request{RequestedAt: at(-3)}, reason: "dated in the future"},
		"is bound, nothing started":                        {pod: Facts{Stage: Waiting}, clear: true},
		"terminating, no acknowledgement":                  {pod: terminating, reason: "has not acknowledged"},
		"terminating, acknowledged before":                 {pod: terminating, ack: ackAt(-3), reason: "since its termination began"},
		"terminating, acknowledged since":                  {pod: terminating, ack: ackAt(-1), clear: true},
		"terminating, echoes a request made since":         {pod: terminating, ack: echo("r2", time.Time{}), request: &Request{ID: "r2", RequestedAt: at(-1)}, clear: true},
		"terminating, echoes a request made before":        {pod: terminating, ack: echo("r1", time.Time{}), request: asked, reason: "since its termination began"},
		"past its grace, not acknowledged":                 {pod: late, reason: "grace period is over", until: at(-10 + 5.5 + 60)},
		"past its grace, acknowledged since":               {pod: late, ack: ackAt(-9), clear: true},
		"past its grace, abandoned": {
			pod: Facts{Stage: Terminating, Started: at(-200), TerminatingSince: at(-66), Grace: 5 * time.Minute}, clear: true, abandoned: true,
		},
		"gone, fresh when its termination began":  {pod: gone, ack: ackAt(-49), clear: true},
		"gone, stale when its termination began":  {pod: gone, ack: ackAt(-51), reason: "too old by then", until: at(-25 + 60)},
		"gone, acknowledged while terminating":    {pod: gone, ack: ackAt(-28), clear: true},
		"gone, acknowledged afterwards":           {pod: gone, ack: ackAt(-1), clear: true},
		"gone, never acknowledged":                {pod: gone, reason: "it is gone: it has not acknowledged", until: at(35)},
		"gone, abandoned":                         {pod: Facts{Stage: Gone, TerminatingSince: at(-90), Ended: at(-60)}, clear: true, abandoned: true},
		"succeeded":                               {pod: Facts{Stage: Succeeded, Started: at(-60)}, clear: true},
		"failed, fresh by then":                   {pod: failed, ack: ackAt(-45), clear: true},
		"failed, stale by then":                   {pod: failed, ack: ackAt(-51), reason: "it failed", until: at(30)},
		"failed, abandoned":                       {pod: Facts{Stage: Failed, Ended: at(-61)}, clear: true, abandoned: true},
		"vanished, fresh by then":                 {pod: vanished, ack: ackAt(-45), clear: true},
		"vanished, never acknowledged":            {pod: vanished, reason: "it disappeared", until: at(30)},
		"vanished, abandoned":                     {pod: Facts{Stage: Vanished, Ended: at(-60)}, clear: true, abandoned: true},
		"node not ready, fresh by then":           {pod: notReady, ack: ackAt(-49), clear: true},
		"node not ready, stale by then":           {pod: notReady, ack: ackAt(-51), reason: "not Ready", until: at(30)},
		"node not ready, abandoned":               {pod: Facts{Stage: Running, NodeNotReadySince: at(-60)}, clear: true, abandoned: true},
		"terminating on a node that is not ready": {pod: Facts{Stage: Terminating, TerminatingSince: at(-2), Grace: time.Hour, NodeNotReadySince: at(-61)}, clear: true, abandoned: true},
		"terminating on a node that is not ready, acknowledged before": {
			pod: Facts{Stage: Terminating, Started: at(-60), TerminatingSince: at(-2), Grace: time.Hour, NodeNotReadySince: at(-1)}, ack: ackAt(-15),
			reason: "not Ready", until: at(59),
		},
		"terminating on a node that is not ready, acknowledged since": {
			pod: Facts{Stage: Terminating, Started: at(-60), TerminatingSince: at(-4), Grace: time.Hour, NodeNotReadySince: at(-1)}, ack: ackAt(-2), clear: true,
		},
		"abandoned before its node was not ready": {
			pod: Facts{Stage: Terminating, Started: at(-200), TerminatingSince: at(-66), Grace: 5 * time.Minute, NodeNotReadySince: at(-1)}, clear: true, abandoned: true,
		},
		"runs, asked by somebody whose clock is ahead": {
			pod: running, ack: echo("r2", time.Time{}), request: &Request{ID: "r2", RequestedAt: at(90)}, clear: true,
		},
		"a stage of a later version is never a pass": {pod: Facts{Stage: "frozen"}, ack: ackAt(0), reason: "unknown to this version"},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(noon, policy, c.pod, c.request, c.ack)
			require.Equal(t, c.clear, v.Clear, v.Reason)
			require.Equal(t, c.abandoned, v.Abandoned, v.Reason)
			require.Contains(t, v.Reason, c.reason)
			require.WithinDuration(t, c.until, v.Until, 0)
		})
	}
}
