package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
)

// kubeAPI is a fake API server that creates, lists, watches, patches and deletes objects,
// without validation.
type kubeAPI struct {
	kubeconfig string
	before     atomic.Pointer[interceptor]

	mu      sync.Mutex
	objects map[string]object // by resource, namespace and name
	events  []watchEvent
	news    chan struct{} // closed and replaced with each event
}

// interceptor is called before a request is handled. It returns true when it has answered.
type interceptor = func(w http.ResponseWriter, r *http.Request) (answered bool)

type object = map[string]any

type watchEvent struct {
	Type   string `json:"type"`
	Object object `json:"object"`

	of target
}

// target is the resource and the object in the path of a request.
type target struct{ resource, namespace, name string }

func (t target) key() string { return t.resource + "/" + t.namespace + "/" + t.name }

func newKubeAPI(t *testing.T) *kubeAPI {
	t.Helper()
	a := &kubeAPI{objects: map[string]object{}, news: make(chan struct{})}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	a.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig.yaml")
	require.NoError(t, os.WriteFile(a.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`, s.URL), 0o600))
	return a
}

func (a *kubeAPI) section() string {
	return fmt.Sprintf("kubernetes: {kubeconfig: %q, leaderElection: false}", a.kubeconfig)
}

func targetOf(path string) target {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		parts = parts[2:]
	} else {
		parts = parts[3:]
	}
	var t target
	if parts[0] == "namespaces" && len(parts) > 2 {
		t.namespace, parts = parts[1], parts[2:]
	}
	t.resource = parts[0]
	if len(parts) > 1 {
		t.name = parts[1]
	}
	return t
}

func (a *kubeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if before := a.before.Load(); before != nil && (*before)(w, r) {
		return
	}
	t := targetOf(r.URL.Path)
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") != "": // as an API server without streaming lists
		w.WriteHeader(http.StatusBadRequest)
	case query.Get("watch") != "":
		a.watch(w, r, t)
	case r.Method == http.MethodGet && t.name == "":
		a.list(w, r, t)
	default:
		a.one(w, r, t)
	}
}

func (a *kubeAPI) list(w http.ResponseWriter, r *http.Request, t target) {
	a.mu.Lock()
	defer a.mu.Unlock()
	selector, _ := labels.Parse(r.URL.Query().Get("labelSelector"))
	node, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	items := []object{}
	for key, o := range a.objects {
		if !strings.HasPrefix(key, t.resource+"/"+t.namespace) || !selector.Matches(labelsOf(o)) {
			continue
		}
		if spec, _ := o["spec"].(object); node != "" && spec["nodeName"] != node {
			continue
		}
		items = append(items, o)
	}
	version := "v1"
	if group, ok := strings.CutPrefix(r.URL.Path, "/apis/"); ok {
		version = strings.Join(strings.SplitN(group, "/", 3)[:2], "/")
	}
	kind := map[string]string{"nodes": "Node", "pods": "Pod", "configmaps": "ConfigMap", "leases": "Lease"}[t.resource]
	answer(w, http.StatusOK, object{"kind": kind + "List", "apiVersion": version, "metadata": object{"resourceVersion": strconv.Itoa(len(a.events))}, "items": items})
}

func labelsOf(o object) labels.Set {
	set := labels.Set{}
	metadata, _ := o["metadata"].(object)
	given, _ := metadata["labels"].(object)
	for key, value := range given {
		set[key] = fmt.Sprint(value)
	}
	return set
}

func (a *kubeAPI) one(w http.ResponseWriter, r *http.Request, t target) {
	body, err := bodyOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodPost && t.name == "" {
		metadata, _ := body["metadata"].(object)
		name, _ := metadata["name"].(string)
		t.name = name
		a.put(t, body, "ADDED")
		answer(w, http.StatusCreated, body)
		return
	}
	known, ok := a.objects[t.key()]
	switch {
	case !ok:
		answer(w, http.StatusNotFound, object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": http.StatusNotFound})
		return
	case r.Method == http.MethodPut:
		known = body
		a.put(t, known, "MODIFIED")
	case r.Method == http.MethodPatch:
		known = merged(known, body)
		a.put(t, known, "MODIFIED")
	case r.Method == http.MethodDelete:
		a.put(t, known, "DELETED")
		delete(a.objects, t.key())
	}
	answer(w, http.StatusOK, known)
}

// bodyOf returns the body of a request as JSON; clients also send protobuf.
func bodyOf(r *http.Request) (o object, err error) {
	text, err := io.ReadAll(r.Body)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	if strings.Contains(r.Header.Get("Content-Type"), "protobuf") {
		typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			return nil, err
		}
		if text, err = json.Marshal(typed); err != nil {
			return nil, err
		}
	}
	return o, json.Unmarshal(text, &o)
}

// put stores a new version of an object and notifies the watches.
func (a *kubeAPI) put(t target, o object, kind string) {
	metadata, _ := o["metadata"].(object)
	if metadata["uid"] == nil {
		metadata["uid"] = "uid-" + t.name
	}
	metadata["resourceVersion"] = strconv.Itoa(len(a.events) + 1)
	a.objects[t.key()] = o
	a.events = append(a.events, watchEvent{kind, o, t})
	close(a.news)
	a.news = make(chan struct{})
}

// merged returns o with a JSON merge patch (RFC 7386); o does not change.
func merged(o, patch object) object {
	next := object{}
	for key, value := range o {
		next[key] = value
	}
	for key, value := range patch {
		inner, isObject := value.(object)
		before, _ := next[key].(object)
		switch {
		case value == nil:
			delete(next, key)
		case isObject:
			next[key] = merged(before, inner)
		default:
			next[key] = value
		}
	}
	return next
}

func (a *kubeAPI) watch(w http.ResponseWriter, r *http.Request, t target) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	sent, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for {
		_ = flush()
		a.mu.Lock()
		next, news := slices.Clone(a.events[min(sent, len(a.events)):]), a.news
		sent = len(a.events)
		a.mu.Unlock()
		for _, e := range next {
			if e.of.resource == t.resource && (t.namespace == "" || e.of.namespace == t.namespace) {
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		if len(next) > 0 {
			continue
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
	}
}

func answer(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

// set creates or replaces an object, as a client does.
func (a *kubeAPI) set(t *testing.T, of target, text string) {
	t.Helper()
	var o object
	require.NoError(t, json.Unmarshal([]byte(text), &o))
	a.mu.Lock()
	defer a.mu.Unlock()
	_, known := a.objects[of.key()]
	a.put(of, o, map[bool]string{false: "ADDED", true: "MODIFIED"}[known])
}

func (a *kubeAPI) remove(of target) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o, ok := a.objects[of.key()]; ok {
		a.put(of, o, "DELETED")
		delete(a.objects, of.key())
	}
}

// all returns the objects of a resource in all namespaces.
func (a *kubeAPI) all(resource string) (found []object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, o := range a.objects {
		if strings.HasPrefix(key, resource+"/") {
			found = append(found, o)
		}
	}
	return found
}
