package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/dashboard"
	"gpu-node-provider/provider/doctor"
	"gpu-node-provider/provider/nodegroup"
)

// errCheckFailed sets the exit code of a failure; the findings have been printed.
var errCheckFailed = errors.New("at least one check failed, see above")

func doctorCommand() *cobra.Command {
	var file, address, kubeconfig string
	var output outputFormat
	c := &cobra.Command{
		Use:   "doctor --config FILE",
		Short: "Check the provider, the cloud, the cluster and Redis, and print how to fix what fails",
		Long: "Check the provider, the cloud, the cluster and Redis, and print how to fix what fails.\n" +
			"Nothing is changed. The exit code is 1 when a check fails; warnings do not count.",
		Example: `  # Check the provider on this machine
  gpu-node-provider doctor --config node-groups.yaml

  # Check the provider of a cluster, in its own container
  kubectl -n gpu-node-provider exec deploy/gpu-node-provider -- \
    /gpu-node-provider doctor --config /etc/gpu-node-provider/config/config.yaml

  # Print what fails
  gpu-node-provider doctor --config node-groups.yaml -o json | jq '.[] | select(.level == "fail")'`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			if kubeconfig != "" && cfg.Kubernetes != nil {
				cfg.Kubernetes.Kubeconfig = kubeconfig
			}
			from := collector{config: cfg, address: cmp.Or(address, local(cfg.Server.HTTPAddress))}
			snapshot, err := from.collect(c.Context())
			if err != nil {
				return err
			}
			findings := doctor.Examine(snapshot)
			if err := printFindings(c.OutOrStdout(), findings, output); err != nil {
				return err
			}
			if doctor.Worst(findings) == doctor.Fail {
				return errCheckFailed
			}
			return nil
		},
	}
	configFlag(c, &file)
	c.Flags().StringVar(&address, "address", "", "the provider's httpAddress (default: the file's, on this machine)")
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the file's)")
	outputFlag(c, &output)
	return c
}

// local returns an address of the listener that a process on this machine or in this Pod
// can dial: a wildcard address is replaced with the loopback.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

func printFindings(out io.Writer, findings []doctor.Finding, output outputFormat) error {
	if output != asTable {
		return encode(out, findings, output)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, f := range findings {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Check, oneLine(f.Text)) // Flush reports a failure
		if f.Do != "" {
			_, _ = fmt.Fprintf(w, "\t\t→ %s\n", oneLine(f.Do))
		}
	}
	return w.Flush()
}

// oneLine replaces line breaks, so that a text stays in its row.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// collector reads the Snapshot for the checks.
type collector struct {
	config  *config.Config
	address string
}

// collectTimeout limits each read, so that a service that hangs is reported.
const collectTimeout = 20 * time.Second

func bounded(ctx context.Context, read func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	return read(ctx)
}

func (c *collector) collect(ctx context.Context) (*doctor.Snapshot, error) {
	selector, err := labels.Parse(c.config.Checkpoint.PodSelector)
	if err != nil {
		return nil, usageError{fmt.Errorf("checkpoint.podSelector: %w", err)}
	}
	s := &doctor.Snapshot{
		Now: time.Now(), Selector: selector, HasCluster: c.config.Kubernetes != nil, Evictions: c.config.Server.WebhookAddress != "",
	}
	for _, part := range []func(context.Context, *doctor.Snapshot) error{c.cloud, c.cluster, c.provider, c.redis} {
		if err := part(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// cloud completes the catalogue, as serve does, and looks for settings that conflict
// with the provider.
func (c *collector) cloud(ctx context.Context, s *doctor.Snapshot) error {
	if c.config.Cloud.AWS == nil {
		s.Catalogue = nodegroup.New(c.config, func(group string) string { return group })
		return nil
	}
	backend, err := openAWS(ctx, c.config.Cloud.AWS, zap.NewNop(), nil)
	if err != nil {
		return err
	}
	file := c.config
	s.CatalogueErr = bounded(ctx, func(ctx context.Context) error {
		completed, err := completionOnAWS(backend, zap.NewNop()).Complete(ctx, c.config)
		if err == nil {
			file = completed
		}
		return err
	})
	s.Catalogue = nodegroup.New(file, backend.TemplateID)
	s.ConflictsErr = bounded(ctx, func(ctx context.Context) (err error) {
		s.Conflicts, err = conflicts(ctx, backend, s.Catalogue)
		return err
	})
	return nil
}

func conflicts(ctx context.Context, backend *aws.Cloud, c *nodegroup.Catalogue) ([]cloud.Conflict, error) {
	if err := backend.Configure(ctx, c.Specs()); err != nil {
		return nil, err
	}
	return backend.Conflicts(ctx)
}

// cluster reads Nodes, Pods, namespaces and webhooks.
func (c *collector) cluster(ctx context.Context, s *doctor.Snapshot) error {
	if c.config.Kubernetes == nil {
		return nil
	}
	client, err := kubeClient(c.config.Kubernetes.Kubeconfig)
	if err != nil {
		return err
	}
	core := client.CoreV1()
	s.NodesErr = each(ctx, core.Nodes().List, func(n *corev1.Node) { s.Nodes = append(s.Nodes, small(n)) })
	s.PodsErr = each(ctx, core.Pods(metav1.NamespaceAll).List, func(p *corev1.Pod) {
		if doctor.Concerned(p, s.Selector) {
			s.Pods = append(s.Pods, *p)
		}
	})
	s.NamespacesErr = each(ctx, core.Namespaces().List, func(n *corev1.Namespace) { s.Namespaces = append(s.Namespaces, *n) })
	s.WebhooksErr = each(ctx, client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List,
		func(w *admissionv1.ValidatingWebhookConfiguration) { s.Webhooks = append(s.Webhooks, *w) })
	return nil
}

// small returns a Node with only the fields that the checks read, since doctor shares the
// memory limit of the provider's container.
func small(n *corev1.Node) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: n.CreationTimestamp},
		Spec:       corev1.NodeSpec{ProviderID: n.Spec.ProviderID},
		Status:     corev1.NodeStatus{Allocatable: n.Status.Allocatable},
	}
}

// each lists in pages, so that few objects are in memory at once.
func each[L, T runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), take func(T)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	return bounded(ctx, func(ctx context.Context) error {
		return pages.EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
			take(item.(T)) //nolint:errcheck,forcetypeassert // the items of L are T
			return nil
		})
	})
}

// provider reads the report of the running provider.
func (c *collector) provider(ctx context.Context, s *doctor.Snapshot) error {
	state, err := fetch(ctx, c.address)
	var by dashboard.StandsBy
	if errors.As(err, &by) {
		s.StandsBy, err = string(by), nil
	}
	s.ProviderErr = err
	s.Provider = state
	return nil
}

// redisTries is the number of attempts to read Redis. Each one has a second, which may be
// too short for the first connection through TLS and Sentinels.
const redisTries = 2

// redis reads acknowledgements the way the provider does.
func (c *collector) redis(ctx context.Context, s *doctor.Snapshot) error {
	if c.config.Kubernetes == nil {
		return nil
	}
	store, err := checkpoint.NewStore(redisOptions(c.config.Redis), c.config.Checkpoint.KeyPrefix)
	if err != nil {
		return usageError{fmt.Errorf("redis: %w", err)}
	}
	defer store.Close() //nolint:errcheck // it has been read
	for range redisTries {
		if _, s.RedisErr = store.Read(ctx, []checkpoint.PodID{{Namespace: "doctor", Name: "doctor", UID: "doctor"}}); s.RedisErr == nil {
			break
		}
	}
	if s.RedisErr == nil && c.config.Redis.Embedded == nil {
		s.RedisWarnings, s.RedisWarningsErr = store.Warnings(ctx)
	}
	return nil
}
