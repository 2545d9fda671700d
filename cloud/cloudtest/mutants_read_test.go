package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
)

// instant exchanges the harness's backend for one whose machines appear at once.
func instant(h *Harness) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	c, err := simulated.New(simulated.Options{BootDelay: time.Minute, Now: func() time.Time { return now }})
	if err == nil {
		err = c.Configure(context.Background(), h.Specs)
	}
	if err != nil {
		panic(err)
	}
	h.Backend = c
	h.Settle = func(testing.TB) { now = now.Add(time.Hour) }
	h.Starve = func(_ testing.TB, group string) { c.SetCapacity(group, 0) }
}

// found breaks the answer of Lookup for each id.
func found(change func(name string, e cloud.Existence) cloud.Existence) func(h *Harness) {
	return wrap(func(b *broken) {
		b.lookup = func(ctx context.Context, id string, names []string) ([]cloud.Existence, error) {
			list, err := b.Backend.Lookup(ctx, id, names)
			for i := range list {
				list[i] = change(names[i], list[i])
			}
			return list, err
		}
	})
}

func lookupMutants() []mutant {
	return []mutant{
		{
			"placeholders are not present",
			[]string{"lookup/what Describe lists is present"},
			found(func(name string, e cloud.Existence) cloud.Existence {
				if strings.Contains(name, "placeholder") {
					return cloud.Gone
				}
				return e
			}),
		},
		{
			"what is gone is foreign",
			[]string{
				"lookup/a deleted instance is gone", "lookup/a cancelled placeholder is gone",
				"lookup/a placeholder that became a machine is gone",
			},
			found(func(_ string, e cloud.Existence) cloud.Existence {
				if e == cloud.Gone {
					return cloud.Foreign
				}
				return e
			}),
		},
		{
			"what is foreign is gone",
			[]string{"lookup/ids of no instance are foreign", "lookup/instances of another group are foreign"},
			found(func(_ string, e cloud.Existence) cloud.Existence {
				if e == cloud.Foreign {
					return cloud.Gone
				}
				return e
			}),
		},
		{
			"the result is sorted",
			[]string{"lookup/the result has the order of the ids"},
			wrap(func(b *broken) {
				b.lookup = func(ctx context.Context, id string, names []string) ([]cloud.Existence, error) {
					list, err := b.Backend.Lookup(ctx, id, names)
					slices.Sort(list)
					return list, err
				}
			}),
		},
		{
			"only what is there is recognized",
			[]string{"lookup/ids of this cloud are recognized, also when gone"},
			wrap(func(b *broken) {
				b.recognizes = func(id string) bool {
					for _, group := range []string{"one", "two", "three"} {
						if slices.Contains(ids(is(b.Backend, group).Instances), id) || id == b.Backend.TemplateID(group) {
							return true
						}
					}
					return false
				}
			}),
		},
		{
			"everything is recognized",
			[]string{"lookup/ids of other clouds are not recognized"},
			wrap(func(b *broken) { b.recognizes = func(string) bool { return true } }),
		},
		{
			"the template has an instance's id",
			[]string{"lookup/the template's id is recognized, stable and no instance's"},
			wrap(func(b *broken) {
				b.templateID = func(group string) string {
					if instances := is(b.Backend, group).Instances; len(instances) > 0 {
						return instances[0].ID
					}
					return b.Backend.TemplateID(group)
				}
			}),
		},
	}
}

func errorMutants() []mutant {
	both := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%w: %w", cloud.ErrUnavailable, err)
	}
	return []mutant{
		{
			"errors are of two classes",
			[]string{
				"errors/Describe of an unknown group is not found",
				"errors/Increase of an unknown group is not found", "errors/Cancel in an unknown group is not found",
				"errors/Delete in an unknown group is not found", "errors/Lookup in an unknown group is not found",
			},
			wrap(func(b *broken) {
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					groups, err := b.Backend.Describe(ctx, ids...)
					return groups, both(err)
				}
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					group, err := b.Backend.Increase(ctx, id, Exactly(delta))
					return group, both(err)
				}
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, given, err := b.Backend.Cancel(ctx, id, These(names))
					return group, given, both(err)
				}
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, confirmed, err := b.Backend.Delete(ctx, id, names)
					return group, confirmed, both(err)
				}
				b.lookup = func(ctx context.Context, id string, names []string) ([]cloud.Existence, error) {
					list, err := b.Backend.Lookup(ctx, id, names)
					return list, both(err)
				}
			}),
		},
	}
}

func deadlineMutants() []mutant {
	return []mutant{
		{
			"the context is not looked at",
			[]string{
				"deadlines/nothing is started once the context was cancelled",
				"deadlines/nothing is started once the deadline has passed",
			},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					return b.Backend.Increase(context.WithoutCancel(ctx), id, Exactly(delta))
				}
			}),
		},
		{
			"abandoned writes are said to be done",
			[]string{
				"deadlines/Describe tells the outcome of an increase that was abandoned",
				"deadlines/Describe tells the outcome of a cancel that was abandoned",
				"deadlines/Describe tells the outcome of a delete that was abandoned",
			},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					group, err := b.Backend.Increase(ctx, id, Exactly(delta))
					return group, unless(ctx, err)
				}
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, given, err := b.Backend.Cancel(ctx, id, These(names))
					return group, given, unless(ctx, err)
				}
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, confirmed, err := b.Backend.Delete(ctx, id, names)
					return group, confirmed, unless(ctx, err)
				}
			}),
		},
		{
			"abandoned writes take effect later",
			[]string{"deadlines/Describe tells the outcome of an increase that was abandoned"},
			wrap(func(b *broken) {
				late, looks := 0, 0
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					if ctx.Err() != nil {
						late, looks = delta, 0
						return cloud.Group{}, cloud.ErrUnknownOutcome
					}
					return b.Backend.Increase(ctx, id, Exactly(delta))
				}
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					if looks++; looks > 1 && late > 0 {
						if _, err := b.Backend.Increase(ctx, "one", Exactly(late)); err != nil {
							return nil, err
						}
						late = 0
					}
					return b.Backend.Describe(ctx, ids...)
				}
			}),
		},
		{
			"the group of an unknown outcome is left out",
			[]string{
				"deadlines/Describe tells the outcome of an increase that was abandoned",
				"deadlines/Describe tells the outcome of a cancel that was abandoned",
				"deadlines/Describe tells the outcome of a delete that was abandoned",
			},
			wrap(func(b *broken) {
				b.increase = func(ctx context.Context, id string, delta int) (cloud.Group, error) {
					group, err := b.Backend.Increase(ctx, id, Exactly(delta))
					return unlessUnknown(group, err), err
				}
				b.cancel = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, given, err := b.Backend.Cancel(ctx, id, These(names))
					return unlessUnknown(group, err), given, err
				}
				b.delete = func(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
					group, confirmed, err := b.Backend.Delete(ctx, id, names)
					return unlessUnknown(group, err), confirmed, err
				}
			}),
		},
		{
			"nothing is ever settled",
			[]string{"deadlines/Describe tells the outcome of an increase that was abandoned"},
			pictured(func(g *cloud.Group) { g.Unsettled.More = 1 }),
		},
		{
			"abandoned reads blame the group",
			[]string{"deadlines/reads that are abandoned say so"},
			wrap(func(b *broken) {
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					if ctx.Err() != nil {
						return nil, cloud.ErrNotFound
					}
					return b.Backend.Describe(ctx, ids...)
				}
			}),
		},
	}
}

// unless hides an error when the context has ended midway.
func unless(ctx context.Context, err error) error {
	if ctx.Value(midwayKey{}) != nil {
		return nil
	}
	return err
}

func unlessUnknown(group cloud.Group, err error) cloud.Group {
	if errors.Is(err, cloud.ErrUnknownOutcome) {
		return cloud.Group{}
	}
	return group
}
