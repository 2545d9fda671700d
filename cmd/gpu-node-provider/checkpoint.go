package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/user"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/guard"
	"gpu-node-provider/provider/nodegroup"
	"gpu-node-provider/provider/report"
)

// operator holds the flags that identify the user of a command that writes to the cluster.
type operator struct {
	kubeconfig string
	by         string
}

func (o *operator) kubeconfigFlag(c *cobra.Command) {
	c.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: KUBECONFIG, else ~/.kube/config)")
}

func (o *operator) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, usageError{fmt.Errorf("--kubeconfig: %w", err)}
	}
	return kubernetes.NewForConfig(config)
}

// checkpointCommand groups the commands about held nodes. They set an annotation of the
// Node, which the guard carries out and removes, so the RBAC of the cluster controls their
// use.
func checkpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "checkpoint",
		Short: "List held nodes, ask their trainers for a checkpoint, or release them without one",
		Example: `  gpu-node-provider checkpoint list
  gpu-node-provider checkpoint request NODE
  gpu-node-provider checkpoint release NODE`,
		Args: knownCommand,
		RunE: showHelp,

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(listCommand(), requestCommand(), releaseCommand())
	return c
}

func listCommand() *cobra.Command {
	var address string
	var output outputFormat
	c := &cobra.Command{
		Use:   "list",
		Short: "List held nodes with their training pods, the reason, and the latest time of their release",
		Example: `  # List what the provider on this machine holds
  gpu-node-provider checkpoint list

  # Print the names of held nodes
  gpu-node-provider checkpoint list -o json | jq -r '.[].node'`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			state, err := fetch(c.Context(), address)
			if err != nil {
				return err
			}
			return printHeld(c.OutOrStdout(), state, output)
		},
	}
	addressFlag(c, &address)
	outputFlag(c, &output)
	return c
}

func printHeld(out io.Writer, state report.Provider, output outputFormat) (err error) {
	if output != asTable {
		held := state.Held
		if held == nil {
			held = []report.Hold{} // encodes as [] instead of null
		}
		return encode(out, held, output)
	}
	if len(state.Held) == 0 {
		_, err = fmt.Fprintln(out, "no node is held")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	heldRows(state, func(cells ...string) { _, err = fmt.Fprintln(w, strings.Join(cells, "\t")) })
	return errors.Join(err, w.Flush())
}

func requestCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "request NODE",
		Short: "Ask the trainers of a node for a checkpoint",
		Example: `  # Ask now, and see the answer in the Events of the Pods
  gpu-node-provider checkpoint request NODE
  kubectl get events --all-namespaces --field-selector involvedObject.kind=Pod`,
	}
	return annotating(c, guard.RequestAnnotation, "requested: the trainers of %s are asked for a checkpoint; see the Events of their Pods\n")
}

func releaseCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "release NODE",
		Short: "Release a node without a checkpoint; unsaved training is lost",
		Example: `  # Give up what the trainers of a node have not saved
  gpu-node-provider checkpoint release NODE --by alex`,
	}
	return annotating(c, guard.ReleaseAnnotation, "released: %s is no longer held for the training pods that are on it now\n")
}

// annotating makes c set an annotation of the Node that it is called with.
func annotating(c *cobra.Command, annotation, done string) *cobra.Command {
	var o operator
	c.Args = oneNode
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := o.client()
		if err != nil {
			return err
		}
		if err := patch(c.Context(), client, args[0], map[string]any{"annotations": map[string]any{annotation: o.name()}}); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), done, args[0])
		return err
	}
	o.kubeconfigFlag(c)
	c.Flags().StringVar(&o.by, "by", "", "name of the operator in the log and the Events (default: the user of this machine)")
	return c
}

func oneNode(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("%s takes the name of one node, got %q; see %s --help", c.CommandPath(), args, c.CommandPath())}
	}
	return nil
}

func (o *operator) name() string {
	if o.by != "" {
		return o.by
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// patch merges into a Node's metadata; a nil value removes its key.
func patch(ctx context.Context, client kubernetes.Interface, node string, metadata map[string]any) error {
	text, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, text, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return nil
}

// uninstallCommand removes the provider's annotations, labels and record from a cluster.
func uninstallCommand() *cobra.Command {
	var o operator
	var namespace string
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the provider's annotations, labels and record from the cluster",
		Long: "Remove the provider's annotations and labels from all Nodes, and its record of training pods.\n" +
			"Stop the provider first. Without this, Cluster Autoscaler never removes the nodes that were held.",
		Example: `  kubectl -n gpu-node-provider scale deployment gpu-node-provider --replicas 0
  gpu-node-provider uninstall`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := o.client()
			if err != nil {
				return err
			}
			nodes, err := freeNodes(c.Context(), client)
			if err != nil {
				return err
			}
			if err := client.CoreV1().ConfigMaps(namespace).DeleteCollection(c.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: checkpoint.RecordLabel}); err != nil {
				return fmt.Errorf("removing the record in namespace %s: %w", namespace, err)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%d nodes freed, and the record in namespace %s removed\n", nodes, namespace)
			return err
		},
	}
	o.kubeconfigFlag(c)
	c.Flags().StringVar(&namespace, "namespace", "gpu-node-provider", "kubernetes.namespace of the node group file")
	return c
}

// freeNodes removes the provider's annotations and label. A scale-down-disabled annotation
// that an operator has set stays.
func freeNodes(ctx context.Context, client kubernetes.Interface) (freed int, err error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("listing nodes: %w", err)
	}
	scaleDown, held, others := guard.Marks()
	for _, node := range nodes.Items {
		remove := map[string]any{}
		if _, ours := node.Annotations[held]; ours {
			remove[scaleDown], remove[held] = nil, nil
		}
		for _, key := range others {
			if _, there := node.Annotations[key]; there {
				remove[key] = nil
			}
		}
		labels := map[string]any{}
		if _, ours := node.Labels[nodegroup.Label]; ours {
			labels[nodegroup.Label] = nil
		}
		if len(remove)+len(labels) == 0 {
			continue
		}
		if err := patch(ctx, client, node.Name, map[string]any{"annotations": remove, "labels": labels}); err != nil {
			return freed, err
		}
		freed++
	}
	return freed, nil
}
