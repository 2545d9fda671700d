package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// EventOnPendingPod waits for an Event of the provider on a trainer's Pod that
// is Pending, and returns its text.
func (b *Bed) EventOnPendingPod(ctx context.Context, reason string) (text string, err error) {
	err = wait.PollUntilContextTimeout(ctx, lookEvery, startTimeout, true, func(ctx context.Context) (bool, error) {
		events, err := b.Cluster.Client.CoreV1().Events(trainersNamespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return false, err
		}
		for _, event := range events.Items {
			pod, err := b.Cluster.Client.CoreV1().Pods(trainersNamespace).Get(ctx, event.InvolvedObject.Name, metav1.GetOptions{})
			if err == nil && pod.UID == event.InvolvedObject.UID && pod.Status.Phase == corev1.PodPending {
				text = event.Message
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return "", fmt.Errorf("no Event %s on a Pending Pod: %w", reason, err)
	}
	return text, nil
}

// Growth is an increase that the provider granted.
type Growth struct {
	At    time.Time
	Group string
	Nodes int
}

// Growth reads the provider's log.
func (b *Bed) Growth() (all []Growth, err error) {
	err = b.providerLog(func(line []byte) {
		var entry struct {
			Msg       string
			TS        time.Time `json:"ts"`
			NodeGroup string    `json:"node_group"`
			Granted   int
		}
		if json.Unmarshal(line, &entry) == nil && strings.HasPrefix(entry.Msg, "node group increased") {
			all = append(all, Growth{At: entry.TS, Group: entry.NodeGroup, Nodes: entry.Granted})
		}
	})
	return all, err
}

// Calls counts the calls of a method that the provider's log tells of. Only
// those that change something or fail are there.
func (b *Bed) Calls(method string) (n int, err error) {
	err = b.providerLog(func(line []byte) {
		var entry struct{ Msg, Method string }
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "call" && entry.Method == method {
			n++
		}
	})
	return n, err
}

func (b *Bed) providerLog(each func(line []byte)) error {
	for _, r := range b.replicas {
		text, err := os.ReadFile(filepath.Join(b.Logs(), r.name()+".log"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			each([]byte(line))
		}
	}
	return nil
}

// Refusals counts the deletions that the gate has refused.
func (b *Bed) Refusals() (n int, err error) {
	err = b.providerLog(func(line []byte) {
		var entry struct{ Msg, Method, Code, Error string }
		if json.Unmarshal(line, &entry) == nil && entry.Method == "NodeGroupDeleteNodes" && entry.Code == "FailedPrecondition" {
			n++
		}
	})
	return n, err
}
