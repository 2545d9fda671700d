package main

import (
	"cmp"
	"context"
	"encoding/json"
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

// errUnwell ends the command with the exit code of a failure, when all has been said.
var errUnwell = errors.New("something fails, see above")

func doctorCommand() *cobra.Command {
	var file, address, kubeconfig, output string
	c := &cobra.Command{
		Use:   "doctor --config FILE",
		Short: "Check the provider, the cloud, the cluster and Redis, and say what to do",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("-o %q: it is table or json", output)}
			}
			cfg, err := load(file)
			if err != nil {
				return err
			}
			if kubeconfig != "" && cfg.Kubernetes != nil {
				cfg.Kubernetes.Kubeconfig = kubeconfig
			}
			v := visit{config: cfg, address: cmp.Or(address, local(cfg.Server.HTTPAddress))}
			scene, err := v.scene(c.Context())
			if err != nil {
				return err
			}
			findings := doctor.Examine(scene)
			if err := write(c.OutOrStdout(), findings, output); err != nil {
				return err
			}
			if doctor.Worst(findings) == doctor.Fail {
				return errUnwell
			}
			return nil
		},
	}
	configFlag(c, &file)
	c.Flags().StringVar(&address, "address", "", "the provider's httpAddress (default: the file's, on this machine)")
	c.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the cluster instead of what the file says")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// local is an address at which this machine, or this pod, finds what listens on it.
func local(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

func write(out io.Writer, findings []doctor.Finding, output string) error {
	if output == "json" {
		text, err := json.MarshalIndent(findings, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", text)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, f := range findings {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Check, oneLine(f.Text)) // Flush tells
		if f.Do != "" {
			_, _ = fmt.Fprintf(w, "\t\t→ %s\n", oneLine(f.Do))
		}
	}
	return w.Flush()
}

// oneLine keeps a table one.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// visit reads everything that the checks look at, once.
type visit struct {
	config  *config.Config
	address string
}

// visitTimeout bounds each reading: whoever asks what is wrong must not wait for what is.
const visitTimeout = 20 * time.Second

func bounded(ctx context.Context, read func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, visitTimeout)
	defer cancel()
	return read(ctx)
}

func (v *visit) scene(ctx context.Context) (*doctor.Scene, error) {
	selector, err := labels.Parse(v.config.Checkpoint.PodSelector)
	if err != nil {
		return nil, usageError{fmt.Errorf("checkpoint.podSelector: %w", err)}
	}
	s := &doctor.Scene{
		Now: time.Now(), Selector: selector, HasCluster: v.config.Kubernetes != nil, Evictions: v.config.Server.WebhookAddress != "",
	}
	for _, part := range []func(context.Context, *doctor.Scene) error{v.cloud, v.cluster, v.provider, v.redis} {
		if err := part(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// cloud completes the catalogue, as serve does, and looks for what else changes the groups.
func (v *visit) cloud(ctx context.Context, s *doctor.Scene) error {
	if v.config.Cloud.AWS == nil {
		s.Catalogue = nodegroup.New(v.config, func(group string) string { return group })
		return nil
	}
	backend, err := openAWS(ctx, v.config.Cloud.AWS, zap.NewNop(), nil)
	if err != nil {
		return err
	}
	whole := v.config
	s.CatalogueErr = bounded(ctx, func(ctx context.Context) error {
		completed, err := completionOnAWS(backend, zap.NewNop()).Complete(ctx, v.config)
		if err == nil {
			whole = completed
		}
		return err
	})
	s.Catalogue = nodegroup.New(whole, backend.TemplateID)
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
func (v *visit) cluster(ctx context.Context, s *doctor.Scene) error {
	if v.config.Kubernetes == nil {
		return nil
	}
	client, err := kubeClient(v.config.Kubernetes.Kubeconfig)
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

// small is what the checks look at: doctor runs in the provider's own container.
func small(n *corev1.Node) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: n.CreationTimestamp},
		Spec:       corev1.NodeSpec{ProviderID: n.Spec.ProviderID},
		Status:     corev1.NodeStatus{Allocatable: n.Status.Allocatable},
	}
}

// each lists in pages, and holds a few at a time.
func each[L, T runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), take func(T)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	return bounded(ctx, func(ctx context.Context) error {
		return pages.EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
			take(item.(T)) //nolint:errcheck,forcetypeassert // what the list is of
			return nil
		})
	})
}

// provider asks the one that runs.
func (v *visit) provider(ctx context.Context, s *doctor.Scene) error {
	state, err := fetch(ctx, v.address)
	var by dashboard.StandsBy
	if errors.As(err, &by) {
		s.StandsBy, err = string(by), nil
	}
	s.ProviderErr = err
	s.Provider = state
	return nil
}

// redisTries is how often Redis is asked: a reading has a second, in which a first
// connection by TLS and Sentinels may not be ready.
const redisTries = 2

// redis is asked as the provider asks it.
func (v *visit) redis(ctx context.Context, s *doctor.Scene) error {
	if v.config.Kubernetes == nil {
		return nil
	}
	store, err := checkpoint.NewStore(redisOptions(v.config.Redis), v.config.Checkpoint.KeyPrefix)
	if err != nil {
		return usageError{fmt.Errorf("redis: %w", err)}
	}
	defer store.Close() //nolint:errcheck // it has been read
	for range redisTries {
		if _, s.RedisErr = store.Read(ctx, []checkpoint.PodID{{Namespace: "doctor", Name: "doctor", UID: "doctor"}}); s.RedisErr == nil {
			break
		}
	}
	if s.RedisErr == nil && v.config.Redis.Embedded == nil {
		s.RedisWarnings, s.RedisWarningsErr = store.Warnings(ctx)
	}
	return nil
}
