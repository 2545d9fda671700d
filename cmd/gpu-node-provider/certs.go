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
		Short: "Create a CA and certificates for the provider and Cluster Autoscaler, without cert-manager",
		Long: "Create a certificate authority, and a certificate with its key for the provider and for Cluster Autoscaler.\n" +
			"The server names have to contain the host part of `address` in Cluster Autoscaler's cloud-config.",
		Example: `  # Create everything for the Service of deploy/manifests
  gpu-node-provider certs --dir certs

  # Create certificates for a provider outside the cluster
  gpu-node-provider certs --dir certs --server-name provider.example.com --server-name 10.0.0.8

  # Replace certificates before they expire, with the same CA
  gpu-node-provider certs --dir certs --renew`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return usageError{errors.New("--dir DIR is missing: it names the directory of the new files")}
			}
			created, err := mtls.Generate(dir, o)
			if err != nil {
				return usageError{err}
			}
			for _, file := range created.Files {
				if _, err := fmt.Fprintln(c.OutOrStdout(), file); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "server names %v, client name %s, valid until %s\n",
				created.ServerNames, created.ClientName, created.Expiry.Format(time.RFC3339))
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory of the new files (required)")
	cobra.CheckErr(c.MarkFlagDirname("dir")) // fails for an unknown flag only
	c.Flags().StringSliceVar(&o.ServerNames, "server-name", nil, "DNS names and IP addresses of the provider (default: those of its Service and of the loopback)")
	c.Flags().StringVar(&o.Namespace, "namespace", "", "the Service's namespace, for the default names (default gpu-node-provider)")
	c.Flags().StringVar(&o.ClientName, "client-name", "", "name in Cluster Autoscaler's certificate (default "+mtls.DefaultClientName+")")
	c.Flags().DurationVar(&o.Validity, "validity", mtls.DefaultValidity, "how long both certificates are valid")
	c.Flags().BoolVar(&o.Renew, "renew", false, "replace both certificates, signed by the CA in the directory")
	c.Flags().BoolVar(&o.Force, "force", false, "replace everything, the CA too")
	return c
}
