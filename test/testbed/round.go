package testbed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Row is a line of the acceptance table.
type Row struct {
	What   string
	Took   time.Duration
	Detail string
	Err    error // nil: passed
}

// Table prints the rows for people.
func Table(rows []Row) string {
	var out strings.Builder
	for _, r := range rows {
		verdict := "passed"
		if r.Err != nil {
			verdict = "FAILED"
		}
		fmt.Fprintf(&out, "%s  %6.1fs  %s", verdict, r.Took.Seconds(), r.What)
		if r.Detail != "" {
			fmt.Fprintf(&out, " (%s)", r.Detail)
		}
		if r.Err != nil {
			fmt.Fprintf(&out, ": %v", r.Err)
		}
		out.WriteString("\n")
	}
	return out.String()
}

// errNotReached is what the rows after a failed one have.
var errNotReached = errors.New("not reached")

// Round is the acceptance round of the article: an empty queue has neither
// replicas nor nodes; jobs bring both, never past their caps; when they are
// trained, both go.
type Round struct {
	Trainers Trainers
	Pool     string // node group
	PoolMax  int
	Jobs     []Job
	// Midway is called once the first Node is there or on its way.
	Midway func(ctx context.Context) error
}

// Play plays the round and says how each of its steps went.
func (b *Bed) Play(ctx context.Context, r Round) []Row {
	t := r.Trainers
	b.Watch.Queues(t.Queue)
	steps := []struct {
		what string
		do   func(context.Context) (detail string, err error)
	}{
		{"empty queue: 0 replicas, 0 nodes", func(ctx context.Context) (string, error) { return b.roundEmpty(ctx, t) }},
		{fmt.Sprintf("%d jobs: replicas rise to %d, the cap is %d", len(r.Jobs), min(len(r.Jobs), t.MaxReplicas), t.MaxReplicas), func(ctx context.Context) (string, error) { return b.roundReplicas(ctx, r) }},
		{fmt.Sprintf("nodes with accelerator=%s come, at most %d", t.Accelerator, r.PoolMax), func(ctx context.Context) (string, error) { return b.roundNodes(ctx, r) }},
		{"every job is trained, its result committed once", func(ctx context.Context) (string, error) { return b.roundTrained(ctx, r) }},
		{"queue empty again: 0 replicas", func(ctx context.Context) (string, error) { return b.roundIdle(ctx, r) }},
		{"the nodes are gone, and their instances", func(ctx context.Context) (string, error) { return b.roundGone(ctx, r) }},
	}
	rows := make([]Row, 0, len(steps))
	var failed error
	for _, step := range steps {
		row := Row{What: step.what, Err: failed}
		if failed == nil {
			b.Watch.Say("--- %s", step.what)
			begin := time.Now()
			row.Detail, row.Err = step.do(ctx)
			row.Took = time.Since(begin)
			if row.Err != nil {
				failed = errNotReached
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// Passed joins what failed.
func Passed(rows []Row) error {
	var problems []error
	for _, r := range rows {
		if r.Err != nil && !errors.Is(r.Err, errNotReached) {
			problems = append(problems, fmt.Errorf("%s: %w", r.What, r.Err))
		}
	}
	return errors.Join(problems...)
}

func (b *Bed) roundEmpty(ctx context.Context, t Trainers) (string, error) {
	if err := b.Train(ctx, t); err != nil {
		return "", err
	}
	if _, err := b.Cluster.Kubectl(ctx, nil, "-n", trainersNamespace, "wait", "--for=condition=Ready", "--timeout=60s", "scaledobject/"+t.Name); err != nil {
		return "", err
	}
	_, err := b.Watch.Until(ctx, time.Minute, "0 replicas and 0 nodes", func(s State) bool {
		replicas, there := s.Replicas[t.Name]
		return there && replicas == 0 && s.NodesOf(t.Accelerator) == 0
	})
	return "ScaledObject Ready", err
}

func (b *Bed) roundReplicas(ctx context.Context, r Round) (string, error) {
	if err := b.Push(ctx, r.Trainers.Queue, r.Jobs...); err != nil {
		return "", err
	}
	want := min(len(r.Jobs), r.Trainers.MaxReplicas)
	_, err := b.Watch.Until(ctx, time.Minute, fmt.Sprintf("%d replicas", want), func(s State) bool { return s.Replicas[r.Trainers.Name] >= want })
	if err != nil {
		return "", err
	}
	return "ScaledObject Active", b.kubectlWait(ctx, r.Trainers.Name, "Active=True")
}

func (b *Bed) kubectlWait(ctx context.Context, scaledObject, condition string) error {
	_, err := b.Cluster.Kubectl(ctx, nil, "-n", trainersNamespace, "wait", "--for=condition="+condition, "--timeout=60s", "scaledobject/"+scaledObject)
	return err
}

func (b *Bed) roundNodes(ctx context.Context, r Round) (string, error) {
	if r.Midway != nil {
		if _, err := b.Watch.Until(ctx, 2*time.Minute, "capacity is asked for", func(State) bool { return b.target(ctx, r.Pool) > 0 }); err != nil {
			return "", err
		}
		if err := r.Midway(ctx); err != nil {
			return "", err
		}
	}
	want := min(len(r.Jobs), r.Trainers.MaxReplicas, r.PoolMax)
	_, err := b.Watch.Until(ctx, 4*time.Minute, fmt.Sprintf("%d nodes, and their pods running", want), func(s State) bool {
		return s.NodesOf(r.Trainers.Accelerator) >= want && s.Phase(corev1.PodRunning) >= want || s.Queues[r.Trainers.Queue].Done == len(r.Jobs)
	})
	return fmt.Sprintf("%d at most", b.Watch.MostNodes(r.Trainers.Accelerator)), err
}

// target is the target size of a pool; none while the provider does not answer.
func (b *Bed) target(ctx context.Context, pool string) int {
	report, err := b.Report(ctx)
	if err != nil {
		return 0
	}
	for _, g := range report.NodeGroups {
		if g.ID == pool {
			return g.Target
		}
	}
	return 0
}

func (b *Bed) roundTrained(ctx context.Context, r Round) (string, error) {
	_, err := b.Watch.Until(ctx, 4*time.Minute, "every job is done", func(s State) bool {
		q := s.Queues[r.Trainers.Queue]
		return q.Done == len(r.Jobs) && q.Empty()
	})
	return fmt.Sprintf("%d results", len(r.Jobs)), err
}

func (b *Bed) roundIdle(ctx context.Context, r Round) (string, error) {
	if _, err := b.Watch.Until(ctx, 2*time.Minute, "0 replicas", func(s State) bool { return s.Replicas[r.Trainers.Name] == 0 }); err != nil {
		return "", err
	}
	if most := b.Watch.MostReplicas(r.Trainers.Name); most > r.Trainers.MaxReplicas {
		return "", fmt.Errorf("there were %d replicas at once, the cap is %d", most, r.Trainers.MaxReplicas)
	}
	return "ScaledObject not Active", b.kubectlWait(ctx, r.Trainers.Name, "Active=False")
}

func (b *Bed) roundGone(ctx context.Context, r Round) (string, error) {
	_, err := b.Watch.Until(ctx, 3*time.Minute, "no nodes, and a target of 0", func(s State) bool {
		return s.NodesOf(r.Trainers.Accelerator) == 0 && b.target(ctx, r.Pool) == 0
	})
	if err != nil {
		return "", err
	}
	if most := b.Watch.MostNodes(r.Trainers.Accelerator); most > r.PoolMax {
		return "", fmt.Errorf("there were %d nodes at once, the maximum is %d", most, r.PoolMax)
	}
	return fmt.Sprintf("%d nodes in all", b.Watch.EverNodes()), nil
}
