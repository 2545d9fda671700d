package testbed

import (
	"context"
	"fmt"
)

// pretendTrainers are Pods that kwok pretends to run, where real processes
// would be too many.
const pretendTrainers = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: pretend, namespace: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: pretend}}
  template:
    metadata: {labels: {app: pretend, %[3]s: required}}
    spec:
      nodeSelector: {accelerator: %[4]s}
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      containers: [{name: trainer, image: "trainer:dev", resources: {limits: {nvidia.com/gpu: 1}}}]
`

// PretendTrainers asks for n Pods of one GPU each on nodes that kwok manages.
func (b *Bed) PretendTrainers(ctx context.Context, accelerator string, n int) error {
	manifest := fmt.Sprintf(pretendTrainers, trainersNamespace, n, checkpointLabel, accelerator)
	_, err := b.Cluster.Kubectl(ctx, []byte(manifest), "apply", "-f", "-")
	return err
}
