package cluster

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
)

// nodeInformer and podInformer are client-go's own, but for their first reading
// from an API server that cannot stream it (WatchList; off in some versions up to
// 1.33). There client-go asks for everything in one answer, which for 60,000 Pods
// takes ten times the memory that is left of it in the end.

func nodeInformer(f informers.SharedInformerFactory) cache.SharedIndexInformer {
	return f.InformerFor(&corev1.Node{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		nodes := client.CoreV1().Nodes()
		return informer(client, &corev1.Node{}, resync, nodes.Watch, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			page, err := nodes.List(ctx, o)
			if err != nil {
				return nil, err
			}
			for n := range page.Items {
				page.Items[n] = *slimNode(&page.Items[n])
			}
			return page, nil
		})
	})
}

func podInformer(f informers.SharedInformerFactory) cache.SharedIndexInformer {
	return f.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		pods := client.CoreV1().Pods(metav1.NamespaceAll)
		return informer(client, &corev1.Pod{}, resync, pods.Watch, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			page, err := pods.List(ctx, o)
			if err != nil {
				return nil, err
			}
			for n := range page.Items {
				if page.Items[n].Spec.NodeName != "" {
					page.Items[n] = *boundOf(&page.Items[n]).pod()
				}
			}
			return page, nil
		})
	})
}

type (
	watcher = func(context.Context, metav1.ListOptions) (watch.Interface, error)
	lister  = func(context.Context, metav1.ListOptions) (runtime.Object, error)
)

func informer(client kubernetes.Interface, of runtime.Object, resync time.Duration, follow watcher, list lister) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return inPages(ctx, o, list)
		},
		WatchFuncWithContext: follow,
	}, client), of, resync, cache.Indexers{})
}

// pageSize is client-go's own.
const pageSize = 500

// inPages reads all, a page at a time. list slims each page before the next comes.
func inPages(ctx context.Context, o metav1.ListOptions, list lister) (runtime.Object, error) {
	o.ResourceVersion, o.ResourceVersionMatch = "", "" // from version 0 the API server answers with everything, whatever the limit
	pages := pager.New(list)
	pages.PageSize = pageSize
	all, _, err := pages.List(ctx, o)
	return all, err
}
