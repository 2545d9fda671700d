// Package quota keeps a ledger of node groups: how many nodes each group may add
// before it reaches its maximum, its surge, or a quota shared with other groups.
//
// It is integer arithmetic under one mutex. It does not know where sizes come
// from, what a resource is, or which call needs the answer.
package quota

import (
	"fmt"
	"strconv"
	"time"
)

// Reason is the kind of limit that prevents growth. Its values are also the
// reasons of Events on pending Pods.
type Reason string

// Reasons.
const (
	// AtMaximum: the group is at its maximum, in the file or in the cloud.
	AtMaximum Reason = "AtMaximum"
	// QuotaExhausted: a quota has no room for one more node of the group.
	QuotaExhausted Reason = "QuotaExhausted"
	// NotServed: the cloud rejects the group until an operator changes its settings.
	NotServed Reason = "GroupNotServed"
	// SurgeLimited: too many nodes were requested within the window; room returns with time.
	SurgeLimited Reason = "SurgeLimited"
)

// Surge limits requests within a sliding window.
type Surge struct {
	Max    int64 // nodes for a group, units for a quota
	Window time.Duration
}

// Group configures a node group.
type Group struct {
	ID string
	// Max is the group's maximum in the node group file, 0 for a retired group.
	Max int
	// Surge limits the group's growth in nodes; nil means no limit.
	Surge *Surge
	// Units maps a resource to its use by one node, in units of the quotas on that
	// resource. A missing resource is not used.
	Units map[string]int64
	// Sources tells where an amount of Units is from, for messages; missing where a node
	// shows it.
	Sources map[string]string
	// Each is Units by the type of a machine, also of types that the group no longer
	// launches. A machine of a type that is missing here counts as Units.
	Each map[string]map[string]int64
}

// UnitsOf returns the use of a machine by its type.
func (g Group) UnitsOf(machine string) map[string]int64 {
	if units, known := g.Each[machine]; known {
		return units
	}
	return g.Units
}

// Quota limits the total use of a resource by the groups that it covers.
type Quota struct {
	Name     string
	Resource string
	// Limit is in units. Scale units are one of the resource, since prices need finer
	// units than GPUs.
	Limit int64
	Scale int64
	// Source is where the limit comes from, for messages.
	Source string
	// Measured means that Measure sets the limit; until then there is none.
	Measured bool
	// Groups are the ids of the groups that the quota covers.
	Groups []string
	// Surge limits growth in units of the quota; nil means no limit.
	Surge *Surge
}

// Size is the size of a group in the cloud, in nodes.
type Size struct {
	Target   int // requested, without those being deleted
	Deleting int // being deleted; quotas count them until they are gone
	CloudMax int // the cloud's own maximum of Target
	// Machines counts the machines among Target and Deleting by type. The ledger keeps it.
	Machines map[string]int
}

// Limit is the limit that binds first.
type Limit struct {
	Reason Reason
	// Room is the number of nodes that still fit, 0 or more.
	Room int
	// Text names the limit, its use and its source in one short line.
	Text string
}

// Usage is the state of one quota, for status and metrics.
type Usage struct {
	Name, Resource, Source string
	Used, Limit            float64 // in the resource itself, not in units
	// Known is false until Measure has set the limit of a measured quota.
	Known bool
}

func format(units, scale int64) string {
	return strconv.FormatFloat(float64(units)/float64(scale), 'f', -1, 64)
}

func (q *quotaState) text(g *groupState) string {
	return fmt.Sprintf("quota %s: %s of %s %s used, %s (%s)",
		q.Name, format(q.total(), q.Scale), format(q.Limit, q.Scale), q.Resource, q.need(g), q.Source)
}

func (q *quotaState) surgeText(g *groupState, now time.Time) string {
	return fmt.Sprintf("surge of quota %s: %s of %s %s requested within %s, %s%s",
		q.Name, format(q.window.sum, q.Scale), format(q.Surge.Max, q.Scale), q.Resource, q.Surge.Window, q.need(g), q.window.nextRoom(now, q.Surge.Window))
}

// need tells why a limit with room left has none for the group.
func (q *quotaState) need(g *groupState) string {
	text := fmt.Sprintf("a node of %s needs %s", g.ID, format(g.Units[q.Resource], q.Scale))
	if source := g.Sources[q.Resource]; source != "" {
		text += " by " + source
	}
	return text
}

func (g *groupState) surgeText(now time.Time) string {
	return fmt.Sprintf("surge of group %s: %d of %d nodes requested within %s%s",
		g.ID, g.window.sum, g.Surge.Max, g.Surge.Window, g.window.nextRoom(now, g.Surge.Window))
}
