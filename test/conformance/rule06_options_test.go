package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"gpu-node-provider/proto"
)

// provider/doctor tests the warning of `doctor` about overrides.
func TestRule06GetOptions(t *testing.T) {
	parallel(t)
	t.Run("UnimplementedUnlessTheGroupHasOverrides", rule06Unimplemented)
	t.Run("EveryFieldIsTheDefaultOrTheOverrideInBothForms", rule06EveryField)
	t.Run("AZeroDurationIsNeverSentUnlessWritten", rule06Zero)
	t.Run("ZeroOrMaxNodeScalingIsNeverSet", rule06ZeroOrMax)
	t.Run("TheLogWarnsOfOverrides", rule06Log)
}

func rule06Unimplemented(t *testing.T) {
	s := wire(t, file{})
	for _, g := range s.nodeGroups(t) {
		_, err := s.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: g.GetId(), Defaults: flagDefaults()})
		if s.process == nil && err == nil {
			continue // a group elsewhere may have overrides
		}
		code(t, codes.Unimplemented, err)
	}
}

// override is one key of scaleDown, and what it makes of the answer.
type override struct {
	line string
	put  func(*answered)
}

// answered is what a client reads of options.
type answered struct {
	Threshold, GPUThreshold         float64
	IgnoreDaemonSets                bool
	Unneeded, Unready, Provision    time.Duration // fields 8 to 10
	Unneeded3, Unready4, Provision5 time.Duration // fields 3 to 5
}

var overrides = []override{
	{"utilizationThreshold: 0.25", func(a *answered) { a.Threshold = 0.25 }},
	{"gpuUtilizationThreshold: 0.75", func(a *answered) { a.GPUThreshold = 0.75 }},
	{"ignoreDaemonSets: true", func(a *answered) { a.IgnoreDaemonSets = true }},
	{"unneededTime: 7m", func(a *answered) { a.Unneeded, a.Unneeded3 = 7*time.Minute, 7*time.Minute }},
	{"unreadyTime: 90s", func(a *answered) { a.Unready, a.Unready4 = 90*time.Second, 90*time.Second }},
	{"maxNodeProvisionTime: 1h30m", func(a *answered) { a.Provision, a.Provision5 = 90*time.Minute, 90*time.Minute }},
}

// subset names the group whose file has the overrides of which the bit is set.
func subset(bits int) string { return fmt.Sprintf("g%d", bits) }

func subsets() (groups []string) {
	for bits := 1; bits < 1<<len(overrides); bits++ {
		var lines []string
		for n, o := range overrides {
			if bits&(1<<n) != 0 {
				lines = append(lines, o.line)
			}
		}
		groups = append(groups, group(subset(bits), "scaleDown: "+mapping(lines)))
	}
	return groups
}

func read(o *proto.NodeGroupAutoscalingOptions) answered {
	return answered{
		Threshold: o.GetScaleDownUtilizationThreshold(), GPUThreshold: o.GetScaleDownGpuUtilizationThreshold(),
		IgnoreDaemonSets: o.GetIgnoreDaemonSetsUtilization(),
		Unneeded:         o.GetScaleDownUnneededDuration().AsDuration(),
		Unready:          o.GetScaleDownUnreadyDuration().AsDuration(),
		Provision:        o.GetMaxNodeProvisionDuration().AsDuration(),
		Unneeded3:        time.Duration(o.GetScaleDownUnneededTime().GetDuration()),
		Unready4:         time.Duration(o.GetScaleDownUnreadyTime().GetDuration()),
		Provision5:       time.Duration(o.GetMaxNodeProvisionTime().GetDuration()),
	}
}

// rule06EveryField: all sets of overrides, any defaults, sent as any release does.
func rule06EveryField(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: subsets()})
	rapid.Check(t, func(r *rapid.T) {
		bits := rapid.IntRange(1, 1<<len(overrides)-1).Draw(r, "overrides")
		positive := rapid.Custom(func(r *rapid.T) time.Duration { return time.Duration(rapid.Int64Range(1, 1<<50).Draw(r, "ns")) })
		unneeded, unready, provision := positive.Draw(r, "unneeded"), positive.Draw(r, "unready"), positive.Draw(r, "provision")
		defaults := &proto.NodeGroupAutoscalingOptions{
			ScaleDownUtilizationThreshold:    rapid.Float64Range(0, 1).Draw(r, "threshold"),
			ScaleDownGpuUtilizationThreshold: rapid.Float64Range(0, 1).Draw(r, "gpu threshold"),
			IgnoreDaemonSetsUtilization:      rapid.Bool().Draw(r, "daemon sets"),
			ZeroOrMaxNodeScaling:             rapid.Bool().Draw(r, "zero or max"),
		}
		want := answered{
			defaults.ScaleDownUtilizationThreshold, defaults.ScaleDownGpuUtilizationThreshold, defaults.IgnoreDaemonSetsUtilization,
			unneeded, unready, provision, unneeded, unready, provision,
		}
		form := rapid.SampledFrom([]func(*proto.NodeGroupAutoscalingOptions, time.Duration, time.Duration, time.Duration) *proto.NodeGroupAutoscalingOptions{
			newForm, legacyForm, bothForms,
		}).Draw(r, "form")
		form(defaults, unneeded, unready, provision)
		for n, o := range overrides {
			if bits&(1<<n) != 0 {
				o.put(&want)
			}
		}
		request := &proto.NodeGroupAutoscalingOptionsRequest{Id: subset(bits), Defaults: defaults}
		response, err := s.NodeGroupGetOptions(t.Context(), request)
		require.NoError(r, err)
		require.Equal(r, want, read(response.GetNodeGroupAutoscalingOptions()))
	})
}

func rule06Zero(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{
		group("threshold", "scaleDown: {utilizationThreshold: 0.3}"),
		group("zero", "scaleDown: {unneededTime: 0s, unreadyTime: 0s, maxNodeProvisionTime: 0s}"),
	}})
	get := func(id string, defaults *proto.NodeGroupAutoscalingOptions) (*proto.NodeGroupAutoscalingOptionsResponse, error) {
		return s.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: id, Defaults: defaults})
	}
	const m = time.Minute
	for name, defaults := range map[string]*proto.NodeGroupAutoscalingOptions{
		"no durations": {ScaleDownUtilizationThreshold: 0.5},
		"one is zero":  newForm(&proto.NodeGroupAutoscalingOptions{}, m, 0, m),
		"all are zero": bothForms(&proto.NodeGroupAutoscalingOptions{}, 0, 0, 0),
		"negative":     legacyForm(&proto.NodeGroupAutoscalingOptions{}, -m, m, m),
	} {
		r, err := get("threshold", defaults)
		assert.Equal(t, codes.Unimplemented.String(), status.Code(err).String(), "%s: %v", name, r)
	}
	_, err := get("threshold", nil)
	code(t, codes.InvalidArgument, err) // there is nothing to fill in

	r, err := get("zero", flagDefaults())
	require.NoError(t, err)
	got := r.GetNodeGroupAutoscalingOptions()
	assert.Equal(t, answered{Threshold: 0.5, GPUThreshold: 0.5}, read(got), "a zero that is written is meant")
	for _, set := range []bool{
		got.ScaleDownUnneededDuration != nil, got.ScaleDownUnreadyDuration != nil, got.MaxNodeProvisionDuration != nil,
		got.ScaleDownUnneededTime != nil, got.ScaleDownUnreadyTime != nil, got.MaxNodeProvisionTime != nil,
	} {
		assert.True(t, set, "up to 1.34 a field that is not set crashes Cluster Autoscaler")
	}
}

func rule06ZeroOrMax(t *testing.T) {
	parallel(t)
	s := serve(t, file{groups: []string{group("t4", "scaleDown: {ignoreDaemonSets: true}")}})
	defaults := flagDefaults()
	defaults.ZeroOrMaxNodeScaling = true
	r, err := s.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: "t4", Defaults: defaults})
	require.NoError(t, err)
	assert.False(t, r.GetNodeGroupAutoscalingOptions().GetZeroOrMaxNodeScaling())
}

// rule06Log: from 1.35 on any answer makes the node's startup time zero, and a
// GPU node that boots counts as unready.
func rule06Log(t *testing.T) {
	parallel(t)
	warns := func(s *server) bool {
		for line := range strings.Lines(s.stderr.String()) {
			if strings.Contains(line, "1.35") && strings.Contains(line, `"over"`) {
				return true
			}
		}
		return false
	}
	with := serve(t, file{groups: []string{group("over", "scaleDown: {utilizationThreshold: 0.3}"), group("plain")}})
	for range 3 {
		_, err := with.NodeGroupGetOptions(t.Context(), &proto.NodeGroupAutoscalingOptionsRequest{Id: "over", Defaults: flagDefaults()})
		require.NoError(t, err)
	}
	assert.True(t, warns(with), "the log names the group and says what overrides do to Cluster Autoscaler 1.35 and later")
	assert.False(t, warns(serve(t, file{groups: []string{group("over")}})), "without overrides there is nothing to warn of")
}
