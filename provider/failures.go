package provider

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/report"
)

// Cluster Autoscaler deletes a failed placeholder within seconds, and what the
// cloud said of the launch goes with it. So the last failures of each group are
// kept here.

// maxFailures is how many different failures of a group are kept. A group whose
// launches fail repeats one or two; more of them would fill the report.
const maxFailures = 5

// reasonLaunchFailed is the reason of the Event on Pods that wait for the launch.
const reasonLaunchFailed = "LaunchFailed"

// launchFailure is a reason why launches of a group failed.
type launchFailure struct {
	cloud.LaunchError
	count       int
	first, last time.Time
}

// untold is what has been counted and not yet logged.
type untold struct {
	group string
	cloud.LaunchError
	count int
}

// noteFailuresLocked counts the placeholders of a reading that have failed since
// the previous one.
func (s *Server) noteFailuresLocked(state cloud.Group) {
	record := s.recordLocked(state.ID)
	var failed map[string]bool
	for _, i := range state.Instances {
		if i.Error == nil {
			continue
		}
		if failed == nil {
			failed = map[string]bool{}
		}
		failed[i.ID] = true
		if !record.failed[i.ID] {
			record.fail(*i.Error, s.now())
			s.metrics.launchFailures.WithLabelValues(state.ID, string(i.Error.Code)).Inc()
			s.tellLater(state.ID, *i.Error)
		}
	}
	record.failed = failed
}

// fail keeps a failure, the newest last.
func (r *groupRecord) fail(why cloud.LaunchError, at time.Time) {
	f := launchFailure{LaunchError: why, first: at}
	if n := slices.IndexFunc(r.failures, func(f launchFailure) bool { return f.LaunchError == why }); n >= 0 {
		f = r.failures[n]
		r.failures = slices.Delete(r.failures, n, n+1)
	}
	f.count++
	f.last = at
	r.failures = append(r.failures, f)
	r.failures = r.failures[max(0, len(r.failures)-maxFailures):]
}

func (s *Server) tellLater(group string, why cloud.LaunchError) {
	same := func(u untold) bool { return u.group == group && u.LaunchError == why }
	if n := slices.IndexFunc(s.untold, same); n >= 0 {
		s.untold[n].count++
		return
	}
	s.untold = append(s.untold, untold{group, why, 1})
}

// tellFailures logs new failures, a line for each reason of a group, and writes
// Events on the Pods that wait for the group. The caller must not hold s.mu.
func (s *Server) tellFailures() {
	s.mu.Lock()
	news := s.untold
	s.untold = nil
	s.mu.Unlock()
	for _, u := range news {
		message := shorten(u.Message, maxErrorMessage)
		s.log.Warn("launch failed", zap.String(logkey.NodeGroup, u.group), zap.Int(logkey.Instances, u.count),
			zap.String(logkey.Reason, string(u.Code)), zap.String(logkey.Error, message))
		if g, ok := s.current.Load().groups[u.group]; ok {
			s.warnWaiting(g, reasonLaunchFailed, fmt.Sprintf("%d launches of node group %s failed: %s: %s", u.count, u.group, u.Code, message))
		}
	}
}

func (r *groupRecord) reportFailures() []report.LaunchFailure {
	var all []report.LaunchFailure
	for _, f := range slices.Backward(r.failures) {
		all = append(all, report.LaunchFailure{Code: string(f.Code), Message: shorten(f.Message, maxErrorMessage), Count: f.count, First: f.first, Last: f.last})
	}
	return all
}
