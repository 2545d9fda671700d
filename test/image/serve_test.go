//go:build image

package image

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-node-provider/proto"
)

const training = metav1.NamespaceDefault // of the trainer

// TestServes: the provider reaches AWS by the roots of the image, Redis by its file
// and the API server by its service account. A node goes once checkpoint-ack, out of
// the same image, has acknowledged.
func TestServes(t *testing.T) {
	p := newPod(t)
	p.trustAuthority()
	node, trainer := p.train()
	server := p.serve()
	p.eventually(server, p.ready)

	code, output := p.run(nil, "/gpu-node-provider", "status", "--address", p.http)
	assert.Zero(t, code, output)
	assert.Regexp(t, `(?m)^t4 `, output)
	lease, err := p.api.Client.CoordinationV1().Leases(namespace).Get(t.Context(), "gpu-node-provider", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, new(name), lease.Spec.HolderIdentity)
	p.eventually(server, func() error {
		leader, err := p.api.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && leader.Labels["gpu-node-provider.io/leader"] != "true" {
			err = errors.New("the leader's Pod is not marked")
		}
		return err
	})

	connection, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() }) // its server may be gone
	request := &proto.NodeGroupDeleteNodesRequest{Id: "t4", Nodes: []*proto.ExternalGrpcNode{{Name: node.Name, ProviderID: node.Spec.ProviderID}}}
	remove := func() error {
		_, err := proto.NewCloudProviderClient(connection).NodeGroupDeleteNodes(t.Context(), request)
		return err
	}
	environment := []string{
		"REDIS_URL=rediss://" + p.redis, "SSL_CERT_FILE=" + redisCA,
		"POD_NAMESPACE=" + training, "POD_NAME=" + trainer.Name, "POD_UID=" + string(trainer.UID),
	}
	var id string
	p.eventually(server, func() error {
		if err := remove(); status.Code(err) != codes.FailedPrecondition {
			require.Error(t, err, "deleted without an acknowledgement")
			return err
		}
		code, output := p.run(environment, "/checkpoint-ack", "requested")
		if id = strings.TrimSpace(output); code != 0 {
			return fmt.Errorf("checkpoint-ack requested: exit code %d: %s", code, output)
		}
		return nil
	})
	code, output = p.run(environment, "/checkpoint-ack", "--request", id)
	require.Zero(t, code, output)
	p.eventually(server, remove)
	assert.Zero(t, p.aws.Group(asg).Desired)
}

// train makes the group's instance a Node that Cluster Autoscaler drains, on which a
// training pod runs.
func (p *pod) train() (*corev1.Node, *corev1.Pod) {
	p.t.Helper()
	instance := p.aws.Group(asg).Instances[0]
	core := p.api.Client.CoreV1()
	node, err := core.Nodes().Create(p.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: instance.ID},
		Spec: corev1.NodeSpec{
			ProviderID: "aws:///" + instance.Zone + "/" + instance.ID,
			Taints:     []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}},
		},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	_, err = core.ServiceAccounts(training).Create(p.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	trainer, err := core.Pods(training).Create(p.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "train-0", Labels: map[string]string{"gpu-node-provider.io/checkpoint": "required"}},
		Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "trainer", Image: "train-worker:dev"}}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	started := metav1.Now()
	trainer.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "trainer", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
	}}}
	trainer, err = core.Pods(training).UpdateStatus(p.t.Context(), trainer, metav1.UpdateOptions{})
	require.NoError(p.t, err)
	return node, trainer
}

// TestUnknownAuthority: with the image's bundle as it is the provider does not talk
// to an AWS of the test's authority, and the log has the reason.
func TestUnknownAuthority(t *testing.T) {
	p := newPod(t)
	server := p.serve()
	p.eventually(server, func() error {
		if !strings.Contains(server.output.String(), "x509: certificate signed by unknown authority") {
			return errors.New("the log has no unknown authority")
		}
		return nil
	})
	require.ErrorContains(t, p.ready(), "/readyz answers 503")
}
