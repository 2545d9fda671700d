package aws

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

const gQuota = "L-DB2E81BA"

// TestQuotaFamilies: each type counts against one quota on demand, and one on spot.
func TestQuotaFamilies(t *testing.T) {
	for instanceType, want := range map[string][2]string{
		"g4dn.xlarge": {gQuota, "L-3819A6DF"}, "g6e.48xlarge": {gQuota, "L-3819A6DF"}, "gr6.4xlarge": {gQuota, "L-3819A6DF"}, "vt1.3xlarge": {gQuota, "L-3819A6DF"},
		"p2.xlarge": {"L-417A185B", "L-7212CCBC"}, "p3dn.24xlarge": {"L-417A185B", "L-7212CCBC"}, "p4de.24xlarge": {"L-417A185B", "L-7212CCBC"},
		"p5en.48xlarge": {"L-417A185B", "L-C4BD4855"}, "p6-b200.48xlarge": {"L-417A185B", "L-C4BD4855"},
		"m7i-flex.large": {"L-1216C47A", "L-34B43A08"}, "im4gn.large": {"L-1216C47A", "L-34B43A08"}, "t3.micro": {"L-1216C47A", "L-34B43A08"},
		"inf2.xlarge": {"L-1945791B", "L-B5D1601B"}, "trn1.32xlarge": {"L-2C3B7624", "L-6B0D517C"}, "dl1.24xlarge": {"L-6E869C2A", "L-85EED4F7"},
		"x2gd.medium": {"L-7295265B", "L-E3A00192"}, "f2.6xlarge": {"L-74FC7D96", "L-88CF9481"}, "hpc7a.12xlarge": {"L-F7808C92", ""},
		"u-6tb1.56xlarge": {"L-43DA4232", ""}, "u7i-6tb.112xlarge": {"L-43DA4232", ""}, "mac2.metal": {"", ""}, "": {"", ""},
	} {
		var got [2]string
		for code, q := range vcpuQuotas {
			if !q.covers(instanceType) {
				continue
			}
			n := 0
			if q.spot {
				n = 1
			}
			require.Empty(t, got[n], "%s counts twice", instanceType)
			got[n] = code
		}
		require.Equal(t, want, got, instanceType)
	}
}

func TestTakesUp(t *testing.T) {
	g, gSpot := vcpuQuotas[gQuota], vcpuQuotas["L-3819A6DF"]
	for name, row := range map[string]struct {
		instance     types.Instance
		demand, spot bool
	}{
		"on demand":      {types.Instance{InstanceType: "g4dn.xlarge"}, true, false},
		"spot":           {types.Instance{InstanceType: "g4dn.xlarge", InstanceLifecycle: types.InstanceLifecycleTypeSpot}, false, true},
		"capacity block": {types.Instance{InstanceType: "g4dn.xlarge", InstanceLifecycle: types.InstanceLifecycleTypeCapacityBlock}, false, false},
		"dedicated host": {types.Instance{InstanceType: "g4dn.xlarge", Placement: &types.Placement{Tenancy: types.TenancyHost}}, false, false},
		"dedicated":      {types.Instance{InstanceType: "g4dn.xlarge", Placement: &types.Placement{Tenancy: types.TenancyDedicated}}, true, false},
		"another family": {types.Instance{InstanceType: "m5.large"}, false, false},
	} {
		require.Equal(t, row.demand, takesUp(g, row.instance), name)
		require.Equal(t, row.spot, takesUp(gSpot, row.instance), name)
	}
}

func TestQuota(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "t4", Max: 4, Desired: 3})
	stub.CreateGroup(awstest.Group{Name: "metal", Max: 4, Desired: 1, InstanceType: "g4dn.metal"})
	stub.CreateGroup(awstest.Group{Name: "cpu", Max: 4, Desired: 4, InstanceType: "m5.large"})
	stub.CreateGroup(awstest.Group{Name: "spot", Max: 4, Desired: 2, Overrides: []awstest.Override{{InstanceType: "g4dn.2xlarge"}}})
	stub.Settle()
	stub.End(stub.Group("t4").IDs()[0], awstest.Interrupted) // shuts down, and counts until it is gone
	stub.Add("t4", awstest.Pending, 1)
	stub.SetQuota("ec2", gQuota, 256)
	c := opened(t, stub, Options{})
	read := stub.Now()
	for code, want := range map[string]cloud.ServiceQuota{
		gQuota:       {Limit: 256, Use: 4*4 + 96, Source: "Service Quotas L-DB2E81BA in us-east-1"},
		"L-3819A6DF": {Limit: 0, Use: 16, Source: "Service Quotas L-3819A6DF in us-east-1, AWS default"},
		"L-1216C47A": {Limit: 5, Use: 8, Source: "Service Quotas L-1216C47A in us-east-1, AWS default"},
		"L-417A185B": {Limit: 0, Use: 0, Source: "Service Quotas L-417A185B in us-east-1, AWS default"},
	} {
		got, err := c.Quota(t.Context(), code)
		require.NoError(t, err)
		want.Code, want.ReadAt, want.UsedAt = code, read, read
		require.Equal(t, want, got)
	}
	require.Equal(t, 1, stub.Count("DescribeInstances"), "one reading is for all quotas")

	stub.End(stub.Group("metal").IDs()[0], awstest.Interrupted)
	stub.Reap("metal")
	stub.SetQuota("ec2", gQuota, 512)
	got, err := c.Quota(t.Context(), gQuota)
	require.NoError(t, err)
	require.Equal(t, []int{256, 112}, []int{got.Limit, got.Use}, "what is known does for a while")
	stub.Advance(useFor)
	got, err = c.Quota(t.Context(), gQuota)
	require.NoError(t, err)
	require.Equal(t, []int{256, 16}, []int{got.Limit, got.Use})
	stub.Advance(limitFor)
	got, err = c.Quota(t.Context(), gQuota)
	require.NoError(t, err)
	require.Equal(t, []int{512, 16}, []int{got.Limit, got.Use})
}

// The last known values count while AWS cannot be read, and say so.
func TestQuotaThatCannotBeRead(t *testing.T) {
	for action, text := range map[string]string{"GetServiceQuota": "reading quota L-DB2E81BA", "DescribeInstances": "reading the instances that run in us-east-1"} {
		t.Run(action, func(t *testing.T) {
			stub := awstest.NewStub(t)
			stub.SetQuota("ec2", gQuota, 256)
			c := opened(t, stub, Options{})
			denied := func() (remove func()) { return stub.Faults(awstest.Rule{Action: action, Fault: awstest.Deny()}) }

			remove := denied()
			_, err := c.Quota(t.Context(), gQuota)
			require.ErrorIs(t, err, cloud.ErrDenied)
			require.ErrorContains(t, err, text)
			remove()

			first, err := c.Quota(t.Context(), gQuota)
			require.NoError(t, err)
			require.NoError(t, first.Problem)
			stub.Advance(2 * limitFor)
			denied()
			last, err := c.Quota(t.Context(), gQuota)
			require.NoError(t, err)
			require.ErrorIs(t, last.Problem, cloud.ErrDenied)
			require.WithinDuration(t, first.ReadAt, last.ReadAt, time.Minute)
			last.Problem, last.ReadAt, last.UsedAt = nil, first.ReadAt, first.UsedAt
			require.Equal(t, first, last)
		})
	}
}

func TestUnknownQuota(t *testing.T) {
	c := opened(t, awstest.NewStub(t), Options{})
	_, err := c.Quota(t.Context(), "L-0263D0A3")
	require.ErrorIs(t, err, cloud.ErrInvalid)
	require.ErrorContains(t, err, "L-DB2E81BA")
}
