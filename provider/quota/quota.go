// Package quota keeps the budget: how many more nodes each group may have
// before it meets its maximum, its surge, or a quota that it shares with
// others.
//
// It is pure arithmetic under one mutex: whole numbers in, whole numbers out.
// It does not know where sizes come from, what a GPU is, or who asks.
package quota

import (
	"fmt"
	"strconv"
	"time"
)

// Reason is the kind of limit that binds. The words are also the reasons of
// the Events that explain a waiting Pod.
type Reason string

// The reasons.
const (
	// AtMaximum: the group's own maximum, from the file or from the cloud.
	AtMaximum Reason = "AtMaximum"
	// QuotaExhausted: a quota has no room for one more node of the group.
	QuotaExhausted Reason = "QuotaExhausted"
	// NotServed: the cloud cannot serve the group; a person has to put it right.
	NotServed Reason = "GroupNotServed"
	// SurgeLimited: too much was asked for within the window; time helps.
	SurgeLimited Reason = "SurgeLimited"
)

// Surge bounds what may be asked for within a sliding window.
type Surge struct {
	Max    int64 // in nodes for a group, in units for a quota
	Window time.Duration
}

// Group is what the ledger has to know of a node group.
type Group struct {
	ID string
	// Max is the group's maximum in the node group file, 0 for a retired group.
	Max int
	// Surge bounds the group's growth in nodes; nil for no bound.
	Surge *Surge
	// Units is what one node uses of each resource, in the units of the Quota
	// of that resource; a resource that is not named is not used.
	Units map[string]int64
}

// Quota bounds what the groups it covers use together.
type Quota struct {
	Name     string
	Resource string
	// Limit is in units, of which Scale make one of the resource: prices need
	// finer units than GPUs.
	Limit int64
	Scale int64
	// Source says where the limit comes from, for messages.
	Source string
	// Measured quotas have their limit from Measure; until then they bind nobody.
	Measured bool
	// Groups are the ids of the groups it covers.
	Groups []string
	// Surge bounds growth in units of the quota; nil for no bound.
	Surge *Surge
}

// Size is what the cloud says of a group.
type Size struct {
	Target   int // asked for and not departing
	Deleting int // still there, and counted by quotas until gone
	CloudMax int // the cloud's own maximum of Target
}

// Limit is a limit and how much room it leaves.
type Limit struct {
	Reason Reason
	// Room is how many more nodes of the group fit, never negative.
	Room int
	// Text names the limit, its use and its source in one short line.
	Text string
}

// Usage is the state of one quota, for status and metrics. Amounts are in the resource itself.
type Usage struct {
	Name, Resource, Source string
	Used, Limit            float64
	// Known is false while a measured quota has not been measured.
	Known bool
}

func format(units, scale int64) string {
	return strconv.FormatFloat(float64(units)/float64(scale), 'f', -1, 64)
}

func (q *quotaState) text() string {
	return fmt.Sprintf("quota %s: %s of %s %s used (%s)",
		q.Name, format(q.total(), q.Scale), format(q.Limit, q.Scale), q.Resource, q.Source)
}

func (q *quotaState) surgeText(now time.Time) string {
	return fmt.Sprintf("surge of quota %s: %s of %s %s asked for within %s%s",
		q.Name, format(q.window.sum, q.Scale), format(q.Surge.Max, q.Scale), q.Resource, q.Surge.Window, q.window.relief(now, q.Surge.Window))
}

func (g *groupState) surgeText(now time.Time) string {
	return fmt.Sprintf("surge of group %s: %d of %d nodes asked for within %s%s",
		g.ID, g.window.sum, g.Surge.Max, g.Surge.Window, g.window.relief(now, g.Surge.Window))
}
