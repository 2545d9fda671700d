package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"gpu-node-provider/proto"
)

// swaps is how many snapshots are swapped under readers.
const swaps = 21

// swapped is what swapping the whole snapshot costs, and what a read notices of it.
type swapped struct {
	swap time.Duration
	// longestRead is the longest read during a swap, as a share of that swap.
	// A read that waited for the swap would make it 1.
	longestRead float64
	reads       int
}

// swap renews a snapshot in which every instance has changed, while one reader
// reads without a pause.
func swap(w *world) (swapped, error) {
	var longest, reads atomic.Int64
	stop := make(chan struct{})
	var reader sync.WaitGroup
	var failed error
	reader.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			begin := time.Now()
			if _, err := w.server.NodeGroupForNode(context.Background(), forNodeRequest(w.ids[n%len(w.ids)])); err != nil {
				failed = err
				return
			}
			reads.Add(1)
			if took := int64(time.Since(begin)); took > longest.Load() {
				longest.Store(took)
			}
		}
	})
	var times, shares []float64
	w.cloud.on = true
	for range swaps {
		longest.Store(0)
		begin := time.Now()
		if _, err := w.server.Refresh(context.Background(), &proto.RefreshRequest{}); err != nil {
			return swapped{}, err
		}
		took := time.Since(begin)
		times = append(times, float64(took))
		shares = append(shares, float64(longest.Load())/float64(took))
	}
	close(stop)
	reader.Wait()
	return swapped{swap: time.Duration(median(times)), longestRead: median(shares), reads: int(reads.Load())}, failed
}
