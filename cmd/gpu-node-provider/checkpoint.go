package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
)

// person is somebody at a terminal with a kubeconfig.
type person struct {
	kubeconfig string
	by         string
}

func (p *person) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.kubeconfig, "kubeconfig", "", "how to reach the cluster (default: KUBECONFIG, else ~/.kube/config)")
}

func (p *person) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, usageError{fmt.Errorf("--kubeconfig: %w", err)}
	}
	return kubernetes.NewForConfig(config)
}

// checkpointCommand holds what a person may say about held nodes. It is said by
// an annotation of the Node, which the guard carries out and removes: who may say
// it is a matter of the cluster's own rights.
func checkpointCommand() *cobra.Command {
	c := &cobra.Command{Use: "checkpoint", Short: "Ask the trainers of a held node for a checkpoint, or let it go without"}
	c.AddCommand(
		listCommand(),
		wishCommand("request NODE", "Ask the trainers of a node for a checkpoint", guard.RequestAnnotation, "asked: the trainers of %s are asked at once; see the Events of their Pods\n"),
		wishCommand("release NODE", "Let a node go although its trainers have not acknowledged; what they have not saved may be lost", guard.ReleaseAnnotation,
			"released: %s is no longer held for the training pods that are on it now\n"),
	)
	return c
}

// listCommand shows what is held, to people who want nothing else.
func listCommand() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use: "list", Short: "List the nodes that are held, for which training pods, why, and until when at most", Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := fetch(c.Context(), address)
			if err != nil {
				return err
			}
			if len(report.Held) == 0 {
				_, err = fmt.Fprintln(c.OutOrStdout(), "no node is held")
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 3, ' ', 0)
			heldRows(report, func(cells ...string) { _, err = fmt.Fprintln(w, strings.Join(cells, "\t")) })
			return errors.Join(err, w.Flush())
		},
	}
	c.Flags().StringVar(&address, "address", defaultAddress, "the provider's httpAddress")
	return c
}

func wishCommand(use, short, annotation, done string) *cobra.Command {
	var p person
	c := &cobra.Command{Use: use, Short: short, Args: oneArgument, RunE: func(c *cobra.Command, args []string) error {
		client, err := p.client()
		if err != nil {
			return err
		}
		if err := patch(c.Context(), client, args[0], map[string]any{"annotations": map[string]any{annotation: p.name()}}); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), done, args[0])
		return err
	}}
	p.flags(c)
	c.Flags().StringVar(&p.by, "by", "", "who says so, for the log and the Events (default: the user of this machine)")
	return c
}

func oneArgument(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("%s takes the name of one node, got %q; see %s --help", c.CommandPath(), args, c.CommandPath())}
	}
	return nil
}

func (p *person) name() string {
	if p.by != "" {
		return p.by
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "somebody"
}

// patch changes a Node's metadata; nil takes a key away.
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

// uninstallCommand takes everything of ours off a cluster.
func uninstallCommand() *cobra.Command {
	var p person
	var namespace string
	c := &cobra.Command{
		Use: "uninstall", Short: "Take the holds and the record off the cluster, after the provider is stopped: held nodes would never scale down again",
		Args: noArguments, RunE: func(c *cobra.Command, _ []string) error {
			client, err := p.client()
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
	p.flags(c)
	c.Flags().StringVar(&namespace, "namespace", "gpu-node-provider", "kubernetes.namespace of the node group file")
	return c
}

// freeNodes removes our annotations and our label; a person's scale-down-disabled stays.
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
