package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// standardInput as the value of --config reads the file from standard input.
const standardInput = "-"

// maxManifest limits the size of the input. A rendered manifest is larger than the node
// group file in it.
const maxManifest = 16 << 20

type validateOptions struct {
	file    string
	offline bool
	print   bool
}

func validateCommand() *cobra.Command {
	var o validateOptions
	c := &cobra.Command{
		Use:   "validate --config FILE",
		Short: "Check a node group file, and print it with every default",
		Long: "Check a node group file, and report every problem in a line of its own.\n\n" +
			"FILE may also be a manifest: then every node group file in its ConfigMaps is checked.\n" +
			"With --config - it is read from standard input.",
		Example: `  # Check a file and that the files it names can be read
  gpu-node-provider validate --config node-groups.yaml

  # Check a ConfigMap where its certificates are not: on a laptop or in a pipeline
  gpu-node-provider validate --config deploy/manifests/config.yaml --offline

  # Check what kustomize renders
  kubectl kustomize deploy/manifests | gpu-node-provider validate --config - --offline

  # Print a file with every default
  gpu-node-provider validate --config node-groups.yaml --print`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			files, err := o.read(c.InOrStdin())
			if err != nil {
				return err
			}
			return o.report(c.OutOrStdout(), files)
		},
	}
	configFlag(c, &o.file)
	c.Flags().BoolVar(&o.offline, "offline", false, "check the node group file without the files it names, such as certificates")
	c.Flags().BoolVar(&o.print, "print", false, "print the file with every default")
	return c
}

func configFlag(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "config", "", "the node group file (required)")
	cobra.CheckErr(c.MarkFlagFilename("config", "yaml", "yml")) // fails for an unknown flag only
}

// validFile is a node group file without problems.
type validFile struct {
	name   string
	config *config.Config
}

// read returns the node group file, or each of those in the ConfigMaps of a manifest.
func (o validateOptions) read(stdin io.Reader) ([]validFile, error) {
	name, data, err := readInput(o.file, stdin)
	if err != nil {
		return nil, usageError{err}
	}
	maps, err := config.ConfigMaps(name, data)
	if err != nil {
		return nil, usageError{err}
	}
	if len(maps) == 0 {
		c, err := parseNamed(name, data)
		if err == nil {
			err = o.checkFiles(c, name)
		}
		if err != nil {
			return nil, usageError{err}
		}
		return []validFile{{name, c}}, nil
	}
	return o.readEmbedded(name, maps)
}

func (o validateOptions) readEmbedded(manifest string, maps []config.ConfigMap) (files []validFile, err error) {
	var names []string
	var problems []error
	for _, m := range maps {
		names = append(names, m.Name)
		for _, f := range m.Files {
			name := fmt.Sprintf("%s: %s", manifest, f)
			c, err := f.Parse()
			if err == nil {
				err = o.checkFiles(c, name)
			}
			if err != nil {
				problems = append(problems, err)
				continue
			}
			files = append(files, validFile{name, c})
		}
	}
	if len(problems) > 0 {
		return nil, usageError{errors.Join(problems...)}
	}
	if len(files) == 0 {
		return nil, usageError{fmt.Errorf("%s: no key of ConfigMap %s holds a node group file (kind: %s); name the manifest that has it",
			manifest, strings.Join(names, ", "), config.Kind)}
	}
	return files, nil
}

// checkPrices refuses a limit in dollars over a group whose price is not known. The type of
// a group on AWS that does not name it is in its launch template, so doctor checks that.
func checkPrices(c *config.Config, name string) error {
	var unpriced []error
	catalogue := nodegroup.New(c, func(group string) string { return group })
	limited := catalogue.Unpriced()
	for _, quota := range slices.Sorted(maps.Keys(limited)) {
		for _, id := range limited[quota] {
			g, _ := catalogue.Lookup(id)
			where := ""
			if c.Cloud.AWS != nil {
				if _, known := aws.Price(g.InstanceType, g.Region); known || g.InstanceType == "" {
					continue
				}
				where = fmt.Sprintf(" (%s is not on the price list for %s)", g.InstanceType, g.Region)
			}
			unpriced = append(unpriced, fmt.Errorf("%s: quota %s is in dollars, and the price of node group %s is not known%s; write its hourlyPrice", name, quota, id, where))
		}
	}
	return errors.Join(unpriced...)
}

func (o validateOptions) checkFiles(c *config.Config, name string) error {
	if err := checkPrices(c, name); err != nil {
		return err
	}
	if o.offline {
		return nil
	}
	if err := c.CheckFiles(name); err != nil {
		return fmt.Errorf("%w, or add --offline to check without such files", err) // on the line of the last problem
	}
	return nil
}

func (o validateOptions) report(out io.Writer, files []validFile) error {
	for i, f := range files {
		if !o.print {
			_, _ = fmt.Fprintf(out, "%s: ok, %d node groups, %d quotas\n", f.name, len(f.config.NodeGroups), len(f.config.Quotas))
			continue
		}
		text, err := f.config.Marshal()
		if err != nil {
			return fmt.Errorf("printing %s: %w", f.name, err)
		}
		if i > 0 {
			_, _ = fmt.Fprintln(out, "---")
		}
		if len(files) > 1 || f.name != o.file {
			_, _ = fmt.Fprintf(out, "# %s\n", f.name)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

func readInput(file string, stdin io.Reader) (name string, data []byte, err error) {
	if file == "" {
		return "", nil, errNoConfig
	}
	name = file
	if file == standardInput {
		name = "standard input"
	} else {
		opened, err := os.Open(file)
		if err != nil {
			return "", nil, fmt.Errorf("reading the node group file: %w", err)
		}
		defer opened.Close() //nolint:errcheck // it has been read
		stdin = opened
	}
	data, err = io.ReadAll(io.LimitReader(stdin, maxManifest+1)) // reading a device may not end
	if err != nil {
		return "", nil, fmt.Errorf("reading the node group file: %w", err)
	}
	if len(data) > maxManifest {
		return "", nil, fmt.Errorf("%s is larger than 16 MiB; name the node group file or its ConfigMap alone", name)
	}
	return name, data, nil
}

// parseNamed parses a node group file that is in memory.
func parseNamed(name string, data []byte) (*config.Config, error) {
	c, err := config.Parse(data)
	if problems := (*config.Error)(nil); errors.As(err, &problems) {
		problems.Path = name
	}
	return c, err
}

var errNoConfig = errors.New("--config FILE is missing: it names the node group file")

// load reads and checks a node group file and the files it names, for commands that use
// it. A ConfigMap is an error: a running provider reads the file mounted from it, and would
// not see a change of the manifest.
func load(file string) (*config.Config, error) {
	name, data, err := readInput(file, strings.NewReader(""))
	if err != nil {
		return nil, usageError{err}
	}
	if maps, err := config.ConfigMaps(name, data); err == nil && len(maps) > 0 {
		return nil, usageError{fmt.Errorf("%s is a manifest with ConfigMap %s, not a node group file: name a file that holds the value of its key, "+
			"or check it with: gpu-node-provider validate --config %s --offline", name, maps[0].Name, name)}
	}
	c, err := parseNamed(name, data)
	if err == nil {
		err = c.CheckFiles(name)
	}
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}
