package nodeagent

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"gpu-node-provider/test/testbed/process"
)

// restartDelay is a kubelet's first; it doubles there, which no round needs.
const restartDelay = 10 * time.Second

// cleanUpTime is at the short end of what a kubelet needs.
const cleanUpTime = time.Second

// container is the first container of one Pod.
type container struct {
	client kubernetes.Interface
	pod    *corev1.Pod
	node   string
	logs   string

	gone     chan struct{} // closed when the machine or the Pod is gone
	goneOnce sync.Once
	deadline chan time.Time // of the newest deletion
	deleted  bool           // guarded by the Agent

	restarts int32
	started  metav1.Time

	mu      sync.Mutex
	process *process.Process // the latest
}

func newContainer(client kubernetes.Interface, pod *corev1.Pod, logs string) *container {
	return &container{
		client: client, pod: pod, node: pod.Spec.NodeName, logs: logs,
		gone: make(chan struct{}), deadline: make(chan time.Time, 1),
	}
}

// lost says that the machine or the Pod is no more.
func (c *container) lost() { c.goneOnce.Do(func() { close(c.gone) }) }

// terminate tells of a deletion; a later one may shorten the grace period.
func (c *container) terminate(deadline time.Time) {
	select {
	case <-c.deadline: // the newest counts
	default:
	}
	c.deadline <- deadline
}

// kill ends the process by force, without a word to its Pod.
func (c *container) kill() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return false
	}
	c.process.Kill()
	return true
}

func (c *container) freeze() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process != nil && c.process.Signal(syscall.SIGSTOP) == nil
}

// Unpullable is an image that no registry has.
const Unpullable = "unpullable"

// run lives as long as the Pod is bound here.
func (c *container) run(ctx context.Context) {
	if c.pod.Spec.Containers[0].Image == Unpullable {
		c.report(ctx, corev1.PodPending, waiting("ImagePullBackOff", "there is no such image"))
		c.untilDeleted(ctx)
		return
	}
	for {
		p, err := c.start()
		if err != nil {
			c.report(ctx, corev1.PodFailed, waiting("CreateContainerError", err.Error()))
			c.untilDeleted(ctx)
			return
		}
		c.mu.Lock()
		c.process = p
		c.mu.Unlock()
		c.started = metav1.Now()
		c.report(ctx, corev1.PodRunning, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: c.started}})
		ended, terminating := c.watch(ctx, p)
		if !ended {
			return // the machine is gone, and nobody there to report
		}
		state := terminated(p, c.started)
		if terminating {
			c.report(ctx, phaseOf(p), state)
			c.cleanUp(ctx)
			c.remove(ctx)
			return
		}
		if !c.again(p) {
			c.report(ctx, phaseOf(p), state)
			c.untilDeleted(ctx)
			return
		}
		c.restarts++
		c.report(ctx, corev1.PodRunning, waiting("CrashLoopBackOff", fmt.Sprintf("the process ended with %d", p.ExitCode())))
		if !c.pause(ctx) {
			return
		}
	}
}

func (c *container) start() (*process.Process, error) {
	spec := c.pod.Spec.Containers[0]
	environment, err := environmentOf(c.pod)
	if err != nil {
		return nil, err
	}
	command := append(append([]string{}, spec.Command...), spec.Args...)
	if len(spec.Command) == 0 {
		return nil, fmt.Errorf("container %s has no command, and there are no images here", spec.Name)
	}
	expand(command, environment)
	if err := os.MkdirAll(c.logs, 0o700); err != nil {
		return nil, err
	}
	return process.Start(process.Spec{
		Name: c.pod.Namespace + "_" + c.pod.Name, Path: command[0], Args: command[1:],
		Env: list(environment), LogDir: c.logs, Append: true, WorkDir: spec.WorkingDir,
	})
}

// watch waits for the end of the process. ended is false when the machine went first.
func (c *container) watch(ctx context.Context, p *process.Process) (ended, terminating bool) {
	kill := time.NewTimer(time.Hour)
	kill.Stop()
	defer kill.Stop()
	for {
		select {
		case <-p.Ended():
			p.Kill() // children that it left behind
			return true, terminating
		case deadline := <-c.deadline:
			if !terminating && catches(p.PID(), syscall.SIGTERM) {
				_ = p.Signal(syscall.SIGTERM) // it may have ended just now
			}
			terminating = true
			kill.Reset(time.Until(deadline))
		case <-kill.C:
			p.Kill()
		case <-c.gone:
			p.Kill()
			return false, terminating
		case <-ctx.Done():
			p.Kill()
			return false, terminating
		}
	}
}

// again says whether the restart policy wants another go.
func (c *container) again(p *process.Process) bool {
	switch c.pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return p.ExitCode() != 0
	default:
		return true
	}
}

// pause waits before a restart; false when the Pod is no longer wanted.
func (c *container) pause(ctx context.Context) bool {
	timer := time.NewTimer(restartDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.deadline:
		c.remove(ctx)
	case <-c.gone:
	case <-ctx.Done():
	}
	return false
}

// cleanUp takes the time in which a kubelet unmounts volumes. The Pod is there
// meanwhile, Succeeded or Failed by its exit code.
func (c *container) cleanUp(ctx context.Context) {
	timer := time.NewTimer(cleanUpTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.gone:
	case <-ctx.Done():
	}
}

// untilDeleted keeps a Pod whose process is over until somebody deletes it.
func (c *container) untilDeleted(ctx context.Context) {
	select {
	case <-c.deadline:
		c.remove(ctx)
	case <-c.gone:
	case <-ctx.Done():
	}
}

// remove is a kubelet's last word on a Pod that was deleted: now it may go.
func (c *container) remove(ctx context.Context) {
	err := c.client.CoreV1().Pods(c.pod.Namespace).Delete(ctx, c.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &c.pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "nodeagent: removing Pod %s: %v\n", c.pod.Name, err)
	}
}

// report writes the Pod's status. A Pod that is gone has none to write.
func (c *container) report(ctx context.Context, phase corev1.PodPhase, state corev1.ContainerState) {
	pods := c.client.CoreV1().Pods(c.pod.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pod, err := pods.Get(ctx, c.pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.UID != c.pod.UID {
			return nil
		}
		c.fill(&pod.Status, phase, state)
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "nodeagent: status of Pod %s: %v\n", c.pod.Name, err)
	}
}

func (c *container) fill(status *corev1.PodStatus, phase corev1.PodPhase, state corev1.ContainerState) {
	running := state.Running != nil
	spec := c.pod.Spec.Containers[0]
	status.Phase = phase
	if status.StartTime == nil {
		status.StartTime = &c.started
	}
	status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: spec.Name, Image: spec.Image, ImageID: spec.Image, ContainerID: "process://" + string(c.pod.UID),
		State: state, Ready: running, Started: &running, RestartCount: c.restarts,
	}}
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		value := corev1.ConditionFalse
		if running || kind == corev1.PodInitialized {
			value = corev1.ConditionTrue
		}
		setCondition(status, kind, value)
	}
}

func setCondition(status *corev1.PodStatus, kind corev1.PodConditionType, value corev1.ConditionStatus) {
	for n := range status.Conditions {
		if have := &status.Conditions[n]; have.Type == kind {
			if have.Status != value {
				have.Status, have.LastTransitionTime = value, metav1.Now()
			}
			return
		}
	}
	status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: metav1.Now()})
}

func phaseOf(p *process.Process) corev1.PodPhase {
	if p.ExitCode() == 0 {
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func terminated(p *process.Process, started metav1.Time) corev1.ContainerState {
	state := &corev1.ContainerStateTerminated{ExitCode: int32(p.ExitCode()), StartedAt: started, FinishedAt: metav1.Now(), Reason: "Completed"}
	if p.ExitCode() != 0 {
		state.Reason = "Error"
	}
	if p.ExitCode() < 0 { // by a signal, which the agent sends only at the end of the grace period
		state.ExitCode, state.Reason = 137, "Error"
	}
	return corev1.ContainerState{Terminated: state}
}
