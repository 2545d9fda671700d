package testbed

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Job is what a trainer takes from its queue.
type Job struct {
	ID          string  `json:"id"`
	Steps       int     `json:"steps"`
	StepSeconds float64 `json:"stepSeconds"`
}

// Push puts jobs on a queue, all at once.
func (b *Bed) Push(ctx context.Context, queue string, jobs ...Job) error {
	elements := make([]any, 0, len(jobs))
	for _, job := range jobs {
		text, err := json.Marshal(job)
		if err != nil {
			return err
		}
		elements = append(elements, text)
	}
	if err := b.Redis.LPush(ctx, queue, elements...).Err(); err != nil {
		return fmt.Errorf("pushing %d jobs on %s: %w", len(jobs), queue, err)
	}
	return nil
}

// Jobs are n jobs with ids of their own.
func Jobs(name string, n, steps int, stepSeconds float64) []Job {
	jobs := make([]Job, 0, n)
	for k := range n {
		jobs = append(jobs, Job{ID: fmt.Sprintf("%s-%d", name, k+1), Steps: steps, StepSeconds: stepSeconds})
	}
	return jobs
}

// Queue reads the lengths of a queue's lists.
func (b *Bed) Queue(ctx context.Context, name string) (Queue, error) {
	var waiting, inFlight, done *redis.IntCmd
	_, err := b.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		waiting, inFlight, done = p.LLen(ctx, name), p.LLen(ctx, name+":inflight"), p.HLen(ctx, name+":results")
		return nil
	})
	if err != nil {
		return Queue{}, fmt.Errorf("reading queue %s: %w", name, err)
	}
	return Queue{Waiting: int(waiting.Val()), InFlight: int(inFlight.Val()), Done: int(done.Val())}, nil
}

// Empty says whether nothing waits and nothing is in flight.
func (q Queue) Empty() bool { return q.Waiting == 0 && q.InFlight == 0 }
