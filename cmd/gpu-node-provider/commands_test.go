package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryCommandIsDocumented: each command and flag has its help.
func TestEveryCommandIsDocumented(t *testing.T) {
	var paths []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		path := c.CommandPath()
		paths = append(paths, path)
		c.InitDefaultHelpFlag()
		assert.NotEmpty(t, c.Short, "%s has no Short", path)
		assert.Regexp(t, regexp.MustCompile(`(?m)^  `+path), c.Example, "%s has no Example of itself", path)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			assert.NotEmpty(t, f.Usage, "--%s of %s is not described", f.Name, path)
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
	for _, command := range []string{"serve", "validate", "status", "doctor", "checkpoint", "checkpoint list", "checkpoint request", "checkpoint release", "certs", "uninstall", "version"} {
		require.Contains(t, paths, "gpu-node-provider "+command)
	}
}

// TestExamplesAreCommandLines: the subcommands and flags of examples exist.
func TestExamplesAreCommandLines(t *testing.T) {
	ours := regexp.MustCompile(`(?m)(?:^  |\| | /)gpu-node-provider ([^|\n]*)`)
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, line := range ours.FindAllStringSubmatch(strings.ReplaceAll(c.Example, "\\\n", ""), -1) {
			root := rootCommand()
			found, rest, err := root.Find(strings.Fields(line[1]))
			require.NoError(t, err, line[0])
			require.NotEqual(t, root, found, line[0])
			require.NoError(t, found.ParseFlags(rest), line[0])
			require.NoError(t, found.ValidateArgs(found.Flags().Args()), line[0])
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		p := start(t, args...)
		require.Zero(t, p.wait(t))
		require.Equal(t, version+"\n", p.stdout.String())
		require.Empty(t, p.stderr.String())
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"checkpoint"}, {"serve", "--help"}} {
		p := start(t, args...)
		require.Zero(t, p.wait(t))
		require.Contains(t, p.stdout.String(), "Usage:")
		require.Contains(t, p.stdout.String(), "Examples:")
		require.Empty(t, p.stderr.String())
	}
}

func TestMistypedCommands(t *testing.T) {
	for line, want := range map[string]string{
		"stauts":            `unknown command "stauts" for "gpu-node-provider". Did you mean this? status`,
		"srve":              `unknown command "srve" for "gpu-node-provider". Did you mean this? serve`,
		"zebra":             `unknown command "zebra" for "gpu-node-provider"; see gpu-node-provider --help`,
		"checkpoint relase": `unknown command "relase" for "gpu-node-provider checkpoint". Did you mean this? release`,
		"checkpoint zebra":  `unknown command "zebra" for "gpu-node-provider checkpoint"; see gpu-node-provider checkpoint --help`,
		"status --adrs x":   "unknown flag: --adrs; see gpu-node-provider status --help",
		"version 2":         "gpu-node-provider version takes no arguments",
	} {
		p := start(t, strings.Fields(line)...)
		require.Equal(t, exitUsage, p.wait(t), line)
		require.Contains(t, p.stderr.String(), want)
		require.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), p.stderr.String())
		require.Empty(t, p.stdout.String())
	}
}

// TestCompletion calls the hidden command that completion scripts call.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"status|-o|":          "table\njson\nyaml\n:4\n",
		"doctor|--output|":    "table\njson\nyaml\n:4\n",
		"checkpoint|list|-o|": "table\njson\nyaml\n:4\n",
		"validate|--config|":  "yaml\nyml\n:8\n", // files with these endings
		"serve|--config|":     "yaml\nyml\n:8\n",
		"certs|--dir|":        ":16\n", // directories
	} {
		p := start(t, append([]string{"__complete"}, strings.Split(line, "|")...)...)
		require.Zero(t, p.wait(t), line)
		require.Equal(t, want, p.stdout.String(), line)
	}
	p := start(t, "__complete", "checkpoint", "re")
	require.Zero(t, p.wait(t))
	require.Regexp(t, `^release\t.*\nrequest\t.*\n:4\n$`, p.stdout.String())
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		p := start(t, "completion", shell)
		require.Zero(t, p.wait(t))
		require.Contains(t, p.stdout.String(), "__complete")
	}
}

// TestExitCodes: an error that is in the log is not printed.
func TestExitCodes(t *testing.T) {
	failure := errors.New("no disk")
	for _, c := range []struct {
		err    error
		code   int
		stderr string
	}{
		{nil, 0, ""},
		{failure, exitFailure, "no disk\n"},
		{fmt.Errorf("x: %w", usageError{failure}), exitUsage, "x: no disk\n"},
		{loggedError{failure}, exitFailure, ""},
		{loggedError{fmt.Errorf("x: %w", usageError{failure})}, exitUsage, ""},
	} {
		var stderr output
		require.Equal(t, c.code, exitCode(c.err, &stderr))
		require.Equal(t, c.stderr, stderr.String())
	}
}
