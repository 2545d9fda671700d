//go:build e2e

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/test/testbed"
)

// TestS9OnAWS plays the round of S9 with Auto Scaling Groups of moto as its cloud:
// the group's machines, labels and taints are what AWS and the tags say.
func TestS9OnAWS(t *testing.T) {
	moto := awstest.StartMoto(t)
	moto.CreateGroup(t, awstest.Group{
		Name: "train-t4", Min: 0, Max: 6, Zones: []string{"us-east-1a"}, InstanceType: "g4dn.xlarge",
		Tags: map[string]string{
			"k8s.io/cluster-autoscaler/node-template/label/accelerator":    t4,
			"k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu": "present:NoSchedule",
		},
	})
	bed := start(t, testbed.Options{
		AWS:    &testbed.AWS{Endpoint: moto.URL(), Labels: map[string]map[string]string{"train-t4": {"accelerator": t4}}},
		Config: testbed.Config{NodeGroups: []string{"{id: t4, maxSize: 4, autoScalingGroup: train-t4}"}},
	})
	r := testbed.Round{Trainers: trainers("train:jobs", t4, 4), Pool: "t4", PoolMax: 4, Jobs: testbed.Jobs("job", 3, 10, 0.5)}
	play(t, bed, r)
	assert.LessOrEqual(t, bed.Watch.MostNodes(t4), 3)
	bought(t, bed, 3)
}
