package simulated

import (
	"slices"
	"time"

	"gpu-node-provider/cloud"
)

// unit is one unit of a group's capacity, from the moment it is asked for until
// it is forgotten. Everything it will ever do by itself is fixed when it is made.
type unit struct {
	// Serial names the machine; with Salt it names the placeholder.
	Serial string `json:"serial"`
	Salt   string `json:"salt"`

	Asked time.Time `json:"asked"`
	// Launch is when the machine, or the reason for there being none, shows.
	Launch time.Time `json:"launch"`
	// Failure is set when there will never be a machine.
	Failure *failure `json:"failure,omitempty"`
	// Running and Devices are when the machine is up, and when its Node has its
	// extended resources.
	Running time.Time `json:"running,omitzero"`
	Devices time.Time `json:"devices,omitzero"`

	// Ended is when the machine was told to go, Gone when it has gone.
	Ended time.Time `json:"ended,omitzero"`
	Gone  time.Time `json:"gone,omitzero"`
	// Replaced is true when another unit has taken over its place in the
	// group's capacity.
	Replaced bool `json:"replaced,omitempty"`
}

// failure is why a launch fails.
type failure struct {
	Code    cloud.LaunchCode `json:"code"`
	Message string           `json:"message"`
}

// isPlaceholder says whether no machine stands behind the unit.
func (u unit) isPlaceholder(now time.Time) bool {
	return u.Failure != nil || now.Before(u.Launch)
}

func (u unit) isEnded() bool { return !u.Ended.IsZero() }

func (u unit) isGone(now time.Time) bool { return u.isEnded() && !now.Before(u.Gone) }

// takesPlace says whether the unit counts against the group's capacity.
func (u unit) takesPlace(now time.Time) bool {
	return u.Failure == nil && !u.Replaced && !u.isGone(now)
}

// end returns the unit with its machine told to go.
func (u unit) end(now time.Time, delay time.Duration) unit {
	u.Ended, u.Gone = now, now.Add(delay)
	return u
}

func (u unit) id(group string, now time.Time) string {
	if u.isPlaceholder(now) {
		return placeholderID(group, u.Serial, u.Salt)
	}
	return machineID(group, u.Serial)
}

// instance is the unit as it is shown. Units that are gone have no instance.
func (u unit) instance(group string, now time.Time) cloud.Instance {
	shown := cloud.Instance{ID: u.id(group, now), State: cloud.Creating, Since: u.Asked}
	if u.isPlaceholder(now) {
		shown.Placeholder = true
		if u.Failure != nil && !now.Before(u.Launch) {
			shown.Error = &cloud.LaunchError{Code: u.Failure.Code, Message: u.Failure.Message}
		}
		return shown
	}
	shown.Since = u.Launch
	switch {
	case u.isEnded():
		shown.State = cloud.Deleting
	case !now.Before(u.Running):
		shown.State = cloud.Running
	}
	return shown
}

// target counts what has been asked for and is not on its way out.
func target(units []unit) int {
	n := 0
	for _, u := range units {
		if !u.isEnded() {
			n++
		}
	}
	return n
}

// describe makes the group's picture; nothing in it is shared with the state.
func (m moment) describe(group string) cloud.Group {
	units, now := m.Groups[group], m.now
	shown := cloud.Group{ID: group, Target: target(units), Max: groupMax, Revision: m.revision}
	shown.Instances = make([]cloud.Instance, 0, len(units))
	for _, u := range units {
		if !u.isGone(now) {
			shown.Instances = append(shown.Instances, u.instance(group, now))
		}
	}
	return shown
}

// indexByID finds units by the id they have at the moment.
func indexByID(group string, units []unit, now time.Time) map[string]int {
	index := make(map[string]int, len(units))
	for i, u := range units {
		if !u.isGone(now) {
			index[u.id(group, now)] = i
		}
	}
	return index
}

// withoutDuplicates keeps the first of each id.
func withoutDuplicates(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}
