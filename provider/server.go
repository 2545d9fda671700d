// Package provider is the gRPC service CloudProvider that Cluster Autoscaler
// calls with --cloud-provider=externalgrpc: one file a call, all reads from
// one immutable snapshot, all writes through to the cloud.
//
// A read goes handler → snapshot. A write goes handler → lane (one at a time
// in a group) → checks → cloud.Backend → a new snapshot, and only then the
// answer. Which machines there are is the Backend's to say, how many more there
// may be the ledger's (package quota), and what a group looks like the
// catalogue's (package nodegroup). status.go alone makes gRPC statuses.
//
// It does not know any cloud, Redis or where its configuration came from.
package provider

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/logkey"
	"gpu-node-provider/proto"
	"gpu-node-provider/provider/cluster"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/quota"
)

// Options are a Server's collaborators. Only Catalogue and Backend are needed.
type Options struct {
	Catalogue *nodegroup.Catalogue
	Backend   cloud.Backend
	// Gate decides whether nodes may go; nil lets everything pass.
	Gate Gate
	// Cluster is the view of the Kubernetes cluster; nil without one.
	Cluster *cluster.View
	// ReadEvery is how often the cloud is read. Where it is longer than Cluster
	// Autoscaler's own interval, its Refresh is answered from the last reading; 0
	// reads at each.
	ReadEvery time.Duration
	// ServiceQuotas tells the limit and the use of a quota that the cloud keeps;
	// nil where the cloud has none.
	ServiceQuotas func(ctx context.Context, code string) (cloud.ServiceQuota, error)
	// Log may be nil.
	Log *zap.Logger
	// Registerer takes the metrics; it may be nil.
	Registerer prometheus.Registerer
	// Now is time.Now unless a test replaces it.
	Now func() time.Time
}

// Server answers Cluster Autoscaler.
type Server struct {
	proto.UnimplementedCloudProviderServer

	readEvery time.Duration
	quotas    serviceQuotas
	backend   cloud.Backend
	gate      Gate
	cluster   *cluster.View
	ledger    *quota.Ledger
	log       *zap.Logger
	metrics   *metrics
	now       func() time.Time

	current atomic.Pointer[snapshot] // never nil

	// provision is Cluster Autoscaler's --max-node-provision-time, a time.Duration; 0
	// until it has told.
	provision atomic.Int64
	// departing has Run cordon what is on its way out soon.
	departing chan struct{}

	refreshing lane    // one Describe of everything at a time
	failure    failure // the last reading, if it failed; guarded by refreshing

	mu     sync.Mutex // guards what follows, and the step from one snapshot to the next
	groups map[string]*groupRecord
	toldOf map[podReason]time.Time // Events on waiting Pods, so as not to repeat them
	untold []untold                // see tellFailures
	// reloadError is why the file on disk is not the one in force.
	reloadError error
	// told is the snapshot that the last NodeGroups returned.
	told *snapshot
}

var _ proto.CloudProviderServer = (*Server)(nil)

// groupRecord is what has to be remembered of a group between snapshots.
type groupRecord struct {
	lane lane

	// writing is true from the beginning of a write to its end.
	writing bool

	request scaleUpRequest
	// announced is how much growth the last NodeGroups had room for, less what was granted
	// since: Cluster Autoscaler plans with it until the next, also when other groups
	// have used up what they share. invited is true for growth beyond every limit.
	announced int
	invited   bool
	// ordered counts the machines of a discovered group that were asked for and have not
	// arrived, and bought holds those that have; see ordered.go.
	ordered int
	bought  map[string]bool
	// listed and target are the machines and the target of the last picture.
	listed map[string]bool
	target int
	// failed are the placeholders whose failure is in failures.
	failed map[string]bool
	// failures are the last failed launches, at most maxFailures, the newest last.
	failures []launchFailure
}

// New tells the cloud about the node groups and loads the first snapshot. It has no
// effect that a second call after a failed one would repeat.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Server{
		readEvery:  o.ReadEvery,
		quotas:     serviceQuotas{read: o.ServiceQuotas, last: map[string]cloud.ServiceQuota{}, others: map[string]measured{}},
		backend:    o.Backend,
		gate:       o.Gate,
		cluster:    o.Cluster,
		ledger:     quota.New(o.Now),
		log:        o.Log,
		now:        o.Now,
		refreshing: newLane(),
		departing:  make(chan struct{}, 1),
		groups:     map[string]*groupRecord{},
		toldOf:     map[podReason]time.Time{},
		metrics:    newMetrics(),
	}
	if err := s.loadFirst(ctx, o.Catalogue); err != nil {
		return nil, err
	}
	s.metrics.register(o.Registerer, s)
	return s, nil
}

// loadFirst puts the first snapshot in place.
func (s *Server) loadFirst(ctx context.Context, c *nodegroup.Catalogue) error {
	if err := s.backend.Configure(ctx, c.Specs()); err != nil {
		return fmt.Errorf("configuring the node groups in the cloud: %w", err)
	}
	s.ledger.Configure(budget(c))
	states, err := s.backend.Describe(ctx)
	if err != nil {
		return fmt.Errorf("reading the node groups from the cloud: %w", err)
	}
	s.measureQuotas(ctx, c, byGroup(states))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rememberSurge(states)
	s.publishLocked(c, byGroup(states), s.now())
	s.announceLocked(s.current.Load()) // to a Cluster Autoscaler that asked another process last
	s.warnOfOverrides(c)
	s.warnOfPrices(c)
	s.metrics.groups(c)
	return nil
}

// rememberSurge puts what an earlier process asked for into the surge windows.
func (s *Server) rememberSurge(states []cloud.Group) {
	for _, state := range states {
		for _, i := range state.Instances {
			if i.State != cloud.Deleting {
				s.ledger.Remember(state.ID, i.Since, 1)
			}
		}
	}
}

// refreshInterval is how often the snapshot is renewed without being asked,
// unless ReadEvery says otherwise.
// Cluster Autoscaler asks in each of its loops; this is for status, metrics and
// Events while it is away.
const refreshInterval = 10 * time.Second

// Run keeps the snapshot fresh and tells waiting Pods what they wait for,
// until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(cmp.Or(s.readEvery, refreshInterval))
	defer ticker.Stop()
	uncordoned := time.NewTimer(0)
	<-uncordoned.C
	defer uncordoned.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.departing:
			uncordoned.Reset(uncordonTime)
			continue
		case <-uncordoned.C:
			s.cordonDeparting(ctx)
			continue
		case <-ticker.C:
		}
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("refresh failed, keeping the previous snapshot", zap.Error(err))
		}
		s.measureQuotas(ctx, s.current.Load().catalogue, s.current.Load().states())
		s.cordonDeparting(ctx)
		s.explainWaiting()
	}
}

// uncordonTime is how long Cluster Autoscaler is given to uncordon the nodes of a
// batch of which part has failed, once it has been told.
const uncordonTime = 2 * time.Second

// cordonDeparting keeps nodes that are on their way out unschedulable:
// Cluster Autoscaler uncordons a whole batch when part of it failed.
func (s *Server) cordonDeparting(ctx context.Context) {
	if s.cluster == nil {
		return
	}
	for _, g := range s.current.Load().order {
		for _, i := range g.state.Instances {
			if i.State != cloud.Deleting {
				continue
			}
			if err := s.cluster.Cordon(ctx, i.ID); err != nil {
				s.log.Warn("failed to cordon the node of an instance that terminates", zap.String(logkey.Instance, i.ID), zap.Error(err))
			}
		}
	}
}

// cordonSoon has Run do so, without waiting for it.
func (s *Server) cordonSoon() {
	select {
	case s.departing <- struct{}{}:
	default: // it is going to
	}
}

func byGroup(states []cloud.Group) map[string]cloud.Group {
	m := make(map[string]cloud.Group, len(states))
	for _, state := range states {
		m[state.ID] = state
	}
	return m
}
