package main

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/reload"
)

func serveCommand() *cobra.Command {
	var file string
	var verbose bool
	c := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Serve the node groups of a file to Cluster Autoscaler",
		Example: `  # Serve the node groups of a file, and log reads too
  gpu-node-provider serve --config node-groups.yaml --verbose`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			// Reading before loading detects a change in between.
			contents, _ := reload.Read(file) // load returns the error
			cfg, err := load(file)
			if err != nil {
				return err
			}
			return serve(c.Context(), serveOptions{
				file: file, contents: contents, config: cfg, log: logger(c.ErrOrStderr(), verbose), out: c.OutOrStdout(),
			})
		},
	}
	configFlag(c, &file)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "log reads too")
	return c
}

type serveOptions struct {
	file     string
	contents reload.Contents // from which config was decoded
	config   *config.Config
	log      *zap.Logger
	out      io.Writer
}

// serve runs a replica until ctx is done or one of its parts fails.
func serve(ctx context.Context, o serveOptions) error {
	r, err := newReplica(o)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.run(ctx); err != nil {
		o.log.Error("serve failed", zap.Error(err))
		return loggedError{err}
	}
	return nil
}

// banner prints the addresses to a terminal. Log collectors read the "serving" entry
// instead.
func (r *replica) banner(grpc net.Addr, groups int) error {
	if !isTerminal(r.out) {
		return nil
	}
	text := fmt.Sprintf("gpu-node-provider %s serves %d node groups\n", version, groups) +
		fmt.Sprintf("  gRPC   %s   for Cluster Autoscaler's cloud-config\n", reachable(r.config.Server.Address, grpc)) +
		fmt.Sprintf("  HTTP   %s   /healthz /readyz /metrics\n", r.http.Addr())
	if r.config.Redis.Embedded != nil {
		text += fmt.Sprintf("  Redis  %s   embedded, for rehearsal\n", r.redis.Addresses[0])
	}
	text += fmt.Sprintf("Look at it with: gpu-node-provider status --address %s --watch\n", r.http.Addr())
	_, err := io.WriteString(r.out, text)
	return err
}

// reachable returns the configured host with the listener's port. A listener on all
// addresses reports [::], which clients cannot dial.
func reachable(configured string, actual net.Addr) string {
	host, _, err := net.SplitHostPort(configured)
	_, port, err2 := net.SplitHostPort(actual.String())
	if err != nil || err2 != nil {
		return actual.String()
	}
	return net.JoinHostPort(host, port)
}
