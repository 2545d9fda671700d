package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gpu-node-provider/provider/config"
)

func validateCommand() *cobra.Command {
	var file string
	var whole bool
	c := &cobra.Command{
		Use:   "validate --config FILE",
		Short: "Check a node group file, and print it with every default",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			if !whole {
				_, err := fmt.Fprintf(c.OutOrStdout(), "%s: ok, %d node groups, %d quotas\n", file, len(cfg.NodeGroups), len(cfg.Quotas))
				return err
			}
			text, err := cfg.Marshal()
			if err != nil {
				return fmt.Errorf("printing %s: %w", file, err)
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	configFlag(c, &file)
	c.Flags().BoolVar(&whole, "print", false, "print the file with every default written out")
	return c
}

func configFlag(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "config", "", "the node group file (required)")
}

// load reads and checks a node group file and the files it names.
func load(file string) (*config.Config, error) {
	if file == "" {
		return nil, usageError{fmt.Errorf("--config FILE is missing: it names the node group file")}
	}
	cfg, err := config.Load(file)
	if err != nil {
		return nil, usageError{err}
	}
	if err := cfg.CheckFiles(file); err != nil {
		return nil, usageError{err}
	}
	return cfg, nil
}
