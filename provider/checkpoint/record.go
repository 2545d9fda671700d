package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Pod is a training pod in the record.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Slot is the place with its controller, see SlotOf.
	Slot string `json:"slot,omitempty"`
	Facts
	// Released is set when a person has said that what it has not saved may be lost.
	Released string `json:"released,omitempty"` // by whom
}

// Machine is the record of one instance: the training pods that it has held and
// that are not clear yet.
type Machine struct {
	V        int    `json:"v"`
	Instance string `json:"instance"` // provider id
	Group    string `json:"group"`
	Node     string `json:"node"` // name of its Node, which may be gone
	Pods     []Pod  `json:"pods"`
}

const (
	recordVersion = 1
	// RecordLabel marks our ConfigMaps; its value is the group.
	RecordLabel = "gpu-node-provider.io/record"
	// shardSize is when a further ConfigMap is begun. The API server takes 1 MiB.
	shardSize = 512 << 10
)

// Record is what survives: our restart, a wiped Redis, a deleted Node. It lives
// in ConfigMaps, a key for each instance, and in memory.
type Record struct {
	client    kubernetes.Interface
	namespace string

	writing  sync.Mutex // one writer at a time
	mu       sync.RWMutex
	machines map[string]Machine           // by instance
	shards   map[string]*corev1.ConfigMap // by name, as written last
	shardOf  map[string]string            // instance → name
	// others are instances whose entry somebody else has written meanwhile.
	others map[string]bool
}

// NewRecord makes an empty record; Load fills it.
func NewRecord(client kubernetes.Interface, namespace string) *Record {
	return &Record{
		client: client, namespace: namespace,
		machines: map[string]Machine{}, shards: map[string]*corev1.ConfigMap{}, shardOf: map[string]string{}, others: map[string]bool{},
	}
}

// Load reads every ConfigMap. An entry that cannot be read is an error: what it
// says is not known, so nothing may go.
func (r *Record) Load(ctx context.Context) error {
	list, err := r.client.CoreV1().ConfigMaps(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: RecordLabel})
	if err != nil {
		return fmt.Errorf("reading the record of training pods: %w", err)
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.machines)
	clear(r.shards)
	clear(r.shardOf)
	clear(r.others)
	for _, shard := range list.Items {
		r.shards[shard.Name] = &shard
		for key, text := range shard.Data {
			m, err := decodeMachine(text)
			if err != nil {
				return fmt.Errorf("ConfigMap %s/%s, key %s: %w; the record of a training pod must not be edited by hand", r.namespace, shard.Name, key, err)
			}
			r.machines[m.Instance], r.shardOf[m.Instance] = m, shard.Name
		}
	}
	return nil
}

func decodeMachine(text string) (m Machine, err error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields() // a field that is not known may be what holds the node
	if err := decoder.Decode(&m); err != nil {
		return m, err
	}
	if m.V != recordVersion || m.Instance == "" {
		return m, fmt.Errorf("version %d of an entry for instance %q, this program knows version %d", m.V, m.Instance, recordVersion)
	}
	return m, nil
}

// Of is the record of an instance; empty when it has none. The result is the
// caller's.
func (r *Record) Of(instance string) Machine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	m := r.machines[instance]
	m.Pods = slices.Clone(m.Pods)
	return m
}

// Read asks the API server for the record of one instance, for a process that
// does not keep the record; empty when there is none.
func (r *Record) Read(ctx context.Context, group, instance string) (Machine, error) {
	list, err := r.client.CoreV1().ConfigMaps(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: RecordLabel + "=" + group})
	if err != nil {
		return Machine{}, fmt.Errorf("reading the record of training pods: %w", err)
	}
	for _, shard := range list.Items {
		if text, ok := shard.Data[keyOf(instance)]; ok {
			return decodeMachine(text)
		}
	}
	return Machine{}, nil
}

// Machines are all entries, by instance.
func (r *Record) Machines() []Machine {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]Machine, 0, len(r.machines))
	for _, instance := range slices.Sorted(maps.Keys(r.machines)) {
		all = append(all, r.machines[instance])
	}
	return all
}

// Put replaces the record of an instance; one without pods is removed. What has
// not changed is not written. After an error it is in memory all the same, so
// that nothing goes meanwhile, and the next Put writes it.
func (r *Record) Put(ctx context.Context, m Machine) error {
	m.V = recordVersion
	r.writing.Lock()
	defer r.writing.Unlock()
	m = r.withOthers(m)
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("record of %s: %w", m.Instance, err)
	}
	if r.keep(m, string(text)) {
		return nil
	}
	if err := r.write(ctx, m, string(text)); err != nil {
		return fmt.Errorf("writing the record of training pods on %s: %w", m.Instance, err)
	}
	return nil
}

// withOthers adds to an entry the pods that came in while it was being made: a
// leader that has not noticed yet that it is none must not write over the next one's.
func (r *Record) withOthers(m Machine) Machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.others[m.Instance] {
		delete(r.others, m.Instance)
		m.Pods = union(m.Pods, r.machines[m.Instance].Pods)
	}
	return m
}

// union is all pods of ours, and those of theirs that are not among them.
func union(ours, theirs []Pod) []Pod {
	all := slices.Clone(ours)
	for _, p := range theirs {
		if !slices.ContainsFunc(ours, func(o Pod) bool { return o.UID == p.UID }) {
			all = append(all, p)
		}
	}
	return all
}

// keep takes an entry into memory, and says whether the API has it already.
func (r *Record) keep(m Machine, text string) (written bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name, there := r.shardOf[m.Instance]
	if len(m.Pods) == 0 {
		delete(r.machines, m.Instance)
		return !there
	}
	r.machines[m.Instance] = m
	return there && r.shards[name].Data[keyOf(m.Instance)] == text
}

// write puts an entry into its shard, in the API first.
func (r *Record) write(ctx context.Context, m Machine, text string) error {
	configMaps := r.client.CoreV1().ConfigMaps(r.namespace)
	shard, isNew := r.shardFor(m, len(text))
	if shard.Data == nil {
		shard.Data = map[string]string{}
	}
	if len(m.Pods) == 0 {
		delete(shard.Data, keyOf(m.Instance))
	} else {
		shard.Data[keyOf(m.Instance)] = text
	}
	var written *corev1.ConfigMap
	var err error
	if isNew {
		written, err = configMaps.Create(ctx, shard, metav1.CreateOptions{})
	} else {
		written, err = configMaps.Update(ctx, shard, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		// Another leader, or a person, was here: who writes next must know of it.
		r.forgetShard(shard.Name, m.Instance)
		return fmt.Errorf("%w; it is read again", err)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if written.Data == nil {
		written.Data = map[string]string{}
	}
	r.shards[written.Name] = written
	if len(m.Pods) == 0 {
		delete(r.shardOf, m.Instance)
	} else {
		r.shardOf[m.Instance] = written.Name
	}
	return nil
}

// shardFor is a copy of the ConfigMap that has the instance, or has room for it.
func (r *Record) shardFor(m Machine, size int) (shard *corev1.ConfigMap, isNew bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if name, ok := r.shardOf[m.Instance]; ok {
		return r.shards[name].DeepCopy(), false
	}
	for n := 0; ; n++ {
		name := shardName(m.Group, n)
		known, ok := r.shards[name]
		if !ok {
			return &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace, Labels: map[string]string{RecordLabel: m.Group}},
				Data:       map[string]string{},
			}, true
		}
		if known.Labels[RecordLabel] == m.Group && sizeOf(known)+size < shardSize {
			return known.DeepCopy(), false
		}
	}
}

// forgetShard reads the ConfigMap anew, for the next write. What is in memory
// stays, for what is forgotten could let an instance go, and what somebody else has
// written comes in. The write that failed was for one instance.
func (r *Record) forgetShard(name, instance string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	fresh, err := r.client.CoreV1().ConfigMaps(r.namespace).Get(ctx, name, metav1.GetOptions{})
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		before := r.shards[name]
		r.shards[name] = fresh
		for key, text := range fresh.Data {
			if before != nil && before.Data[key] == text {
				continue
			}
			if m, err := decodeMachine(text); err == nil {
				r.adopt(m, name)
				r.others[m.Instance] = m.Instance != instance
			}
		}
	case apierrors.IsNotFound(err):
		delete(r.shards, name)
		for instance, shard := range r.shardOf {
			if shard == name {
				delete(r.shardOf, instance)
			}
		}
	}
}

func (r *Record) adopt(m Machine, shard string) {
	ours, known := r.machines[m.Instance]
	if !known {
		r.machines[m.Instance], r.shardOf[m.Instance] = m, shard
		return
	}
	ours.Pods = union(ours.Pods, m.Pods)
	r.machines[m.Instance] = ours
}

func sizeOf(shard *corev1.ConfigMap) int {
	n := 0
	for key, text := range shard.Data {
		n += len(key) + len(text)
	}
	return n
}

func shardName(group string, n int) string {
	return fmt.Sprintf("gpu-node-provider-record-%s-%d", group, n)
}

var notInKeys = regexp.MustCompile(`[^-._a-zA-Z0-9]`)

// keyOf makes a provider id a key of a ConfigMap: its last part to read, and a
// hash of all of it, since a key takes no slashes.
func keyOf(instance string) string {
	sum := sha256.Sum256([]byte(instance))
	name := notInKeys.ReplaceAllString(path.Base(instance), "_")
	return name[:min(len(name), 100)] + "." + hex.EncodeToString(sum[:8])
}
