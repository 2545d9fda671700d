package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gpu-node-provider/provider/mtls"
)

func certsCommand() *cobra.Command {
	var dir string
	var o mtls.GenerateOptions
	c := &cobra.Command{
		Use:   "certs --dir DIR",
		Short: "Make a CA, a server pair and a client pair, for clusters without cert-manager",
		Long: "Makes a certificate authority, a pair for the provider and a pair for Cluster Autoscaler.\n" +
			"The server names have to contain the host part of `address` in Cluster Autoscaler's cloud-config.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return usageError{errors.New("--dir DIR is missing: it is where the files go")}
			}
			made, err := mtls.Generate(dir, o)
			if err != nil {
				return usageError{err}
			}
			for _, file := range made.Files {
				if _, err := fmt.Fprintln(c.OutOrStdout(), file); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "server names %v, client name %s, good until %s\n",
				made.ServerNames, made.ClientName, made.Expiry.Format(time.RFC3339))
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "where the files go (required)")
	c.Flags().StringSliceVar(&o.ServerNames, "server-name", nil, "DNS names and IP addresses of the provider (default: those of its Service and of the loopback)")
	c.Flags().StringVar(&o.Namespace, "namespace", "", "the Service's namespace, for the default names (default gpu-node-provider)")
	c.Flags().StringVar(&o.ClientName, "client-name", "", "name in Cluster Autoscaler's certificate (default "+mtls.DefaultClientName+")")
	c.Flags().DurationVar(&o.Validity, "validity", mtls.DefaultValidity, "how long both pairs are good")
	c.Flags().BoolVar(&o.Renew, "renew", false, "make new pairs with the CA that is there")
	c.Flags().BoolVar(&o.Force, "force", false, "replace everything, the CA too")
	return c
}
