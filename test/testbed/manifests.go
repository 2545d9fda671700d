package testbed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of files in deploy/.
func (b *Bed) manifests(files ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(b.binaries.root, "deploy", file))
		if err != nil {
			return nil, err
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("deploy/%s: %w", file, err)
			}
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(document, &object.Object); err != nil {
				return nil, fmt.Errorf("deploy/%s: %w", file, err)
			}
			if len(object.Object) > 0 {
				objects = append(objects, object)
			}
		}
	}
	return objects, nil
}

// apply creates objects or brings them up to date.
func (b *Bed) apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	var all bytes.Buffer
	for _, object := range objects {
		document, err := object.MarshalJSON()
		if err != nil {
			return err
		}
		all.Write(document)
	}
	_, err := b.Cluster.Kubectl(ctx, all.Bytes(), "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

// named is the object of a kind and name.
func named(objects []*unstructured.Unstructured, kind, name string) (*unstructured.Unstructured, error) {
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			return object, nil
		}
	}
	return nil, fmt.Errorf("the manifests of deploy/ hold no %s %s", kind, name)
}

// permissions gives the provider and Cluster Autoscaler their service accounts
// and the rights of deploy/manifests, and no others.
func (b *Bed) permissions(ctx context.Context) error {
	objects, err := b.manifests("manifests/namespace.yaml", "manifests/rbac.yaml", "manifests/rbac-simulated.yaml", "manifests/cluster-autoscaler.yaml")
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if err := b.apply(ctx, objects...); err != nil {
		return err
	}
	for _, account := range []struct{ namespace, name, file string }{
		{"gpu-node-provider", "gpu-node-provider", "provider.conf"},
		{"kube-system", "cluster-autoscaler", "autoscaler.conf"},
	} {
		token, err := b.Cluster.Client.CoreV1().ServiceAccounts(account.namespace).CreateToken(ctx, account.name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("token for %s: %w", account.name, err)
		}
		if err := b.Cluster.WriteKubeconfig(b.file(account.file), token.Status.Token); err != nil {
			return err
		}
	}
	return nil
}
