package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	// There is true while its object is.
	There bool `json:"-"`
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
		return m, fmt.Errorf("version %d of an entry for instance %q, this version supports %d", m.V, m.Instance, recordVersion)
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

// Put replaces the records of instances; one without pods is removed. What has not
// changed is not written, and each ConfigMap once at most. After an error all is in
// memory, so that nothing goes meanwhile, and the next Put writes it.
func (r *Record) Put(ctx context.Context, machines ...Machine) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	updates := map[string]*update{} // by name of the ConfigMap
	for _, m := range machines {
		m.V = recordVersion
		m = r.withOthers(m)
		text, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("record of %s: %w", m.Instance, err)
		}
		if !r.keep(m, string(text)) {
			r.updateFor(m, len(text), updates).set(m, string(text))
		}
	}
	r.removals(updates)
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(updates)) {
		if err := r.write(ctx, updates[name]); err != nil {
			problems = append(problems, fmt.Errorf("writing the record of training pods on %s: %w", updates[name].names(), err))
		}
	}
	return errors.Join(problems...)
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
		return true // removals does it
	}
	r.machines[m.Instance] = m
	return there && r.shards[name].Data[keyOf(m.Instance)] == text
}

// removals are of what is in a ConfigMap and not in memory: also of what could not be
// removed before.
func (r *Record) removals(updates map[string]*update) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for instance, name := range r.shardOf {
		if _, kept := r.machines[instance]; !kept {
			r.updateOf(name, "", updates).set(Machine{Instance: instance}, "")
		}
	}
}

// update is a ConfigMap as it is to be.
type update struct {
	shard    *corev1.ConfigMap
	isNew    bool
	size     int
	machines []Machine // that change
}

func (u *update) set(m Machine, text string) {
	key := keyOf(m.Instance)
	if old, ok := u.shard.Data[key]; ok {
		u.size -= len(key) + len(old)
		delete(u.shard.Data, key)
	}
	if len(m.Pods) > 0 {
		u.shard.Data[key] = text
		u.size += len(key) + len(text)
	}
	u.machines = append(u.machines, m)
}

func (u *update) changes(instance string) bool {
	return slices.ContainsFunc(u.machines, func(m Machine) bool { return m.Instance == instance })
}

// names are the instances, for people.
func (u *update) names() string {
	if more := len(u.machines) - 1; more > 0 {
		return fmt.Sprintf("%s and %d more", u.machines[0].Instance, more)
	}
	return u.machines[0].Instance
}

// updateFor is that of the ConfigMap that has the instance, or has room for it.
func (r *Record) updateFor(m Machine, size int, updates map[string]*update) *update {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if name, ok := r.shardOf[m.Instance]; ok {
		return r.updateOf(name, m.Group, updates)
	}
	for n := 0; ; n++ {
		u := r.updateOf(shardName(m.Group, n), m.Group, updates)
		if u.shard.Labels[RecordLabel] == m.Group && (len(u.shard.Data) == 0 || u.size+size < shardSize) {
			return u
		}
	}
}

// updateOf begins an update of a ConfigMap, or goes on with it. One that comes to
// nothing is left out.
func (r *Record) updateOf(name, group string, updates map[string]*update) *update {
	if u, begun := updates[name]; begun {
		return u
	}
	u := &update{shard: &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.namespace, Labels: map[string]string{RecordLabel: group}},
	}, isNew: true}
	if known, ok := r.shards[name]; ok {
		u = &update{shard: known.DeepCopy(), size: sizeOf(known)}
	}
	if u.shard.Data == nil {
		u.shard.Data = map[string]string{}
	}
	updates[name] = u
	return u
}

// write carries an update out, in the API first.
func (r *Record) write(ctx context.Context, u *update) error {
	if len(u.machines) == 0 { // it had no room
		return nil
	}
	configMaps := r.client.CoreV1().ConfigMaps(r.namespace)
	var written *corev1.ConfigMap
	var err error
	if u.isNew {
		written, err = configMaps.Create(ctx, u.shard, metav1.CreateOptions{})
	} else {
		written, err = configMaps.Update(ctx, u.shard, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		// Another leader, or a person, was here: who writes next must know of it.
		r.forgetShard(u)
		return fmt.Errorf("%w; reading it again", err)
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
	for _, m := range u.machines {
		if len(m.Pods) == 0 {
			delete(r.shardOf, m.Instance)
		} else {
			r.shardOf[m.Instance] = written.Name
		}
	}
	return nil
}

// forgetShard reads the ConfigMap anew, for the next write. What is in memory
// stays, for what is forgotten could let an instance go, and what somebody else has
// written comes in. The update is the one that failed.
func (r *Record) forgetShard(u *update) {
	name := u.shard.Name
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
				more := r.adopt(m, name)
				r.others[m.Instance] = more || !u.changes(m.Instance)
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

// adopt takes over an entry, and says whether it has pods that were not known.
func (r *Record) adopt(m Machine, shard string) (more bool) {
	ours, known := r.machines[m.Instance]
	if !known {
		r.machines[m.Instance], r.shardOf[m.Instance] = m, shard
		return len(m.Pods) > 0
	}
	if _, known := r.shardOf[m.Instance]; !known {
		r.shardOf[m.Instance] = shard
	}
	before := len(ours.Pods)
	ours.Pods = union(ours.Pods, m.Pods)
	r.machines[m.Instance] = ours
	return len(ours.Pods) > before
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
