package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// The cluster that is held in memory.
const (
	clusterNodes = 15_000
	clusterPods  = 60_000
	// A kubelet reports its node's status every five minutes at the latest, and
	// pods come and go.
	nodeUpdateEvery = 5 * time.Minute / clusterNodes
	podUpdateEvery  = 20 * time.Millisecond
)

// served is a kind of object, made anew each time it is asked for: kept, all of
// them would take a gigabyte.
type served struct {
	list   string
	n      int
	object func(n int) runtime.Object
	update time.Duration // between two changes
}

const podsPerNode = clusterPods / clusterNodes

// podOf is a training pod, of which most has to be kept. Of those that a DaemonSet
// has next to nothing is.
func podOf(n int) runtime.Object { return aTrainer(n, nodeName(n/podsPerNode)) }

var resources = map[string]served{
	"/api/v1/nodes": {"NodeList", clusterNodes, func(n int) runtime.Object { return aNode(n) }, nodeUpdateEvery},
	"/api/v1/pods":  {"PodList", clusterPods, podOf, podUpdateEvery},
}

// serveAPI answers LIST and WATCH of Nodes and Pods like an API server, and prints
// where.
func serveAPI() error {
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, _ = fmt.Println(port.Addr())
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, ok := resources[r.URL.Path]
		if !ok || r.Method != http.MethodGet {
			http.Error(w, "not here", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if query := r.URL.Query(); query.Get("watch") == "" {
			kind.writeList(w, query)
		} else {
			kind.writeWatch(r.Context(), w, query.Get("sendInitialEvents") == "true")
		}
	})}
	return server.Serve(port)
}

const someVersion = "1000"

// writeList answers with a page, or with all where the client names a version: an
// API server does so out of its cache, whatever the limit.
func (s served) writeList(w io.Writer, query url.Values) {
	first, _ := strconv.Atoi(query.Get("continue")) // empty for the first page
	limit, _ := strconv.Atoi(query.Get("limit"))    // empty for all
	end := s.n
	if limit > 0 && query.Get("resourceVersion") == "" {
		end = min(first+limit, s.n)
	}
	next := ""
	if end < s.n {
		next = strconv.Itoa(end)
	}
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":"v1","metadata":{"resourceVersion":%q,"continue":%q},"items":[`, s.list, someVersion, next)
	encoder := json.NewEncoder(w)
	for n := first; n < end; n++ {
		if n > first {
			fmt.Fprint(w, ",")
		}
		if encoder.Encode(s.object(n)) != nil {
			return // the client is gone
		}
	}
	fmt.Fprint(w, "]}")
}

// writeWatch begins with every object, where the client wants that, and goes on with changes.
func (s served) writeWatch(ctx context.Context, w http.ResponseWriter, initial bool) {
	encoder, flush := json.NewEncoder(w), http.NewResponseController(w)
	type event struct {
		Type   watch.EventType `json:"type"`
		Object any             `json:"object"`
	}
	if initial {
		for n := range s.n {
			if encoder.Encode(event{watch.Added, s.object(n)}) != nil {
				return
			}
		}
		if encoder.Encode(event{watch.Bookmark, map[string]any{
			"kind": strings.TrimSuffix(s.list, "List"), "apiVersion": "v1",
			"metadata": metav1.ObjectMeta{ResourceVersion: someVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		}}) != nil || flush.Flush() != nil {
			return
		}
	}
	tick := time.NewTicker(s.update)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if encoder.Encode(event{watch.Modified, s.object(n % s.n)}) != nil || flush.Flush() != nil {
				return
			}
		}
	}
}
