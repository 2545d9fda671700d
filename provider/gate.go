package provider

import (
	"context"
	"fmt"
	"strings"

	"gpu-node-provider/provider/checkpoint"
)

// Gate returns those of the live instances that have to stay. DeleteNodes calls it
// after every other check and before anything is changed. An error means that the
// answer is not known, and keeps all of them.
type Gate func(ctx context.Context, instances []checkpoint.Instance) ([]checkpoint.Held, error)

// ask calls the gate and returns the held instances by their id.
func (s *Server) ask(ctx context.Context, instances []checkpoint.Instance) (map[string]checkpoint.Held, error) {
	held := map[string]checkpoint.Held{}
	if s.gate == nil || len(instances) == 0 {
		return held, nil
	}
	all, err := s.gate(ctx, instances)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errGateUnavailable, err)
	}
	for _, h := range all {
		held[h.Instance] = h
	}
	return held, nil
}

// reasons lists the held ones among instances in one line.
func reasons(instances []checkpoint.Instance, held map[string]checkpoint.Held) string {
	var all []string
	for _, i := range instances {
		if h, ok := held[i.ID]; ok {
			all = append(all, i.Node+": "+h.Reason)
		}
	}
	return strings.Join(all, "; ")
}
