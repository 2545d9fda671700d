package cloudtest

import (
	"context"

	"gpu-node-provider/cloud"
)

func increaseMutants() []mutant {
	return []mutant{
		{
			"the answer is from before",
			[]string{"increase/the answer has the raised target"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					before := is(b.Backend, id)
					if _, err := b.Backend.Increase(ctx, id, Exactly(delta)); err != nil {
						return cloud.Group{}, err
					}
					return before, nil
				}
			}),
		},
		{
			"Describe lags behind",
			[]string{"increase/every later Describe sees it"},
			wrap(func(b *broken) {
				last := map[string]cloud.Group{}
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					groups, err := b.Backend.Describe(ctx, ids...)
					for i, fresh := range groups {
						if old, ok := last[fresh.ID]; ok && fresh.Target > old.Target {
							groups[i] = old
						}
						last[fresh.ID] = fresh
					}
					return groups, err
				}
			}),
		},
		{
			"growing replaces what is there",
			[]string{"increase/units that are there stay as they are"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					old := ids(pick(is(b.Backend, id), func(i cloud.Instance) bool { return i.State == cloud.Running }))
					group, err := b.Backend.Increase(ctx, id, Exactly(delta+len(old)))
					if err != nil {
						return group, err
					}
					group, _, err = b.Backend.Delete(ctx, id, old)
					return group, err
				}
			}),
		},
		{
			"another group grows too",
			[]string{"increase/other groups are left alone"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					if _, err := b.Backend.Increase(ctx, "two", Exactly(1)); err != nil {
						return cloud.Group{}, err
					}
					return b.Backend.Increase(ctx, id, Exactly(delta))
				}
			}),
		},
		{
			"errors are not shown",
			[]string{"increase/without capacity, the placeholders carry the error and count"},
			pictured(func(g *cloud.Group) {
				for i := range g.Instances {
					g.Instances[i].Error = nil
				}
			}),
		},
		{
			"nothing is shown to decide by",
			[]string{"increase/what is requested is decided once, by a reading of the group"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					return b.Backend.Increase(ctx, id, Exactly(delta))
				}
			}),
		},
		{
			"none is one",
			[]string{"increase/none changes nothing"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					if delta == 0 {
						delta = 1
					}
					return b.Backend.Increase(ctx, id, Exactly(delta))
				}
			}),
		},
		{
			"less than none is none",
			[]string{"increase/less than none is invalid"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					return b.Backend.Increase(ctx, id, Exactly(max(delta, 0)))
				}
			}),
		},
		{
			"too much is granted in part",
			[]string{"increase/more than the maximum is refused as a whole"},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					return b.Backend.Increase(ctx, id, Exactly(min(delta, 3)))
				}
			}),
		},
	}
}

// shrinking lowers the group like SetDesiredCapacity does: it chooses whom to end.
func shrinking(victim func(cloud.Instance) bool) func(b *broken) {
	return func(b *broken) {
		b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
			group, given, err := b.Backend.Cancel(ctx, id, These(names))
			if err != nil || len(names) == 0 {
				return group, given, err
			}
			if victims := ids(pick(group, victim)); len(victims) > 0 {
				group, _, err = b.Backend.Delete(ctx, id, victims[:1])
			}
			return group, given, err
		}
	}
}

func cancelMutants() []mutant {
	running := func(i cloud.Instance) bool { return i.State == cloud.Running }
	booting := func(i cloud.Instance) bool { return !i.Placeholder && i.State == cloud.Creating }
	return []mutant{
		{
			"all placeholders are given up",
			[]string{
				"cancel/gives up the named placeholders and lowers the target",
				"cancel/no names change nothing",
			},
			wrap(func(b *broken) {
				b.cancel = func(ctx context.Context, id string, _ []string) (cloud.Group, []string, error) {
					return b.Backend.Cancel(ctx, id, These(ids(pick(is(b.Backend, id), placeholder))))
				}
			}),
		},
		{
			"what is given up is asked for again",
			[]string{"cancel/what was given up does not arrive later"},
			wrap(func(b *broken) {
				var owed int
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, given, err := b.Backend.Cancel(ctx, id, These(names))
					owed += len(given)
					return group, given, err
				}
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					groups, err := b.Backend.Describe(ctx, ids...)
					if owed > 0 {
						_, err = b.Backend.Increase(ctx, "one", Exactly(owed))
						owed = 0
					}
					return groups, err
				}
			}),
		},
		{
			"the names are counted, not looked up",
			[]string{
				"cancel/a placeholder that is gone changes nothing",
				"cancel/a name given twice counts once",
			},
			wrap(func(b *broken) {
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					waiting := ids(pick(is(b.Backend, id), placeholder))
					return b.Backend.Cancel(ctx, id, These(waiting[:min(len(waiting), len(names))]))
				}
			}),
		},
		{
			"the group chooses a live victim",
			[]string{
				"cancel/a placeholder that became a machine is left out",
				"cancel/among others, a placeholder that became a machine is left out",
				"cancel/live machines outlive the placeholders beside them",
			},
			wrap(shrinking(running)),
		},
		{
			"the group chooses a booting victim",
			[]string{"cancel/a booting machine is never ended"},
			func(h *Harness) {
				instant(h) // machines boot at once, and stay so
				wrap(func(b *broken) {
					b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
						return b.Backend.Delete(ctx, id, ids(pick(is(b.Backend, id), booting)))
					}
				})(h)
			},
		},
		{
			"machines can be cancelled",
			[]string{"cancel/a live machine is never ended"},
			wrap(func(b *broken) {
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					if group, given, err := b.Backend.Cancel(ctx, id, These(names)); err == nil {
						return group, given, nil
					}
					return b.Backend.Delete(ctx, id, names)
				}
			}),
		},
		{
			"foreign names are skipped",
			[]string{
				"cancel/a foreign id is invalid and nothing changes",
				"cancel/a placeholder of another group is invalid and nothing changes",
			},
			wrap(func(b *broken) {
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					return b.Backend.Cancel(ctx, id, These(only(names, ids(is(b.Backend, id).Instances))))
				}
			}),
		},
	}
}

func only(list, allowed []string) []string { return without(list, without(list, allowed)) }

func deleteMutants() []mutant {
	return []mutant{
		{
			"one more goes each time",
			[]string{
				"delete/ends the named instances only, and lowers the target at once",
				"delete/a second time, it confirms without lowering the target",
				"delete/once gone, it confirms without lowering the target",
				"delete/those going and those not are told apart in one call",
				"delete/no names change nothing",
			},
			wrap(func(b *broken) {
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, confirmed, err := b.Backend.Delete(ctx, id, names)
					if err != nil {
						return group, confirmed, err
					}
					if left := ids(pick(group, staying)); len(left) > 0 {
						group, _, err = b.Backend.Delete(ctx, id, left[:1])
					}
					return group, confirmed, err
				}
			}),
		},
		{
			"each name is confirmed, however often",
			[]string{"delete/a name given twice counts once"},
			wrap(func(b *broken) {
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, _, err := b.Backend.Delete(ctx, id, names)
					if err != nil {
						return group, nil, err
					}
					return group, names, nil
				}
			}),
		},
		{
			"the group replaces what went",
			[]string{"delete/nothing comes in its place", "delete/the last one can go"},
			wrap(func(b *broken) {
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					_, confirmed, err := b.Backend.Delete(ctx, id, names)
					if err != nil {
						return cloud.Group{}, nil, err
					}
					group, err := b.Backend.Increase(ctx, id, Exactly(1))
					return group, confirmed, err
				}
			}),
		},
		{
			"placeholders go too",
			[]string{"delete/a placeholder is invalid and nothing changes"},
			wrap(func(b *broken) {
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					if group, given, err := b.Backend.Cancel(ctx, id, These(names)); err == nil && len(given) > 0 {
						return group, given, nil
					}
					return b.Backend.Delete(ctx, id, names)
				}
			}),
		},
		{
			"it ends what it can before it refuses",
			[]string{
				"delete/an instance of another group is invalid and nothing changes",
				"delete/a foreign id is invalid and nothing changes",
			},
			wrap(func(b *broken) {
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					for _, name := range names {
						if _, _, err := b.Backend.Delete(ctx, id, []string{name}); err != nil {
							return cloud.Group{}, nil, err
						}
					}
					return b.Backend.Delete(ctx, id, names)
				}
			}),
		},
	}
}
