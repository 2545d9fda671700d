package property

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// apiServer is as much of an API server as the provider asks of one: versions
// that conflict, merge patches of a Node's metadata, lists by field and label,
// and refusals. The fake clientset does the same a hundred times slower. What is
// not here panics, since an embedded interface is nil.
type apiServer struct {
	kubernetes.Interface
	typedcorev1.CoreV1Interface

	down     bool // nobody is reached
	readOnly bool // every write is refused
	version  int
	nodes    map[string]*corev1.Node
	pods     map[string]*corev1.Pod // by namespace/name
	records  map[string]*corev1.ConfigMap

	unwritten int // writes of the record that failed
	// patched is told of each patch before it is in force.
	patched func(before, after *corev1.Node)
}

func newAPIServer() *apiServer {
	return &apiServer{nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}, records: map[string]*corev1.ConfigMap{}}
}

func (a *apiServer) CoreV1() typedcorev1.CoreV1Interface { return a }

func (a *apiServer) Nodes() typedcorev1.NodeInterface { return nodesAPI{apiServer: a} }

func (a *apiServer) Pods(namespace string) typedcorev1.PodInterface {
	return podsAPI{apiServer: a, namespace: namespace}
}

func (a *apiServer) ConfigMaps(string) typedcorev1.ConfigMapInterface {
	return configMapsAPI{apiServer: a}
}

var (
	errUnreachable = errors.New("the API server is not reached")
	errReadOnly    = errors.New("the API server takes no writes")
)

func (a *apiServer) reached() error {
	if a.down {
		return errUnreachable
	}
	return nil
}

func (a *apiServer) writable() error {
	switch {
	case a.down:
		return errUnreachable
	case a.readOnly:
		return errReadOnly
	default:
		return nil
	}
}

func (a *apiServer) next() string {
	a.version++
	return strconv.Itoa(a.version)
}

type nodesAPI struct {
	typedcorev1.NodeInterface
	*apiServer
}

// nodePatch is all that the provider may write to a Node.
type nodePatch struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion"`
		UID             types.UID          `json:"uid"`
		Annotations     map[string]*string `json:"annotations"`
		Labels          map[string]*string `json:"labels"`
	} `json:"metadata"`
}

func (n nodesAPI) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	var patch nodePatch
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&patch); err != nil {
		panic(faultf("a patch of a Node that is none: %s: %v", data, err))
	}
	if patch.Metadata.ResourceVersion == "" || patch.Metadata.UID == "" {
		panic(faultf("a patch of a Node that does not say of which version: %s", data))
	}
	if err := n.writable(); err != nil {
		return nil, err
	}
	before, ok := n.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	if before.ResourceVersion != patch.Metadata.ResourceVersion || before.UID != patch.Metadata.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, name, errors.New("it has been modified"))
	}
	after := before.DeepCopy()
	after.Annotations = merged(after.Annotations, patch.Metadata.Annotations)
	after.Labels = merged(after.Labels, patch.Metadata.Labels)
	after.ResourceVersion = n.next()
	n.patched(before, after)
	n.nodes[name] = after
	return after.DeepCopy(), nil
}

func merged(have map[string]string, patch map[string]*string) map[string]string {
	have = maps.Clone(have)
	if have == nil {
		have = map[string]string{}
	}
	for key, value := range patch {
		if value == nil {
			delete(have, key)
		} else {
			have[key] = *value
		}
	}
	return have
}

type podsAPI struct {
	typedcorev1.PodInterface
	*apiServer
	namespace string
}

func (p podsAPI) List(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	if err := p.reached(); err != nil {
		return nil, err
	}
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, err
	}
	list := &corev1.PodList{}
	for _, key := range slices.Sorted(maps.Keys(p.pods)) {
		if pod := p.pods[key]; selector.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName}) {
			list.Items = append(list.Items, *pod)
		}
	}
	return list, nil
}

func (p podsAPI) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Pod, error) {
	if err := p.reached(); err != nil {
		return nil, err
	}
	pod, ok := p.pods[p.namespace+"/"+name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return pod.DeepCopy(), nil
}

type configMapsAPI struct {
	typedcorev1.ConfigMapInterface
	*apiServer
}

var configMaps = schema.GroupResource{Resource: "configmaps"}

func (c configMapsAPI) List(_ context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	if err := c.reached(); err != nil {
		return nil, err
	}
	selector, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return nil, err
	}
	list := &corev1.ConfigMapList{}
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		if m := c.records[name]; selector.Matches(labels.Set(m.Labels)) {
			list.Items = append(list.Items, *m.DeepCopy())
		}
	}
	return list, nil
}

func (c configMapsAPI) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ConfigMap, error) {
	if err := c.reached(); err != nil {
		return nil, err
	}
	m, ok := c.records[name]
	if !ok {
		return nil, apierrors.NewNotFound(configMaps, name)
	}
	return m.DeepCopy(), nil
}

func (c configMapsAPI) Create(_ context.Context, m *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	_, there := c.records[m.Name]
	return c.write(m, there, apierrors.NewAlreadyExists(configMaps, m.Name))
}

func (c configMapsAPI) Update(_ context.Context, m *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	now, ok := c.records[m.Name]
	if !ok {
		return c.write(m, true, apierrors.NewNotFound(configMaps, m.Name))
	}
	return c.write(m, now.ResourceVersion != m.ResourceVersion, apierrors.NewConflict(configMaps, m.Name, errors.New("it has been modified")))
}

func (c configMapsAPI) write(m *corev1.ConfigMap, refused bool, refusal error) (*corev1.ConfigMap, error) {
	err := c.writable()
	if err == nil && refused {
		err = refusal
	}
	if err != nil {
		c.unwritten++
		return nil, err
	}
	written := m.DeepCopy()
	written.ResourceVersion = c.next()
	c.records[m.Name] = written
	return written.DeepCopy(), nil
}
