package controlplane

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kedaManifest makes the adapter, a process of this machine, the server of the
// external metrics API: a Service of type ExternalName is the only kind that
// the API server follows without a network of Pods.
const kedaManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: keda}
---
apiVersion: v1
kind: Service
metadata: {name: keda-metrics-apiserver, namespace: keda}
spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]d}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  service: {name: keda-metrics-apiserver, namespace: keda, port: %[1]d}
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: %[2]s
`

// keda starts KEDA as on its own manifests, but for what needs Pods.
func (c *Cluster) keda(ctx context.Context) error {
	if _, err := c.Kubectl(ctx, nil, "apply", "--server-side", "-f", filepath.Join(c.Binaries, "keda", "crds")); err != nil {
		return err
	}
	bundle, err := os.ReadFile(c.file("ca.crt"))
	if err != nil {
		return err
	}
	manifest := fmt.Sprintf(kedaManifest, c.ports.adapter, base64.StdEncoding.EncodeToString(bundle))
	if _, err := c.Kubectl(ctx, []byte(manifest), "apply", "-f", "-"); err != nil {
		return err
	}
	certificates, err := c.kedaCertificates()
	if err != nil {
		return err
	}
	env := []string{"WATCH_NAMESPACE=", "POD_NAMESPACE=keda", "KEDA_CLUSTER_OBJECT_NAMESPACE=keda"}
	operator, err := c.run("keda-operator", "keda/operator", env,
		"--kubeconfig="+c.Kubeconfig, "--cert-dir="+certificates, "--ca-dir="+certificates,
		fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", c.ports.probe),
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", c.ports.metrics),
		fmt.Sprintf("--metrics-service-bind-address=127.0.0.1:%d", c.ports.metricsService))
	if err != nil {
		return err
	}
	adapter, err := c.run("keda-adapter", "keda/adapter", env,
		"--kubeconfig="+c.Kubeconfig, "--lister-kubeconfig="+c.Kubeconfig,
		"--authentication-kubeconfig="+c.Kubeconfig, "--authorization-kubeconfig="+c.Kubeconfig, "--authentication-skip-lookup",
		"--requestheader-client-ca-file="+c.file("front-proxy-ca.crt"), "--client-ca-file="+c.file("ca.crt"),
		"--tls-cert-file="+filepath.Join(certificates, "tls.crt"), "--tls-private-key-file="+filepath.Join(certificates, "tls.key"),
		"--cert-dir="+certificates, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.adapter),
		fmt.Sprintf("--port=%d", c.ports.adapterMetrics), fmt.Sprintf("--metrics-service-address=localhost:%d", c.ports.metricsService))
	if err != nil {
		return err
	}
	if err := operator.Ready(ctx, startTimeout, func(ctx context.Context) error {
		return answers(ctx, http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/readyz", c.ports.probe))
	}); err != nil {
		return err
	}
	return adapter.Ready(ctx, startTimeout, func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/apis/external.metrics.k8s.io/v1beta1").Do(ctx).Error()
	})
}

// kedaCertificates lays the pair out under the names that KEDA looks for.
func (c *Cluster) kedaCertificates() (string, error) {
	folder := c.file("keda")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	for from, to := range map[string]string{"ca.crt": "ca.crt", "keda.crt": "tls.crt", "keda.key": "tls.key"} {
		data, err := os.ReadFile(c.file(from))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, to), data, 0o600); err != nil {
			return "", err
		}
	}
	return folder, nil
}

// Kubectl runs kubectl as the administrator and returns what it says.
func (c *Cluster) Kubectl(ctx context.Context, stdin []byte, args ...string) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(c.Binaries, "kubernetes", "kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig}, args...)...)
	command.Stdin = bytes.NewReader(stdin)
	command.Env = append(os.Environ(), "HOME="+c.Dir) // for its cache
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
