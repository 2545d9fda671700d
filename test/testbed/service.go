package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"gpu-node-provider/test/testbed/process"
)

// service stands in for kube-proxy: it takes connections for a Service of
// deploy/manifests/service.yaml and brings them to a replica of the provider whose
// Pod the Service selects.
type service struct {
	bed      *Bed
	selector labels.Selector
	port     int // of the replica: one of the places in replica.addresses
	listener net.Listener
	wait     sync.WaitGroup
}

func (b *Bed) startService(ctx context.Context, objects []*unstructured.Unstructured, name string, port int) (address string, err error) {
	object, err := named(objects, "Service", name)
	if err != nil {
		return "", err
	}
	selector, _, err := unstructured.NestedStringMap(object.Object, "spec", "selector")
	if err != nil {
		return "", fmt.Errorf("deploy/manifests/service.yaml: %s: %w", name, err)
	}
	ports, err := process.FreePorts(1)
	if err != nil {
		return "", err
	}
	s := &service{bed: b, selector: labels.SelectorFromSet(selector), port: port}
	if s.listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0])); err != nil {
		return "", err
	}
	b.services = append(b.services, s)
	s.wait.Go(func() { s.run(ctx) })
	return s.listener.Addr().String(), nil
}

func (s *service) run(ctx context.Context) {
	for {
		from, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		s.wait.Go(func() { s.forward(ctx, from) })
	}
}

func (s *service) close() {
	_ = s.listener.Close()
	s.wait.Wait()
}

// forward brings one connection to whoever takes it; with nobody it is closed,
// as a Service without endpoints refuses it.
func (s *service) forward(ctx context.Context, from net.Conn) {
	defer shut(from)
	pods, err := s.bed.Cluster.Client.CoreV1().Pods(providerNamespace).List(ctx, metav1.ListOptions{LabelSelector: s.selector.String()})
	if err != nil {
		return
	}
	for _, pod := range pods.Items {
		to, err := s.dial(ctx, pod)
		if err != nil {
			continue
		}
		defer context.AfterFunc(ctx, func() { shut(from); shut(to) })()
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(from, to) // whatever ends it ends both
			shut(from)
		})
		_, _ = io.Copy(to, from)
		shut(to)
		back.Wait()
		return
	}
}

func shut(c net.Conn) { _ = c.Close() } // the other side may have been quicker

func (s *service) dial(ctx context.Context, pod corev1.Pod) (net.Conn, error) {
	for _, r := range s.bed.replicas {
		if r.pod == pod.Name {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", r.addresses[s.port])
		}
	}
	return nil, fmt.Errorf("pod %s is no replica", pod.Name)
}
