package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud/aws/awstest"
	"gpu-node-provider/provider/doctor"
	"gpu-node-provider/provider/report"
)

func TestDoctorOfARehearsal(t *testing.T) {
	httpPort := freePort(t)
	path := file{server: ports(freePort(t), httpPort), rest: "quotas: [{name: gpus, resource: nvidia.com/gpu, limit: 2}]"}.write(t)
	p := start(t, "doctor", "--config", path)
	require.Equal(t, exitFailure, p.wait(t))
	require.Regexp(t, `(?m)^fail +provider +no provider answers on `+httpPort, p.stdout.String())
	require.Contains(t, p.stderr.String(), "at least one check failed")

	start(t, "serve", "--config", path)
	eventually(t, "it serves", func() bool { return text(t, "http://"+httpPort+"/readyz") == "ok\n" })
	p = start(t, "doctor", "--config", path)
	require.Zero(t, p.wait(t), "%s%s", p.stdout.String(), p.stderr.String())
	require.Regexp(t, `(?m)^ok +quotas +gpus: 0 of 2 nvidia.com/gpu used, limit from node group file`, p.stdout.String())
	require.Regexp(t, `(?m)^warn +prices +.*: t4, cpu\n +→ set hourlyPrice`, p.stdout.String())

	p = start(t, "doctor", "--config", path, "-o", "json")
	require.Zero(t, p.wait(t))
	var findings []doctor.Finding
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &findings))
	require.Equal(t, doctor.Finding{Check: "provider", Level: doctor.OK, Text: "the provider answers, and uses the file on disk"}, findings[0])

	asJSON := p.stdout.String()
	p = start(t, "doctor", "--config", path, "-o", "yaml")
	require.Zero(t, p.wait(t))
	requireSameKeys(t, asJSON, p.stdout.String())
}

func TestDoctorOnAWS(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "good", Max: 5, MaxInstanceLifetime: 86400})
	httpPort := freePort(t)
	path := onAWS(t, stub.URL(), ports(freePort(t), httpPort), group("good"))
	start(t, "serve", "--config", path)
	eventually(t, "it serves", func() bool { return text(t, "http://"+httpPort+"/readyz") == "ok\n" })
	p := start(t, "doctor", "--config", path)
	require.Equal(t, exitFailure, p.wait(t))
	said := p.stdout.String()
	require.Regexp(t, `(?m)^fail +cloud +node group good: MaxInstanceLifetime of good is 86400 s: .*\n +→ aws autoscaling update-auto-scaling-group .*good`, said)
	require.Regexp(t, `(?m)^fail +redis +redis: connection refused`, said)
	require.Regexp(t, `(?m)^warn +webhook +no eviction webhook`, said)
	require.Regexp(t, `(?m)^ok +node-groups +all are served`, said)

	undo := stub.Faults(awstest.Rule{Action: "DescribePolicies", Fault: awstest.Deny()})
	p = start(t, "doctor", "--config", path)
	require.Equal(t, exitFailure, p.wait(t))
	require.Regexp(t, `(?m)^warn +cloud +failed to read all conflicting settings: .*autoscaling:DescribePolicies`, p.stdout.String())
	require.Regexp(t, `(?m)^fail +cloud +node group good: MaxInstanceLifetime`, p.stdout.String())
	undo()

	stub.Faults(awstest.Rule{Action: "DescribeAutoScalingGroups", Fault: awstest.Deny()})
	p = start(t, "doctor", "--config", path)
	require.Equal(t, exitFailure, p.wait(t))
	require.Regexp(t, `(?m)^warn +gpu-devices +unknown: .*autoscaling:DescribeAutoScalingGroups`, p.stdout.String())
}

func TestDoctorRefuses(t *testing.T) {
	path := file{}.write(t)
	for want, args := range map[string][]string{
		"--config FILE is missing":    {},
		"must be table, json or yaml": {"--config", path, "-o", "xml"},
		"doctor takes no arguments":   {"--config", path, "t4"},
		"unknown flag":                {"--fix"},
		"no such file or directory":   {"--config", path + ".none"},

		"kubernetes.kubeconfig: \"/none/kubeconfig\" cannot be read": {"--config", file{rest: "kubernetes: {kubeconfig: /none/kubeconfig}"}.write(t)},
	} {
		p := start(t, append([]string{"doctor"}, args...)...)
		require.Equal(t, exitUsage, p.wait(t), "%v: %s", args, p.stdout.String())
		require.Contains(t, p.stderr.String(), want)
		require.Empty(t, p.stdout.String())
	}
}

// TestDoctorReadsTheReport: the checks use the report of the provider.
func TestDoctorReadsTheReport(t *testing.T) {
	at := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	w := newStubProvider(t, func(w *stubProvider) {
		w.report = report.Provider{
			ReloadError: "no id",
			NodeGroups: []report.NodeGroup{
				{ID: "broken", Problem: "no such group"},
				{ID: "full", Target: 2, EffectiveMax: 2, MaxSize: 4, Limit: "quota gpus", Instances: []report.Instance{{ID: "aws:///a/i-1"}}},
				{ID: "at-maximum", Target: 4, EffectiveMax: 4, MaxSize: 4},
				{ID: "retired", Target: 2, EffectiveMax: 2, MaxSize: 4, Retired: true},
				{ID: "has-room", Target: 2, EffectiveMax: 3, MaxSize: 4},
			},
			Quotas: []report.Quota{{Name: "gpus", Resource: "nvidia.com/gpu", Used: 2, Limit: 4, Source: "AWS", ReadAt: &at, Problem: "denied"}},
		}
	})
	from := collector{address: w.address}
	var s doctor.Snapshot
	require.NoError(t, from.provider(t.Context(), &s))
	require.NoError(t, s.ProviderErr)
	require.Equal(t, w.report.NodeGroups, s.Provider.NodeGroups)
	require.Equal(t, w.report.Quotas, s.Provider.Quotas)
	require.Equal(t, "no id", s.Provider.ReloadError)
}
