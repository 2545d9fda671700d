package aws

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

// A machine carries its type, zone, market and list price; spot machines have no list price.
func TestInstanceTypeZoneMarketAndPrice(t *testing.T) {
	for market, price := range map[cloud.Market]float64{cloud.OnDemand: 0.526, cloud.Spot: 0} {
		g := awstest.Group{Desired: 1, InstanceType: "g4dn.xlarge"}
		if market == cloud.Spot {
			g.Overrides = []awstest.Override{{InstanceType: "g4dn.xlarge"}}
		}
		c, _ := one(t, g, Options{})
		i := get(t, c).Instances[0]
		require.Equal(t, "g4dn.xlarge", i.Type)
		require.Equal(t, "us-east-1a", i.Zone)
		require.Equal(t, market, i.Market)
		require.InDelta(t, price, i.HourlyPrice, 1e-9)
	}
}
