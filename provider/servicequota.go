package provider

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/quota"
	"gpu-node-provider/provider/report"
)

// serviceQuotas are the last readings, by the quota's name in the node group file.
type serviceQuotas struct {
	read func(ctx context.Context, code string) (cloud.ServiceQuota, error)

	mu     sync.Mutex
	last   map[string]cloud.ServiceQuota
	others map[string]measured
}

// measured is what others use, worked out when their use was measured and not
// between: machines of ours that come meanwhile are in no older measurement.
type measured struct {
	at    time.Time
	units int64
}

// measureTimeout bounds the readings of one round: growth is bounded by the last
// ones meanwhile.
const measureTimeout = 20 * time.Second

// measureQuotas reads what the cloud says of its own quotas. One that cannot be read
// keeps its last values; before the first it binds nobody, since the cloud itself
// refuses what passes it.
func (s *Server) measureQuotas(ctx context.Context, catalogue *nodegroup.Catalogue, states map[string]cloud.Group) {
	if s.quotas.read == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	for _, q := range catalogue.Quotas() {
		if q.ServiceQuota() == "" {
			continue
		}
		reading, err := s.quotas.read(ctx, q.ServiceQuota())
		if err != nil {
			s.log.Warn("failed to read a service quota", zap.String(logkey.Quota, q.Name), zap.String(logkey.ServiceQuota, q.ServiceQuota()), zap.Error(err))
			reading = s.quotas.failed(q.Name, err)
		}
		s.quotas.keep(q.Name, reading)
		if !reading.UsedAt.IsZero() {
			others := s.quotas.othersOf(q.Name, reading, oursOf(q, catalogue, states))
			s.ledger.Measure(q.Name, int64(reading.Limit)*resourceScale, others, reading.Source)
		}
	}
}

// oursOf is what the machines of the groups of a quota use, in its units.
func oursOf(q nodegroup.Quota, catalogue *nodegroup.Catalogue, states map[string]cloud.Group) (used int64) {
	for _, id := range q.Groups {
		g, ok := catalogue.Lookup(id)
		if !ok {
			continue
		}
		b := groupBudget(g)
		for _, i := range states[id].Instances {
			if !i.Placeholder {
				used += b.UnitsOf(i.Type)[q.Resource]
			}
		}
	}
	return used
}

func (q *serviceQuotas) keep(name string, reading cloud.ServiceQuota) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last[name] = reading
}

// othersOf is what others use by a reading. The same reading may come again.
func (q *serviceQuotas) othersOf(name string, reading cloud.ServiceQuota, ours int64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if last, ok := q.others[name]; ok && last.at.Equal(reading.UsedAt) {
		return last.units
	}
	q.others[name] = measured{reading.UsedAt, max(0, int64(reading.Use)*resourceScale-ours)}
	return q.others[name].units
}

// failed is the last reading, with why there is none newer.
func (q *serviceQuotas) failed(name string, why error) cloud.ServiceQuota {
	q.mu.Lock()
	defer q.mu.Unlock()
	reading := q.last[name]
	reading.Problem = why
	return reading
}

func (q *serviceQuotas) report(u quota.Usage) report.Quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := report.Quota{Name: u.Name, Resource: u.Resource, Used: u.Used, Limit: u.Limit, Source: u.Source, Unknown: !u.Known}
	if reading, ok := q.last[u.Name]; ok {
		if !reading.UsedAt.IsZero() {
			r.ReadAt = &reading.UsedAt
		}
		if reading.Problem != nil {
			r.Problem = reading.Problem.Error()
		}
	}
	return r
}
