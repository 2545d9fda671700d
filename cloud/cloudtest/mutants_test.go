package cloudtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
)

// mutant breaks one promise of the contract.
type mutant struct {
	name     string
	caughtBy []string
	breaks   func(h *Harness)
}

// broken is a Backend with some calls replaced; those that are nil pass through.
type broken struct {
	cloud.Backend
	picture    func(g *cloud.Group)
	describe   func(ctx context.Context, ids []string) ([]cloud.Group, error)
	increase   func(ctx context.Context, id string, delta int) (cloud.Group, error)
	cancel     func(ctx context.Context, id string, names []string) (cloud.Group, []string, error)
	delete     func(ctx context.Context, id string, names []string) (cloud.Group, []string, error)
	lookup     func(ctx context.Context, id string, names []string) ([]cloud.Existence, error)
	configure  func(ctx context.Context, specs []cloud.Spec) error
	recognizes func(id string) bool
	templateID func(group string) string
}

func (b *broken) shown(group cloud.Group) cloud.Group {
	if b.picture != nil {
		b.picture(&group)
	}
	return group
}

func (b *broken) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	if b.describe != nil {
		return b.describe(ctx, ids)
	}
	groups, err := b.Backend.Describe(ctx, ids...)
	for i := range groups {
		groups[i] = b.shown(groups[i])
	}
	return groups, err
}

func (b *broken) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	if b.increase != nil {
		return b.increase(ctx, id, more(cloud.Group{}))
	}
	group, err := b.Backend.Increase(ctx, id, more)
	return b.shown(group), err
}

func (b *broken) Cancel(ctx context.Context, id string, which func(cloud.Group) []string) (cloud.Group, []string, error) {
	if b.cancel != nil {
		return b.cancel(ctx, id, which(cloud.Group{}))
	}
	group, given, err := b.Backend.Cancel(ctx, id, which)
	return b.shown(group), given, err
}

func (b *broken) Delete(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
	if b.delete != nil {
		return b.delete(ctx, id, names)
	}
	group, confirmed, err := b.Backend.Delete(ctx, id, names)
	return b.shown(group), confirmed, err
}

func (b *broken) Lookup(ctx context.Context, id string, names []string) ([]cloud.Existence, error) {
	if b.lookup != nil {
		return b.lookup(ctx, id, names)
	}
	return b.Backend.Lookup(ctx, id, names)
}

func (b *broken) Configure(ctx context.Context, specs []cloud.Spec) error {
	if b.configure != nil {
		return b.configure(ctx, specs)
	}
	return b.Backend.Configure(ctx, specs)
}

func (b *broken) Recognizes(id string) bool {
	if b.recognizes != nil {
		return b.recognizes(id)
	}
	return b.Backend.Recognizes(id)
}

func (b *broken) TemplateID(group string) string {
	if b.templateID != nil {
		return b.templateID(group)
	}
	return b.Backend.TemplateID(group)
}

// wrap makes a mutant's breaks from what it replaces.
func wrap(replace func(b *broken)) func(h *Harness) {
	return func(h *Harness) {
		b := &broken{Backend: h.Backend}
		replace(b)
		h.Backend = b
		if reopen := h.Reopen; reopen != nil {
			h.Reopen = func(t testing.TB) cloud.Backend {
				again := &broken{Backend: reopen(t)}
				replace(again)
				return again
			}
		}
	}
}

// pictured breaks what the backend says of a group.
func pictured(picture func(g *cloud.Group)) func(h *Harness) {
	return wrap(func(b *broken) { b.picture = picture })
}

// is describes one group of a backend that does not fail.
func is(b cloud.Backend, id string) cloud.Group {
	groups, err := b.Describe(context.Background(), id)
	if err != nil || len(groups) != 1 {
		return cloud.Group{ID: id}
	}
	return groups[0]
}

func mutants() []mutant {
	return slices.Concat(describeMutants(), increaseMutants(), cancelMutants(), deleteMutants(),
		lookupMutants(), configureMutants(), errorMutants(), deadlineMutants())
}

func describeMutants() []mutant {
	return []mutant{
		{
			"deleting instances count",
			[]string{"describe/target counts what is not deleting, at every stage"},
			pictured(func(g *cloud.Group) { g.Target = len(g.Instances) }),
		},
		{
			"revisions stand still",
			[]string{"describe/a newer picture has a higher revision"},
			pictured(func(g *cloud.Group) { g.Revision = 1 }),
		},
		{
			"placeholders do not count",
			[]string{"increase/without capacity, the placeholders carry the error and count"},
			pictured(func(g *cloud.Group) {
				g.Target = len(pick(*g, func(i cloud.Instance) bool { return !i.Placeholder && staying(i) }))
			}),
		},
		{
			"a group is left out",
			[]string{"describe/no ids means all configured groups, empty at first"},
			wrap(func(b *broken) {
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					groups, err := b.Backend.Describe(ctx, ids...)
					return groups[:max(len(groups)-1, 0)], err
				}
			}),
		},
		{
			"names are ignored",
			[]string{"describe/named groups only", "errors/Describe of an unknown group is not found"},
			wrap(func(b *broken) {
				b.describe = func(ctx context.Context, _ []string) ([]cloud.Group, error) { return b.Backend.Describe(ctx) }
			}),
		},
		{
			"machines never run",
			[]string{"describe/a machine that has arrived is running"},
			pictured(func(g *cloud.Group) {
				for i := range g.Instances {
					g.Instances[i].State = min(g.Instances[i].State, cloud.Creating)
				}
			}),
		},
		{
			"ids are numbers that start again",
			[]string{"describe/ids are unique and never used again"},
			func(h *Harness) { h.Backend = &renumbering{Backend: h.Backend} },
		},
		{
			"placeholders are numbered by their place",
			[]string{"describe/a placeholder keeps its id as long as it exists"},
			pictured(func(g *cloud.Group) {
				for i := range g.Instances {
					if g.Instances[i].Placeholder && len(g.Instances) == 2 {
						g.Instances[i].ID = strings.Replace(g.Instances[i].ID, "placeholder-", "placeholder-bb", 1)
						g.Instances[i].ID = g.Instances[i].ID[:len(g.Instances[i].ID)-2]
					}
				}
			}),
		},
		{
			"errors are told once",
			[]string{"describe/a launch error stays until the placeholder goes"},
			func(h *Harness) {
				told := 0
				pictured(func(g *cloud.Group) {
					for i := range g.Instances {
						if g.Instances[i].Error != nil {
							if told++; told > 4 {
								g.Instances[i].Error = nil
							}
						}
					}
				})(h)
			},
		},
		{
			"pictures share memory",
			[]string{"describe/returned values are the caller's"},
			func(h *Harness) {
				shared := map[string][]cloud.Instance{}
				pictured(func(g *cloud.Group) {
					old := shared[g.ID]
					if len(old) >= len(g.Instances) {
						copy(old, g.Instances)
						g.Instances = old[:len(g.Instances)]
						return
					}
					shared[g.ID] = g.Instances
				})(h)
			},
		},
		{
			"target and instances are from different moments",
			[]string{"concurrency/groups are written to side by side while others read"},
			wrap(func(b *broken) {
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					first, err := b.Backend.Describe(ctx, ids...)
					if err != nil {
						return nil, err
					}
					runtime.Gosched()
					for i := range first {
						first[i].Instances = is(b.Backend, first[i].ID).Instances
					}
					return first, nil
				}
			}),
		},
	}
}

// renumbering gives each instance the lowest number that is free.
type renumbering struct {
	cloud.Backend
	names map[string]string
}

func (r *renumbering) rename(g cloud.Group) cloud.Group {
	old := r.names
	r.names = map[string]string{}
	taken := map[string]bool{}
	for _, i := range g.Instances {
		if name, ok := old[i.ID]; ok {
			r.names[i.ID] = name
			taken[name] = true
		}
	}
	for i, instance := range g.Instances {
		for n := 0; r.names[instance.ID] == ""; n++ {
			if name := fmt.Sprintf("simulated:///%s/%s-bbb%d%d", g.ID, g.ID, 2+n/8, 2+n%8); !taken[name] {
				r.names[instance.ID] = name
				taken[name] = true
			}
		}
		g.Instances[i].ID = r.names[instance.ID]
	}
	return g
}

func (r *renumbering) realIDs(names []string) []string {
	var ids []string
	for _, name := range names {
		for id, alias := range r.names {
			if alias == name {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func (r *renumbering) Describe(ctx context.Context, ids ...string) ([]cloud.Group, error) {
	groups, err := r.Backend.Describe(ctx, ids...)
	for i := range groups {
		if groups[i].ID == "one" {
			groups[i] = r.rename(groups[i])
		}
	}
	return groups, err
}

func (r *renumbering) Increase(ctx context.Context, id string, more func(cloud.Group) int) (cloud.Group, error) {
	group, err := r.Backend.Increase(ctx, id, more)
	if id == "one" && err == nil {
		group = r.rename(group)
	}
	return group, err
}

func (r *renumbering) Delete(ctx context.Context, id string, names []string) (cloud.Group, []string, error) {
	if id != "one" {
		return r.Backend.Delete(ctx, id, names)
	}
	group, _, err := r.Backend.Delete(ctx, id, r.realIDs(names))
	if err != nil {
		return group, nil, err
	}
	return r.rename(group), names, nil
}

func configureMutants() []mutant {
	return []mutant{
		{
			"groups are never dropped",
			[]string{"configure/a group that is no longer named is not found"},
			wrap(func(b *broken) {
				b.configure = func(ctx context.Context, specs []cloud.Spec) error {
					if len(specs) < 3 {
						return ctx.Err()
					}
					return b.Backend.Configure(ctx, specs)
				}
			}),
		},
		{
			"dropping a group ends it",
			[]string{"configure/instances outlive that their group is not named"},
			wrap(func(b *broken) {
				b.configure = func(ctx context.Context, specs []cloud.Spec) error {
					for _, i := range is(b.Backend, "one").Instances {
						_, _, err := b.Backend.Delete(ctx, "one", []string{i.ID})
						if errors.Is(err, cloud.ErrInvalid) {
							continue
						}
					}
					return b.Backend.Configure(ctx, specs)
				}
			}),
		},
		{
			"configuring ends everything",
			[]string{"configure/other groups are left alone"},
			wrap(func(b *broken) {
				b.configure = func(ctx context.Context, specs []cloud.Spec) error {
					if err := ctx.Err(); err != nil {
						return err
					}
					for _, i := range is(b.Backend, "two").Instances {
						if _, _, err := b.Backend.Delete(ctx, "two", []string{i.ID}); err != nil {
							continue
						}
					}
					return b.Backend.Configure(ctx, specs)
				}
			}),
		},
		{
			"the caller's specs are read later",
			[]string{"configure/the caller's list is not kept"},
			wrap(func(b *broken) {
				var kept []cloud.Spec
				b.configure = func(ctx context.Context, specs []cloud.Spec) error {
					kept = specs
					return b.Backend.Configure(ctx, specs)
				}
				b.describe = func(ctx context.Context, ids []string) ([]cloud.Group, error) {
					if kept != nil {
						if err := b.Backend.Configure(ctx, kept); err != nil {
							return nil, err
						}
					}
					return b.Backend.Describe(ctx, ids...)
				}
			}),
		},
		{
			"a restart forgets",
			[]string{"configure/a new process finds everything that was acknowledged"},
			func(h *Harness) {
				h.Reopen = func(testing.TB) cloud.Backend {
					c, err := simulated.New(simulated.Options{})
					if err != nil {
						panic(err)
					}
					return c
				}
			},
		},
	}
}
