package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trainerLogs are the lines of every trainer that there was, by Pod name.
func (b *Bed) trainerLogs() (map[string][]string, error) {
	files, err := filepath.Glob(filepath.Join(b.Logs(), "pods", trainersNamespace+"_*.log"))
	if err != nil {
		return nil, err
	}
	logs := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pod := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), trainersNamespace+"_"), ".log")
		logs[pod] = strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	}
	return logs, nil
}

// Said counts the lines of all trainers that hold a text.
func (b *Bed) Said(text string) (n int, err error) {
	logs, err := b.trainerLogs()
	for _, lines := range logs {
		for _, line := range lines {
			if strings.Contains(line, text) {
				n++
			}
		}
	}
	return n, err
}

// Resumption is a trainer's going on with a job that another had begun.
type Resumption struct {
	Pod  string
	Step int
}

// Resumed are the resumptions of a job.
func (b *Bed) Resumed(job string) (all []Resumption, err error) {
	logs, err := b.trainerLogs()
	for pod, lines := range logs {
		for _, step := range stepsIn(lines, resumed, job) {
			all = append(all, Resumption{Pod: pod, Step: step})
		}
	}
	return all, err
}

// WorkerOf is the Pod that trains a job, with the step of its last checkpoint.
func (b *Bed) WorkerOf(ctx context.Context, job string) (*corev1.Pod, int, error) {
	logs, err := b.trainerLogs()
	if err != nil {
		return nil, 0, err
	}
	for name, lines := range logs {
		steps := stepsIn(lines, saved, job)
		if len(steps) == 0 {
			continue
		}
		pod, err := b.Cluster.Client.CoreV1().Pods(trainersNamespace).Get(ctx, name, metav1.GetOptions{})
		return pod, slices.Max(steps), err
	}
	return nil, 0, fmt.Errorf("no trainer has saved a checkpoint of job %s", job)
}

// KillTrainer ends a trainer's process by force.
func (b *Bed) KillTrainer(pod *corev1.Pod) error {
	if !b.agent.Kill(pod.UID) {
		return fmt.Errorf("pod %s has no process", pod.Name)
	}
	return nil
}

// FreezeTrainer stops a trainer's process where it is: it hears no signal but the last.
func (b *Bed) FreezeTrainer(pod *corev1.Pod) error {
	if !b.agent.Freeze(pod.UID) {
		return fmt.Errorf("pod %s has no process", pod.Name)
	}
	return nil
}

// The lines of deploy/train-worker/worker.py that tests read.
var (
	resumed = regexp.MustCompile(`job (\S+) resumed from step (\d+)`)
	saved   = regexp.MustCompile(`job (\S+) checkpoint saved at step (\d+)`)
)

func stepsIn(lines []string, what *regexp.Regexp, job string) []int {
	var steps []int
	for _, line := range lines {
		found := what.FindStringSubmatch(line)
		if found == nil || found[1] != job {
			continue
		}
		step, err := strconv.Atoi(found[2])
		if err == nil {
			steps = append(steps, step)
		}
	}
	return steps
}
