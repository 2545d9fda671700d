package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider/config"
	"gpu-node-provider/provider/nodegroup"
)

// completeRounds is the number of refresh intervals between two reads of instance types and
// discovered groups from AWS. A new launch template or group is seen after that time at
// most; each read costs a few calls.
const completeRounds = 4

// runningCloud is a Backend with its lifecycle and its capabilities.
type runningCloud struct {
	cloud.Backend
	run   func(context.Context) error
	close func()
	// complete adds what the cloud describes, such as instance types, to a node group file.
	complete func(context.Context, *config.Config) (*config.Config, error)
	// completeEvery is the interval of complete; 0 when the file describes everything.
	completeEvery time.Duration
	// owners returns the cloud's names of the groups of instances, by instance; nil when the
	// cloud has no names but the ids of node groups.
	owners    func(ctx context.Context, instances []string) (map[string]string, error)
	readEvery time.Duration // see provider.Options.ReadEvery
	// quota reads a service quota; nil when the cloud has none.
	quota func(ctx context.Context, code string) (cloud.ServiceQuota, error)
}

// openCloud opens the cloud of the file. With an election it waits for the previous leader
// to close the state file of the simulated cloud.
func (r *replica) openCloud(ctx context.Context) (running *runningCloud, err error) {
	if c := r.config.Cloud.AWS; c != nil {
		backend, err := openAWS(ctx, c, r.log, r.registry)
		if err != nil {
			return nil, err
		}
		return awsCloud(backend, c, r.log), nil
	}
	err = r.progress.await(ctx, "the simulated cloud is in use by another process", func(ctx context.Context) error {
		return wait.PollUntilContextCancel(ctx, retryEvery, true, func(context.Context) (bool, error) {
			running, err = r.openSimulated()
			if errors.Is(err, simulated.ErrInUse) && r.election.elects() {
				r.log.Warn("simulated cloud in use, trying again", zap.Error(err))
				return false, nil
			}
			return err == nil, err
		})
	})
	return running, err
}

// openAWS configures the client without calling AWS.
func openAWS(ctx context.Context, c *config.AWS, log *zap.Logger, r prometheus.Registerer) (*aws.Cloud, error) {
	backend, err := aws.New(ctx, aws.Options{
		Region: c.Region, Endpoint: c.Endpoint, Cluster: c.Cluster, ScaleInProtection: aws.ScaleInProtection(c.ScaleInProtection), Registerer: r, Log: log,
	})
	if err != nil {
		return nil, usageError{fmt.Errorf("cloud.aws: %w", err)}
	}
	return backend, nil
}

func awsCloud(backend *aws.Cloud, c *config.AWS, log *zap.Logger) *runningCloud {
	return &runningCloud{
		Backend:       backend,
		run:           backend.Run,
		close:         func() {},
		complete:      completionOnAWS(backend, log).Complete,
		completeEvery: completeRounds * c.RefreshInterval.Duration,
		readEvery:     c.RefreshInterval.Duration,
		quota:         backend.Quota,
		owners:        backend.Owners,
	}
}

func completionOnAWS(backend *aws.Cloud, log *zap.Logger) *nodegroup.Completion {
	return &nodegroup.Completion{Machines: backend.Machines, Discover: backend.Discover, Log: log}
}

func (r *replica) openSimulated() (*runningCloud, error) {
	o := r.config.Cloud.Simulated
	options := simulated.Options{
		StateFile:         o.StateFile,
		LaunchDelay:       o.LaunchDelay.Duration,
		BootDelay:         o.BootDelay.Duration,
		DevicePluginDelay: o.DevicePluginDelay.Duration,
		TerminateDelay:    o.TerminateDelay.Duration,
		Capacity:          o.Capacity,
		LaunchErrorRate:   o.LaunchErrors.Rate,
		LaunchErrorCode:   cloud.LaunchCode(o.LaunchErrors.Code),
		API:               simulated.API{Latency: o.API.Latency.Duration, ErrorRate: o.API.ErrorRate, LostAnswerRate: o.API.LostAnswerRate},
		Log:               r.log,
	}
	if r.kube != nil {
		options.Kubernetes = &simulated.Kubernetes{Client: r.kube.client, NewNode: r.newNode, Heartbeat: *o.Heartbeat}
	}
	backend, err := simulated.New(options)
	if err != nil {
		return nil, usageError{fmt.Errorf("cloud.simulated: %w", err)}
	}
	return &runningCloud{
		Backend: backend,
		run:     backend.Run,
		close: func() {
			if err := backend.Close(); err != nil {
				r.log.Warn("failed to close the simulated cloud", zap.Error(err))
			}
		},
		complete: func(_ context.Context, file *config.Config) (*config.Config, error) { return file, nil },
	}, nil
}
