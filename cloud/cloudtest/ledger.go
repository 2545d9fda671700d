package cloudtest

import (
	"errors"
	"fmt"

	"gpu-node-provider/cloud"
)

// ledger remembers every id that a Backend has ever shown.
type ledger map[string]entry

type entry struct {
	group string
	last  cloud.Instance
	gone  bool
}

// note takes a picture of a group down, and says what in it contradicts an
// earlier one.
func (l ledger) note(group cloud.Group) error {
	listed := map[string]bool{}
	for _, instance := range group.Instances {
		listed[instance.ID] = true
		if known, ok := l[instance.ID]; ok {
			if err := known.contradiction(group.ID, instance); err != nil {
				return fmt.Errorf("%s: %w", instance.ID, err)
			}
		}
		l[instance.ID] = entry{group: group.ID, last: instance}
	}
	for id, known := range l {
		if known.group == group.ID && !listed[id] {
			known.gone = true
			l[id] = known
		}
	}
	return nil
}

func (known entry) contradiction(group string, now cloud.Instance) error {
	switch {
	case known.group != group:
		return fmt.Errorf("it was in group %s and is in group %s", known.group, group)
	case known.gone:
		return errors.New("the id is used again")
	case known.last.Placeholder != now.Placeholder:
		return errors.New("a placeholder and a machine share an id")
	case now.State < known.last.State:
		return fmt.Errorf("it was %s and is %s", known.last.State, now.State)
	case known.last.Error != nil && now.Error == nil:
		return fmt.Errorf("its launch error has gone before it")
	case !now.Placeholder && !known.last.Since.Equal(now.Since):
		return fmt.Errorf("it was launched at %s and is launched at %s", known.last.Since, now.Since)
	}
	return nil
}
