package cluster

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestFirstReadingIsInPages: from an API server that does not stream it.
func TestFirstReadingIsInPages(t *testing.T) {
	const pods = 2*pageSize + 1
	asked := 0
	all, err := inPages(t.Context(), metav1.ListOptions{ResourceVersion: "0"}, func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
		asked++
		require.Empty(t, o.ResourceVersion, "with one the limit counts for nothing")
		require.EqualValues(t, pageSize, o.Limit)
		first, _ := strconv.Atoi(o.Continue) // empty at first
		page := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		for n := first; n < min(first+pageSize, pods); n++ {
			page.Items = append(page.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(n)}})
		}
		if first+pageSize < pods {
			page.Continue = strconv.Itoa(first + pageSize)
		}
		return page, nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, asked)
	require.Equal(t, pods, meta.LenList(all))
	list, err := meta.ListAccessor(all)
	require.NoError(t, err)
	require.Equal(t, "7", list.GetResourceVersion(), "the watch begins there")
}
