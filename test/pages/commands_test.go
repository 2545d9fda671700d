package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const protocolPage = "provider/checkpoint/README.md"

// built is the folder of programs; empty while no test has asked for them.
var built string

// programs builds both programs once, and returns their folder.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pages-")
	if err != nil {
		return "", err
	}
	built = dir
	build := exec.CommandContext(context.Background(), "go", "build", "-o", dir, "./cmd/gpu-node-provider", "./cmd/checkpoint-ack")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built) // a temporary folder
	}
	os.Exit(code)
}

// run returns what a program prints.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	dir, err := programs()
	require.NoError(t, err)
	output, err := exec.CommandContext(t.Context(), filepath.Join(dir, program), args...).Output()
	require.NoError(t, err, "%s %s", program, strings.Join(args, " "))
	return string(output)
}

var (
	subcommand = regexp.MustCompile(`(?m)^  ([a-z]+) `)
	flagLine   = regexp.MustCompile(`(?m)^ *(?:-([a-z]), )?--([a-z-]+)`)
)

// commands are the flags of every command, by its name behind the program's.
func commands(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	var visit func(name []string)
	visit = func(name []string) {
		help := run(t, "gpu-node-provider", append(slices.Clone(name), "--help")...)
		_, available, _ := strings.Cut(help, "Available Commands:\n")
		available, _, _ = strings.Cut(available, "\n\n")
		for _, found := range subcommand.FindAllStringSubmatch(available, -1) {
			if found[1] != "help" {
				visit(append(slices.Clone(name), found[1]))
			}
		}
		var flags []string
		_, described, _ := strings.Cut(help, "\nFlags:\n")
		for _, found := range flagLine.FindAllStringSubmatch(described, -1) {
			flags = append(flags, "--"+found[2])
			if found[1] != "" {
				flags = append(flags, "-"+found[1])
			}
		}
		all[strings.Join(name, " ")] = flags
	}
	visit(nil)
	return all
}

// common are the flags that every command has.
var common = []string{"--help", "-h", "--version"}

func TestEveryCommandIsInThePage(t *testing.T) {
	p := pages(t)[operation]
	documented := strings.Join(firstColumn(p, "Commands", "command"), "\n") + "\n"
	flags := map[string]row{}
	for _, r := range p.rows {
		if r.heading == "Commands" && r.header[0] == "flag" {
			for _, flag := range codes(r.cells[0]) {
				flags[flag] = r
			}
		}
	}
	used := map[string]bool{}
	for name, has := range commands(t) {
		if name == "" || name == "checkpoint" || strings.HasPrefix(name, "completion ") {
			continue // groups of commands
		}
		assert.Regexp(t, `(?m)^gpu-node-provider `+name+`( [-A-Z]|$)`, documented)
		for _, flag := range has {
			if slices.Contains(common, flag) || name == "completion" {
				continue
			}
			if name == "certs" {
				if flag != "--dir" {
					assert.Contains(t, firstColumn(pages(t)["deploy/README.md"], "TLS", "flag of `certs`"), flag)
				}
				continue
			}
			used[flag] = true
			r, ok := flags[flag]
			if assert.True(t, ok, "%s of %s is not in %s", flag, name, operation) {
				assert.Contains(t, codes(r.cells[1]), name, "%s is a flag of", flag)
			}
		}
	}
	for flag := range flags {
		assert.True(t, used[flag], "%s has a row for %s, which no command has", operation, flag)
	}
}

func TestFlagsThatPagesNameExist(t *testing.T) {
	known, found := commands(t), 0
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) }) // `checkpoint list` before `checkpoint`
	called := regexp.MustCompile(`gpu-node-provider (` + strings.Join(names[:len(names)-1], "|") + `)( .*|$)`)
	flag := regexp.MustCompile(` (--?[a-z][a-z-]*)`)
	for _, p := range pages(t) {
		for _, line := range commandLines(p) {
			match := called.FindStringSubmatch(line)
			if match == nil {
				continue
			}
			for _, given := range flag.FindAllStringSubmatch(match[2], -1) {
				found++
				assert.Contains(t, append(known[match[1]], common...), given[1], "%s: %s", p.path, line)
			}
		}
	}
	assert.Greater(t, found, 10)
}

// commandLines are the lines of code in a page.
func commandLines(p *page) []string {
	lines := slices.Clone(p.spans)
	for _, b := range p.blocks {
		text := strings.ReplaceAll(b.text, "\\\n", " ")
		for _, line := range strings.Split(text, "\n") {
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " # ")
			lines = append(lines, line)
		}
	}
	return lines
}

func TestFlagsOfCheckpointAckInThePage(t *testing.T) {
	help := run(t, "checkpoint-ack", "--help")
	inHelp, documented := map[string]bool{}, map[string]bool{}
	for _, flag := range regexp.MustCompile(`--[a-z]+`).FindAllString(help, -1) {
		inHelp[flag] = true
	}
	for _, flag := range firstColumn(pages(t)[protocolPage], "checkpoint-ack", "flag") {
		documented[flag] = true
	}
	assert.Equal(t, sorted(inHelp), sorted(documented))
	for _, variable := range regexp.MustCompile(`\b(REDIS|POD|CHECKPOINT)_[A-Z_]+`).FindAllString(help, -1) {
		assert.Contains(t, pages(t)[protocolPage].source, "`"+variable+"`")
	}
}

// The checks of doctor, on a machine with nothing that it could check.
func TestEveryCheckOfDoctorIsInThePage(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	text := strings.Replace(shortestSimulated, "kubernetes: {}\n", "", 1) + "server: {httpAddress: \"" + free.Addr().String() + "\"}\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	bin, err := programs()
	require.NoError(t, err)
	output, _ := exec.CommandContext(t.Context(), filepath.Join(bin, "gpu-node-provider"), "doctor", "--config", file, "-o", "json").Output() // it fails: no provider runs
	var findings []struct{ Check string }
	require.NoError(t, json.Unmarshal(output, &findings), "%s", output)
	ran, documented := map[string]bool{}, map[string]bool{}
	for _, f := range findings {
		ran[f.Check] = true
	}
	for _, check := range firstColumn(pages(t)[operation], "doctor", "check") {
		documented[check] = true
	}
	assert.Equal(t, sorted(ran), sorted(documented))
}
