package aws

import (
	"slices"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"gpu-node-provider/cloud"
)

// goneFor is how long a machine that is no longer listed is still known as one
// of the group. EC2 itself forgets after an hour; a Node object that nobody
// cleans up outlives that, and within a day somebody will have.
const goneFor = 24 * time.Hour

// recentFailure is how old a failed launch may be to explain a unit that was missing
// at the first reading. AWS repeats a failing launch every few minutes at most.
const recentFailure = 10 * time.Minute

// group is what is remembered of a node group: what AWS said last, and what AWS
// does not say, namely which placeholder is which and what was written so
// lately that AWS may not show it yet. All of it is guarded by Cloud.mu.
type group struct {
	id, asg string

	// raw is what AWS said last, nil before it said anything, and rawAt when that
	// was by AWS's clock. problem is why it cannot be used, if so.
	raw     *types.AutoScalingGroup
	rawAt   time.Time
	problem error
	// ticket is that of the reading, or of the write after it.
	ticket uint64

	machines     map[string]machine // by provider id
	placeholders []placeholder      // in the order in which they were asked for
	// leaving are placeholders that a Cancel is giving up, or of which it is not
	// known whether it did: they go before the others.
	leaving map[string]bool
	lag     lag

	picture cloud.Group
}

// machine is an instance that has been seen in the group.
type machine struct {
	since  time.Time // when it was launched, or first listed where a write has seen it first
	seen   time.Time // when it was last listed
	market cloud.Market
}

// placeholder stands for a unit that was asked for and is not there.
type placeholder struct {
	id    string
	since time.Time
	// asked is AWS's time of the last look at which the unit was not asked for
	// yet: a launch that began earlier was not for it. If there was none, recentFailure
	// before the first.
	asked time.Time
	err   *cloud.LaunchError
}

// standing is a group at one moment, for a write to decide by.
type standing struct {
	asg *types.AutoScalingGroup // never changed by anybody
	// desired and live are in AWS's count: without standby.
	desired, live int
	min, max      int
	unsettled     cloud.Unsettled
	placeholders  []string
	states        map[string]stage // of each listed instance, by provider id
}

// shown is the desired capacity that AWS shows. A raise sends no less, whatever is remembered
// of earlier writes: AWS would end instances of its own choice.
func (s standing) shown() int { return int(awssdk.ToInt32(s.asg.DesiredCapacity)) }

// observed takes over what AWS said, unless something newer is known.
func (g *group) observed(s sighting, ticket uint64, c *Cloud) {
	if ticket < g.ticket {
		return
	}
	g.ticket = ticket
	if g.problem = s.problem; g.problem != nil {
		return
	}
	now := c.now()
	asked := g.rawAt
	if asked.IsZero() { // an older failure was not of a unit that is missing now
		asked = s.at.Add(-recentFailure)
	}
	g.raw, g.rawAt = s.asg, s.at
	g.lag.seen(int(awssdk.ToInt32(s.asg.DesiredCapacity)), now)
	for _, i := range s.asg.Instances {
		id := providerID(i)
		m, known := g.machines[id]
		if !known {
			m.since = now
			if l, ok := s.launched[awssdk.ToString(i.InstanceId)]; ok {
				m.since, m.market = l.at, l.market
			}
		}
		m.seen = now
		g.machines[id] = m
	}
	for id, m := range g.machines {
		if now.Sub(m.seen) > goneFor {
			delete(g.machines, id)
		}
	}
	stand := g.standing(now)
	g.fit(stand.desired-stand.live, now, asked, c)
	for n, p := range g.placeholders {
		if p.err == nil { // it stays as it was first told until the placeholder goes
			g.placeholders[n].err = launchFailure(s.activities, p.asked)
		}
	}
	g.paint(stand, c)
}

// wrote takes note of a write that AWS has acknowledged.
func (g *group) wrote(c *Cloud, note func(l *lag, now time.Time)) {
	now := c.now()
	g.ticket = c.tickets.Add(1)
	note(&g.lag, now)
	stand := g.standing(now)
	g.fit(stand.desired-stand.live, now, g.rawAt, c)
	g.paint(stand, c)
}

// paint makes the picture of a standing and the placeholders that fit it.
func (g *group) paint(s standing, c *Cloud) {
	p := cloud.Group{ID: g.id, Min: s.min, Max: s.max, Unsettled: s.unsettled, Instances: make([]cloud.Instance, 0, len(g.raw.Instances)+len(g.placeholders))}
	for _, i := range g.raw.Instances {
		id := providerID(i)
		state, listed := s.states[id]
		if !listed {
			continue
		}
		p.Instances = append(p.Instances, c.instance(i, g.machines[id], state.state))
		if state.state != cloud.Deleting {
			p.Target++
		}
	}
	for _, h := range g.placeholders {
		p.Instances = append(p.Instances, cloud.Instance{ID: h.id, State: cloud.Creating, Placeholder: true, Error: h.err, Since: h.since})
	}
	p.Target += len(g.placeholders)
	// A group can have more than its bounds while AWS rebalances it.
	p.Max = max(p.Max, p.Target)
	if p.Suspended = suspended(g.raw, "Launch"); p.Suspended {
		p.Max = p.Target
	}
	g.picture = p
}

func (c *Cloud) instance(i types.Instance, m machine, state cloud.State) cloud.Instance {
	shown := cloud.Instance{
		ID: providerID(i), Type: awssdk.ToString(i.InstanceType), Zone: awssdk.ToString(i.AvailabilityZone),
		Market: m.market, State: state, Since: m.since,
	}
	if m.market == cloud.OnDemand {
		shown.HourlyPrice, _ = Price(shown.Type, c.region)
	}
	return shown
}

// standing is the group with what AWS does not show yet.
func (g *group) standing(now time.Time) standing {
	s := standing{
		asg:     g.raw,
		desired: g.lag.desired(int(awssdk.ToInt32(g.raw.DesiredCapacity)), now),
		states:  make(map[string]stage, len(g.raw.Instances)),
	}
	outside := 0
	for _, i := range g.raw.Instances {
		state := stageOf(i.LifecycleState)
		if !state.listed {
			continue
		}
		if state.state != cloud.Deleting && g.lag.isEnded(awssdk.ToString(i.InstanceId), now) {
			state = lifecycle[types.LifecycleStateTerminating]
		}
		s.states[providerID(i)] = state
		switch {
		case state.counted:
			s.live++
		case state.state != cloud.Deleting:
			outside++
		}
	}
	// More than are desired count as asked for, so only what goes beyond both is still to come.
	s.unsettled.More, _ = g.lag.unsettled(max(s.desired, s.live), now)
	_, s.unsettled.Fewer = g.lag.unsettled(s.desired, now)
	s.min = int(awssdk.ToInt32(g.raw.MinSize)) + outside
	s.max = int(awssdk.ToInt32(g.raw.MaxSize)) + outside
	for _, p := range g.placeholders {
		s.placeholders = append(s.placeholders, p.id)
	}
	return s
}

// fit brings the number of placeholders to n. Those that are being given up go
// first, then the oldest: the machine that came was asked for first.
func (g *group) fit(n int, now, asked time.Time, c *Cloud) {
	for surplus := len(g.placeholders) - max(0, n); surplus > 0; surplus-- {
		at := max(0, slices.IndexFunc(g.placeholders, func(p placeholder) bool { return g.leaving[p.id] }))
		g.placeholders = slices.Delete(g.placeholders, at, at+1)
	}
	for len(g.placeholders) < n {
		g.placeholders = append(g.placeholders, placeholder{
			id: placeholderID(g.zone(), g.id, c.number.Add(1)), since: now, asked: asked,
		})
	}
}

func providerID(i types.Instance) string {
	return machineID(awssdk.ToString(i.AvailabilityZone), awssdk.ToString(i.InstanceId))
}

// zone is where a placeholder is said to be.
func (g *group) zone() string {
	if len(g.raw.AvailabilityZones) == 0 {
		return "unknown"
	}
	return g.raw.AvailabilityZones[0]
}

// shown is the picture for a caller, who may change it.
func (g *group) shown() cloud.Group {
	p := g.picture
	p.ID, p.Problem, p.Revision = g.id, g.problem, g.ticket
	p.Instances = slices.Clone(p.Instances)
	for n, i := range p.Instances {
		if i.Error != nil {
			told := *i.Error
			p.Instances[n].Error = &told
		}
	}
	return p
}
