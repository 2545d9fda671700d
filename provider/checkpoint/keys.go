package checkpoint

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// PodID is one incarnation of a pod. A pod of a StatefulSet comes back under the
// same name, and what its predecessor saved says nothing of it: hence the UID.
type PodID struct {
	Namespace, Name string
	UID             types.UID
}

// String is how people name the pod.
func (p PodID) String() string { return p.Namespace + "/" + p.Name }

// AckKey is where the pod's trainer acknowledges.
func AckKey(prefix string, p PodID) string { return key(prefix, "ack", p) }

// RequestKey is where the provider asks the pod's trainer for a checkpoint.
func RequestKey(prefix string, p PodID) string { return key(prefix, "request", p) }

// ParseAckKey is the inverse of AckKey. The prefix may hold colons, the parts of a
// pod cannot, so no two pods share a key.
func ParseAckKey(prefix, key string) (PodID, bool) {
	rest, ok := strings.CutPrefix(key, prefix+":ack:")
	if !ok {
		return PodID{}, false
	}
	parts := strings.Split(rest, ":")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return PodID{}, false
	}
	return PodID{Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])}, true
}

// acksChannel is where trainers publish the key of a new acknowledgement.
func acksChannel(prefix string) string { return prefix + ":acks" }

// requestsChannel is where the provider publishes the key of a new request.
func requestsChannel(prefix string) string { return prefix + ":requests" }

func key(prefix, kind string, p PodID) string {
	return prefix + ":" + kind + ":" + p.Namespace + ":" + p.Name + ":" + string(p.UID)
}
