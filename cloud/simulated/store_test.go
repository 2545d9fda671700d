package simulated

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/cloudtest"
)

func TestStateFileSurvivesARestart(t *testing.T) {
	clock := newClock()
	options := slowly(clock.Now)
	options.Memory, options.StateFile = nil, filepath.Join(t.TempDir(), "state.json")
	options.Capacity = map[string]int{"t4": 3}
	c := open(t, options, "t4", "a100")
	grow(t, c, "t4", 4)
	clock.Step(launch + boot)
	require.NoError(t, c.Interrupt(t.Context(), get(t, c, "t4").Instances[0].ID))
	grow(t, c, "a100", 1)
	before := []cloud.Group{get(t, c, "t4"), get(t, c, "a100")}
	written := c.current
	require.NoError(t, c.Close())

	c = open(t, options, "t4", "a100")
	require.Empty(t, cmp.Diff(before, []cloud.Group{get(t, c, "t4"), get(t, c, "a100")}))
	require.Empty(t, cmp.Diff(written, c.current), "something is not written, or not read")
}

func TestStateFileIsForOneProcess(t *testing.T) {
	options := Options{StateFile: filepath.Join(t.TempDir(), "state.json")}
	first, err := New(options)
	require.NoError(t, err)
	_, err = New(options)
	require.ErrorContains(t, err, "state file "+options.StateFile+" is in use by another process")
	require.NoError(t, first.Close())
	second, err := New(options)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestStateFileInNoFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "state.json")
	_, err := New(Options{StateFile: path})
	require.ErrorContains(t, err, "state file "+path)
	require.ErrorContains(t, err, "folder must exist")
}

// good is a state as it is written, with a machine of each fate.
const good = `{"kind":"gpu-node-provider.io/simulated-cloud","version":1,"clock":"2026-08-01T12:00:00Z","sequence":{"next":5,"step":7},"groups":{"t4":[` +
	`{"serial":"bcdf2","salt":"ghjk4","asked":"2026-08-01T11:00:00Z","launch":"2026-08-01T11:00:10Z","running":"2026-08-01T11:02:00Z","devices":"2026-08-01T11:03:00Z"},` +
	`{"serial":"bcdf4","salt":"ghjk4","asked":"2026-08-01T11:00:00Z","launch":"2026-08-01T11:00:10Z","failure":{"code":"Other","message":"m"}},` +
	`{"serial":"bcdf5","salt":"ghjk4","asked":"2026-08-01T11:00:00Z","launch":"2026-08-01T11:00:10Z","running":"2026-08-01T11:02:00Z","devices":"2026-08-01T11:03:00Z","ended":"2026-08-01T11:30:00Z","gone":"2026-08-01T11:31:00Z"}]}}`

func TestBadStateFiles(t *testing.T) {
	change := func(old, replacement string) string {
		changed := strings.Replace(good, old, replacement, 1)
		require.NotEqual(t, good, changed, old)
		return changed
	}
	for name, row := range map[string]struct{ content, want string }{
		"empty":               {"", "invalid or truncated JSON"},
		"cut off":             {good[:len(good)/2], "invalid or truncated JSON"},
		"zeros":               {strings.Repeat("\x00", 512), "invalid or truncated JSON"},
		"null":                {"null", `kind is "", not "gpu-node-provider.io/simulated-cloud"`},
		"other JSON":          {`{"apiVersion":"v1"}`, `kind is ""`},
		"a list":              {`[]`, "invalid or truncated JSON"},
		"newer version":       {change(`"version":1`, `"version":2`), "version 2 is not supported, this version reads 1"},
		"unknown key":         {change(`"clock"`, `"colour":1,"clock"`), `unknown field "colour"`},
		"unknown key in unit": {change(`"serial"`, `"colour":1,"serial"`), `unknown field "colour"`},
		"two states":          {good + good, "invalid or truncated JSON"},
		"no clock":            {change(`"clock":"2026-08-01T12:00:00Z",`, ``), "clock is missing"},
		"bad time":            {change(`"clock":"2026-08-01T12:00:00Z"`, `"clock":"noon"`), "parsing time"},
		"no sequence":         {change(`"step":7`, `"step":0`), "sequence"},
		"step repeats":        {change(`"step":7`, `"step":9`), "sequence"},
		"next too large":      {change(`"next":5`, `"next":14348907`), "sequence"},
		"bad group":           {change(`"t4"`, `"T4"`), `group "T4" is not a DNS label`},
		"bad serial":          {change(`bcdf2`, `bcdfa`), `groups.t4[0]: serial "bcdfa" is malformed`},
		"bad salt":            {change(`ghjk4`, `ghjk`), `groups.t4[0]: salt "ghjk" is malformed`},
		"same serial":         {change(`bcdf4`, `bcdf2`), `groups.t4[0] and groups.t4[1] have the same serial "bcdf2"`},
		"launch before asked": {change(`11:00:10`, `10:00:10`), "groups.t4[0]: asked and launch are not in order"},
		"no running":          {change(`"running":"2026-08-01T11:02:00Z",`, ``), "groups.t4[0]: launch, running and devices are not in order"},
		"unknown failure":     {change(`"Other"`, `"Oops"`), `groups.t4[1]: failure code "Oops" is unknown`},
		"failed and running":  {change(`"failure"`, `"running":"2026-08-01T11:02:00Z","failure"`), "groups.t4[1]: a failed launch has fields of a running instance"},
		"ended, never gone":   {change(`,"gone":"2026-08-01T11:31:00Z"`, ``), "groups.t4[2]: ended and gone are not in order"},
		"ended too early":     {change(`11:30:00`, `11:00:05`), "groups.t4[2]: ended before its launch"},
		"replaced alone":      {change(`"devices":"2026-08-01T11:03:00Z"}`, `"devices":"2026-08-01T11:03:00Z","replaced":true}`), "groups.t4[0]: replaced, but not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			require.NoError(t, os.WriteFile(path, []byte(row.content), 0o600))
			_, err := New(Options{StateFile: path})
			require.ErrorContains(t, err, row.want)
			require.ErrorContains(t, err, "state file "+path+" cannot be used")
			require.ErrorContains(t, err, "move it away to start with an empty cloud")
			kept, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, row.content, string(kept), "a file that cannot be used is left alone")
			require.NoError(t, os.Remove(path))
			c, err := New(Options{StateFile: path}) // the lock was given back
			require.NoError(t, err)
			require.NoError(t, c.Close())
		})
	}
}

func TestGoodStateFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	require.NoError(t, os.WriteFile(path, []byte(good), 0o600))
	c := open(t, Options{StateFile: path, Now: func() time.Time { return time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC) }}, "t4")
	require.Equal(t, map[string]int{"running": 1, "failed": 1}, states(get(t, c, "t4")))
}

// FuzzDecodeState checks that whatever is accepted is written back to the same.
func FuzzDecodeState(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"kind":"gpu-node-provider.io/simulated-cloud","version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeState(data)
		if err != nil {
			return
		}
		written, err := encodeState(s)
		require.NoError(t, err)
		again, err := decodeState(written)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(s, again, cmp.Comparer(time.Time.Equal)))
	})
}

// A write that cannot be put on disk is refused, and nobody ever sees it.
func TestFullDisk(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "state.json")
	c := open(t, Options{StateFile: path}, "t4")
	before := grow(t, c, "t4", 2)
	require.NoError(t, os.Mkdir(path+".tmp", 0o700)) // the new file cannot be made

	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(1))
	require.ErrorIs(t, err, cloud.ErrUnavailable)
	require.ErrorContains(t, err, path)
	_, confirmed, err := c.Delete(t.Context(), "t4", idsOf(before))
	require.ErrorIs(t, err, cloud.ErrUnavailable)
	require.Empty(t, confirmed)
	require.ErrorIs(t, c.Interrupt(t.Context(), before.Instances[0].ID), cloud.ErrUnavailable)
	require.Equal(t, before, get(t, c, "t4"))

	require.NoError(t, os.Remove(path+".tmp"))
	require.Equal(t, 3, grow(t, c, "t4", 1).Target)
}

// stubStore answers as a test wants.
type stubStore struct {
	store
	changed bool
	err     error
}

func (s *stubStore) save(next *state) (bool, error) {
	if s.err == nil {
		return s.store.save(next)
	}
	return s.changed, s.err
}

// When the file is in place, but perhaps not for good, the write is in effect
// and its outcome is called unknown.
func TestSaveOfUnknownOutcome(t *testing.T) {
	c := open(t, Options{}, "t4")
	c.store = &stubStore{store: c.store, changed: true, err: errors.Join(errors.New("sync failed"), cloud.ErrUnknownOutcome)}
	_, err := c.Increase(t.Context(), "t4", cloudtest.Exactly(2))
	require.ErrorIs(t, err, cloud.ErrUnknownOutcome)
	require.Equal(t, 2, get(t, c, "t4").Target)
}

func TestReadsAndRefusedWritesSaveNothing(t *testing.T) {
	c := open(t, Options{}, "t4")
	g := grow(t, c, "t4", 2)
	c.store = &stubStore{store: c.store, err: errors.New("nothing should be saved")}
	get(t, c, "t4")
	_, err := c.Lookup(t.Context(), "t4", idsOf(g))
	require.NoError(t, err)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(0))
	require.NoError(t, err)
	_, err = c.Increase(t.Context(), "t4", cloudtest.Exactly(-1))
	require.ErrorIs(t, err, cloud.ErrInvalid)
	_, _, err = c.Cancel(t.Context(), "t4", cloudtest.These(nil))
	require.NoError(t, err)
	_, _, err = c.Delete(t.Context(), "t4", []string{machineID("t4", "bbbbb")})
	require.NoError(t, err, "it is gone already")
}
