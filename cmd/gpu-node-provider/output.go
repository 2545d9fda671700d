package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// outputFormat is the value of --output.
type outputFormat string

const (
	asTable outputFormat = "table"
	asJSON  outputFormat = "json"
	asYAML  outputFormat = "yaml"
)

// String implements pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

// Set implements pflag.Value.
func (f *outputFormat) Set(text string) error {
	if !slices.Contains([]outputFormat{asTable, asJSON, asYAML}, outputFormat(text)) {
		return errors.New("must be table, json or yaml")
	}
	*f = outputFormat(text)
	return nil
}

// Type implements pflag.Value: the placeholder in the help.
func (f *outputFormat) Type() string { return "format" }

// outputFlag adds --output, with its values in the completion of shells.
func outputFlag(c *cobra.Command, format *outputFormat) {
	*format = asTable
	c.Flags().VarP(format, "output", "o", "output format: table, json or yaml")
	complete := cobra.FixedCompletions([]string{string(asTable), string(asJSON), string(asYAML)}, cobra.ShellCompDirectiveNoFileComp)
	cobra.CheckErr(c.RegisterFlagCompletionFunc("output", complete)) // fails for an unknown flag only
}

// encode writes value as JSON or YAML; both have the keys of its JSON tags.
func encode(out io.Writer, value any, format outputFormat) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err == nil && format == asYAML {
		text, err = yaml.JSONToYAML(text)
	} else {
		text = append(text, '\n')
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", format, err)
	}
	_, err = out.Write(text)
	return err
}
