package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
)

// env is what a check works with: a Harness, the test, and a ledger of all that
// was ever seen, which every look at the Backend is held against.
type env struct {
	testing.TB
	Harness
	// one and two are the ids of two groups.
	one, two string
	ledger   ledger
}

func newEnv(t testing.TB, h Harness) *env {
	require.GreaterOrEqual(t, len(h.Specs), 2, "the harness must have two groups")
	require.NotNil(t, h.Settle)
	require.NotNil(t, h.Starve)
	return &env{TB: t, Harness: h, one: h.Specs[0].ID, two: h.Specs[1].ID, ledger: ledger{}}
}

func (e *env) ctx() context.Context { return e.Context() }

func (e *env) settle() { e.Settle(e.TB) }

// look describes all groups, checks what must be true of every picture, and
// returns one of them.
func (e *env) look(group string) cloud.Group {
	e.Helper()
	return e.lookAll()[group]
}

func (e *env) lookAll() map[string]cloud.Group {
	e.Helper()
	groups, err := e.Backend.Describe(e.ctx())
	require.NoError(e, err)
	return e.accept(groups...)
}

// describe asks for one group by its name.
func (e *env) describe(group string) cloud.Group {
	e.Helper()
	groups, err := e.Backend.Describe(e.ctx(), group)
	require.NoError(e, err)
	require.Len(e, groups, 1)
	e.accept(groups...)
	return groups[0]
}

// accept checks pictures that the Backend has given.
func (e *env) accept(groups ...cloud.Group) map[string]cloud.Group {
	e.Helper()
	byID := make(map[string]cloud.Group, len(groups))
	for _, group := range groups {
		require.NotContains(e, byID, group.ID, "a group is there twice")
		require.NoError(e, e.flaw(group))
		require.NoError(e, e.ledger.note(group))
		byID[group.ID] = group
	}
	return byID
}

// flaw says what is wrong with a group's picture as it stands.
func (e *env) flaw(group cloud.Group) error {
	if want := len(pick(group, staying)); group.Target != want {
		return fmt.Errorf("group %s: target is %d, but %d instances are not deleting", group.ID, group.Target, want)
	}
	if group.Min < 0 || group.Max < group.Min || group.Target > group.Max {
		return fmt.Errorf("group %s: target %d and bounds %d to %d do not fit", group.ID, group.Target, group.Min, group.Max)
	}
	seen := map[string]bool{}
	for _, instance := range group.Instances {
		if seen[instance.ID] {
			return fmt.Errorf("group %s: %s is listed twice", group.ID, instance.ID)
		}
		seen[instance.ID] = true
		if err := e.flawOf(instance); err != nil {
			return fmt.Errorf("group %s: %s: %w", group.ID, instance.ID, err)
		}
		if instance.ID == e.Backend.TemplateID(group.ID) {
			return fmt.Errorf("group %s: an instance has the template's id", group.ID)
		}
	}
	return nil
}

func (e *env) flawOf(instance cloud.Instance) error {
	switch {
	case instance.ID == "":
		return errors.New("the id is empty")
	case instance.State != cloud.Creating && instance.State != cloud.Running && instance.State != cloud.Deleting:
		return fmt.Errorf("state %d is none", instance.State)
	case instance.Placeholder && instance.State != cloud.Creating:
		return fmt.Errorf("a placeholder is %s", instance.State)
	case instance.Error != nil && instance.State != cloud.Creating:
		return fmt.Errorf("a machine that is %s has a launch error", instance.State)
	case instance.Error != nil && instance.Error.Code == "":
		return errors.New("a launch error has no code")
	case instance.Since.IsZero():
		return errors.New("since is not set")
	case !e.Backend.Recognizes(instance.ID):
		return errors.New("its id is not recognized")
	}
	return nil
}

// unchanged runs an attempt and requires that all groups are afterwards as they
// were before.
func (e *env) unchanged(attempt func()) {
	e.Helper()
	before := e.lookAll()
	attempt()
	after := e.lookAll()
	for id := range before {
		require.Equal(e, before[id].Target, after[id].Target, "the target of %s changed", id)
		require.ElementsMatch(e, ids(pick(before[id], staying)), ids(pick(after[id], staying)), "instances of %s changed", id)
	}
	require.Len(e, after, len(before))
}

// increase asks for units and requires that they are there at once.
func (e *env) increase(group string, n int) cloud.Group {
	e.Helper()
	before := e.look(group)
	after, err := e.Backend.Increase(e.ctx(), group, Exactly(n))
	require.NoError(e, err)
	e.accept(after)
	require.Equal(e, group, after.ID)
	require.Equal(e, before.Target+n, after.Target, "the returned target")
	return after
}

// machines returns n running machines of a group that had none.
func (e *env) machines(group string, n int) []string {
	e.Helper()
	e.increase(group, n)
	e.settle()
	running := ids(pick(e.look(group), func(i cloud.Instance) bool { return i.State == cloud.Running }))
	require.Len(e, running, n, "machines that run after everything has settled")
	return running
}

// failing returns n placeholders that will never become machines. The group
// launches no machine any more.
func (e *env) failing(group string, n int) []string {
	e.Helper()
	e.Starve(e.TB, group)
	before := ids(pick(e.look(group), placeholder))
	e.increase(group, n)
	e.settle()
	added := without(ids(pick(e.look(group), placeholder)), before)
	require.Len(e, added, n, "placeholders that stay when there is no capacity")
	return added
}

// pending returns the placeholders of n new units that will become machines.
func (e *env) pending(group string, n int) []string {
	e.Helper()
	e.increase(group, n)
	waiting := ids(pick(e.look(group), placeholder))
	require.GreaterOrEqual(e, len(waiting), n, "placeholders of units just asked for, unless the harness is Immediate")
	return waiting
}

// destroy deletes machines and requires that all are confirmed.
func (e *env) destroy(group string, instances ...string) cloud.Group {
	e.Helper()
	after, confirmed, err := e.Backend.Delete(e.ctx(), group, instances)
	require.NoError(e, err)
	e.accept(after)
	require.ElementsMatch(e, instances, confirmed)
	return after
}

// cancel gives placeholders up and returns what the Backend says of it.
func (e *env) cancel(group string, placeholders ...string) (cloud.Group, []string) {
	e.Helper()
	after, given, err := e.Backend.Cancel(e.ctx(), group, These(placeholders))
	require.NoError(e, err)
	e.accept(after)
	return after, given
}

// lookup asks for one id.
func (e *env) lookup(group, id string) cloud.Existence {
	e.Helper()
	found, err := e.Backend.Lookup(e.ctx(), group, []string{id})
	require.NoError(e, err)
	require.Len(e, found, 1)
	return found[0]
}

func placeholder(i cloud.Instance) bool { return i.Placeholder }

func staying(i cloud.Instance) bool { return i.State != cloud.Deleting }

func pick(group cloud.Group, wanted func(cloud.Instance) bool) []cloud.Instance {
	var picked []cloud.Instance
	for _, instance := range group.Instances {
		if wanted(instance) {
			picked = append(picked, instance)
		}
	}
	return picked
}

func ids(instances []cloud.Instance) []string {
	list := make([]string, 0, len(instances))
	for _, instance := range instances {
		list = append(list, instance.ID)
	}
	return list
}

func without(list, dropped []string) []string {
	drop := map[string]bool{}
	for _, id := range dropped {
		drop[id] = true
	}
	var rest []string
	for _, id := range list {
		if !drop[id] {
			rest = append(rest, id)
		}
	}
	return rest
}
