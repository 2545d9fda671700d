package testbed

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// certificates makes a CA and both pairs with the provider's own command.
func (b *Bed) certificates(ctx context.Context) error {
	if !b.Webhook {
		return nil
	}
	out, err := exec.CommandContext(ctx, b.binaries.provider, "certs", "--dir", b.file("certs")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("certs: %w: %s", err, out)
	}
	return nil
}

func (b *Bed) certificate(name string) string { return filepath.Join(b.file("certs"), name) }

// tlsFields are those of the node group file's server section.
func (b *Bed) tlsFields(r *replica) string {
	if !b.Webhook {
		return ""
	}
	return fmt.Sprintf(", webhookAddress: %q, tls: {certFile: %q, keyFile: %q, clientCAFile: %q}",
		r.addresses[webhookPort], b.certificate("server.crt"), b.certificate("server.key"), b.certificate("ca.crt"))
}

// clientFields are those of Cluster Autoscaler's cloud-config.
func (b *Bed) clientFields() string {
	if !b.Webhook {
		return ""
	}
	return fmt.Sprintf("cert: %q\nkey: %q\ncacert: %q\n", b.certificate("client.crt"), b.certificate("client.key"), b.certificate("ca.crt"))
}

// registerWebhook puts deploy/manifests/eviction-webhook.yaml in place, with an
// address of this machine instead of a Service.
func (b *Bed) registerWebhook(ctx context.Context) error {
	objects, err := b.manifests("manifests/eviction-webhook.yaml")
	if err != nil {
		return err
	}
	configuration, err := named(objects, "ValidatingWebhookConfiguration", "gpu-node-provider")
	if err != nil {
		return err
	}
	bundle, err := os.ReadFile(b.certificate("ca.crt"))
	if err != nil {
		return err
	}
	webhooks, ok := configuration.Object["webhooks"].([]any)
	if !ok || len(webhooks) != 1 {
		return fmt.Errorf("deploy/manifests/eviction-webhook.yaml has not one webhook")
	}
	webhook, ok := webhooks[0].(map[string]any)
	if !ok {
		return fmt.Errorf("deploy/manifests/eviction-webhook.yaml: its webhook is no object")
	}
	webhook["clientConfig"] = map[string]any{"url": "https://" + b.webhook + "/evictions", "caBundle": base64.StdEncoding.EncodeToString(bundle)}
	if err := b.apply(ctx, configuration); err != nil {
		return err
	}
	namespace := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q, "labels": {"gpu-node-provider.io/checkpoint": "enabled"}}}`, trainersNamespace)
	_, err = b.Cluster.Kubectl(ctx, []byte(namespace), "apply", "-f", "-")
	return err
}
