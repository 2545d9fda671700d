package simulated

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
)

// childEnv names the state file on which a child process writes until it is
// killed.
const childEnv = "SIMULATED_CLOUD_CHILD_STATE"

var killGroups = []string{"t4", "a100"}

// killOptions have nothing change by itself: machines run at once or never, and
// stay visible when they are deleted. So each difference comes from a write.
func killOptions(path string) Options {
	return Options{StateFile: path, LaunchErrorRate: 0.3, TerminateDelay: 1000 * time.Hour}
}

// line is what the child tells: a write before it is made, with Op and its
// arguments, and the group after it was acknowledged.
type line struct {
	Op    string
	Group string
	Delta int
	IDs   []string
	After map[string]string
}

// child makes writes for ever. It runs in a process of its own.
func child(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	c, err := New(killOptions(path))
	fail(err)
	ctx := context.Background()
	fail(c.Configure(ctx, specs(killGroups...)))
	say := func(l line) {
		data, err := json.Marshal(l)
		fail(err)
		_, err = os.Stdout.Write(append(data, '\n'))
		fail(err)
	}
	say(line{Op: "start"})
	for {
		group := killGroups[rand.IntN(len(killGroups))]
		groups, err := c.Describe(ctx, group)
		fail(err)
		write := chooseWrite(groups[0])
		say(write)
		after, err := write.carryOut(ctx, c)
		fail(err)
		write.Op, write.After = "done", picture(after)
		say(write)
	}
}

func chooseWrite(g cloud.Group) line {
	var placeholders, machines []string
	for _, i := range g.Instances {
		switch {
		case i.Placeholder:
			placeholders = append(placeholders, i.ID)
		case i.State != cloud.Deleting:
			machines = append(machines, i.ID)
		}
	}
	some := func(ids []string) []string { return ids[:1+rand.IntN(len(ids))] }
	switch n := rand.IntN(4); {
	case n == 0 && len(placeholders) > 0:
		return line{Op: "cancel", Group: g.ID, IDs: some(placeholders)}
	case n == 1 && len(machines) > 0:
		return line{Op: "delete", Group: g.ID, IDs: some(machines)}
	case n == 2 && len(machines) > 0:
		return line{Op: "interrupt", Group: g.ID, IDs: machines[:1]}
	default:
		return line{Op: "increase", Group: g.ID, Delta: 1 + rand.IntN(3)}
	}
}

func (l line) carryOut(ctx context.Context, c *Cloud) (after cloud.Group, err error) {
	switch l.Op {
	case "cancel":
		after, _, err = c.Cancel(ctx, l.Group, cloudtest.These(l.IDs))
	case "delete":
		after, _, err = c.Delete(ctx, l.Group, l.IDs)
	case "interrupt":
		if err = c.Interrupt(ctx, l.IDs[0]); err == nil {
			var groups []cloud.Group
			if groups, err = c.Describe(ctx, l.Group); err == nil {
				after = groups[0]
			}
		}
	default:
		after, err = c.Increase(ctx, l.Group, cloudtest.Exactly(l.Delta))
	}
	return after, err
}

func picture(g cloud.Group) map[string]string {
	p := map[string]string{}
	for _, i := range g.Instances {
		p[i.ID] = i.State.String()
	}
	return p
}

// TestKillNine kills a writing process at random moments. What it was told to be
// done is there afterwards, and a write it was not told about is there as a
// whole or not at all.
func TestKillNine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	acknowledged := map[string]map[string]string{}
	for _, group := range killGroups {
		acknowledged[group] = map[string]string{}
	}
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		open := runChild(t, path, rand.IntN(25), rand.N(2*time.Millisecond), acknowledged)

		c, err := New(killOptions(path))
		require.NoError(t, err, "round %d: the state cannot be opened", round)
		require.NoError(t, c.Configure(t.Context(), specs(killGroups...)))
		for _, group := range killGroups {
			now := picture(get(t, c, group))
			if open == nil || open.Group != group || !maps.Equal(now, acknowledged[group]) {
				requireOutcome(t, open, group, acknowledged[group], now)
			}
			acknowledged[group] = now
		}
		require.NoError(t, c.Close())
	}
	leftover, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(leftover), 3, "crashes leave litter: %v", leftover)
}

// runChild lets a child write until it has told a number of lines and some time
// more has passed, kills it, and takes down what was acknowledged. It returns the write
// that was begun and not acknowledged, if any.
func runChild(t *testing.T, path string, lines int, longer time.Duration, acknowledged map[string]map[string]string) (open *line) {
	command := exec.CommandContext(t.Context(), os.Args[0])
	command.Env = append(os.Environ(), childEnv+"="+path)
	command.Stderr = os.Stderr
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	scanner := bufio.NewScanner(out)
	scanner.Buffer(nil, 1<<22)
	killed := make(chan struct{})
	for told := 0; scanner.Scan(); told++ {
		if told == lines {
			time.AfterFunc(longer, func() {
				defer close(killed)
				_ = command.Process.Kill() // SIGKILL; it cannot have ended before
			})
		}
		var l line
		if json.Unmarshal(scanner.Bytes(), &l) != nil {
			break // the kill came within a line
		}
		switch l.Op {
		case "start":
		case "done":
			acknowledged[l.Group] = l.After
			open = nil
		default:
			open = &l
		}
	}
	<-killed
	require.ErrorContains(t, command.Wait(), "killed")
	return open
}

// requireOutcome checks that a group is as it was acknowledged, or, when a write
// to it was open, as that write would have left it.
func requireOutcome(t *testing.T, open *line, group string, before, now map[string]string) {
	t.Helper()
	if open == nil || open.Group != group {
		require.Equal(t, before, now, "group %s is not as acknowledged", group)
		return
	}
	want, added := maps.Clone(before), open.Delta
	for _, id := range open.IDs {
		if open.Op == "cancel" {
			delete(want, id)
		} else {
			want[id] = cloud.Deleting.String()
		}
	}
	if open.Op == "interrupt" {
		added = 1
	}
	for id, state := range want {
		require.Equal(t, state, now[id], "%s of %s after an open %s of %v", id, group, open.Op, open.IDs)
	}
	require.Len(t, now, len(want)+added, "%s after an open %s", group, open.Op)
	for _, id := range slices.Collect(maps.Keys(now)) {
		if _, old := want[id]; !old {
			require.NotEqual(t, cloud.Deleting.String(), now[id])
		}
	}
}
