// Command gpu-node-provider serves GPU node groups to Cluster Autoscaler
// (--cloud-provider=externalgrpc).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Exit codes: the caller can correct a usage error; for a failure see the message and the log.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is caused by bad input: a flag, a file, a port in use.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// loggedError is already in the log, so it is not printed.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return exitCode(root.ExecuteContext(ctx), stderr)
}

// exitCode prints the error of a command, unless it is in the log, and returns the exit code.
func exitCode(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if logged := (loggedError{}); !errors.As(err, &logged) {
		_, _ = fmt.Fprintln(stderr, err)
	}
	if usage := (usageError{}); errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpu-node-provider",
		Short: "Provide GPU node groups to Cluster Autoscaler (--cloud-provider=externalgrpc)",
		Example: `  # Check a node group file, serve it, and watch its node groups
  gpu-node-provider validate --config node-groups.yaml
  gpu-node-provider serve --config node-groups.yaml
  gpu-node-provider status --watch`,
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		Args:                       knownCommand,
	}
	showVersion := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(c *cobra.Command, _ []string) error {
		if *showVersion {
			return printVersion(c)
		}
		return c.Help()
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	root.AddCommand(serveCommand(), validateCommand(), statusCommand(), doctorCommand(), checkpointCommand(), certsCommand(), uninstallCommand(), versionCommand())
	return root
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  gpu-node-provider version",
		Args:    noArguments,
		RunE:    func(c *cobra.Command, _ []string) error { return printVersion(c) },
	}
}

func printVersion(c *cobra.Command) error {
	_, err := fmt.Fprintln(c.OutOrStdout(), version)
	return err
}

// knownCommand returns a usageError for an unknown subcommand of c, with similar ones.
// Cobra's own check returns an error that cannot be told from a failure, and checks the
// root command only.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	if similar := c.SuggestionsFor(args[0]); len(similar) > 0 {
		return usageError{fmt.Errorf("%s. Did you mean this? %s", text, strings.Join(similar, ", "))}
	}
	return usageError{fmt.Errorf("%s; see %s --help", text, c.CommandPath())}
}

// showHelp is the action of commands that only have subcommands. Cobra checks the
// arguments of commands with an action only.
func showHelp(c *cobra.Command, _ []string) error { return c.Help() }

// noArguments returns a usageError for any argument.
func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments, got %q; see %s --help", c.CommandPath(), args, c.CommandPath())}
	}
	return nil
}
