package aws

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCP04PricesAreOfTheRegion: a price is one of the list for that region, or there is none.
func TestCP04PricesAreOfTheRegion(t *testing.T) {
	for _, row := range []struct {
		instanceType, region string
		price                float64 // 0 when it is not known
	}{
		{"g4dn.xlarge", "us-east-1", 0.526},
		{"p5.48xlarge", "us-east-1", 55.04},
		{"p5.48xlarge", "sa-east-1", 92.4672},
		{"p5en.48xlarge", "eu-north-1", 67.72672},
		{"p6-b300.48xlarge", "us-west-2", 142.416},
		{"p6-b300.48xlarge", "us-east-1", 0},
		{"p5e.48xlarge", "us-east-1", 0},
		{"m5.large", "us-east-1", 0},
		{"g4dn.xlarge", "", 0},
	} {
		price, known := Price(row.instanceType, row.region)
		require.Equal(t, row.price > 0, known, "%+v", row)
		require.InDelta(t, row.price, price, 0, "%+v", row)
	}
	price, source := dearest([]string{"g4dn.xlarge", "g5.xlarge"}, "eu-west-1")
	require.InDelta(t, 1.123, *price, 0)
	require.Equal(t, "list price of g5.xlarge in eu-west-1 on "+PricesAsOf, source)
	price, _ = dearest([]string{"g4dn.xlarge", "p5e.48xlarge"}, "eu-west-1")
	require.Nil(t, price, "a budget cannot hold with one unknown")
}

// TestPriceListIsRead: every line counts, each type and region is there once, and the date
// is that of the list.
func TestPriceListIsRead(t *testing.T) {
	row := regexp.MustCompile(`^[a-z0-9-]+\.[a-z0-9-]+,[a-z]{2}(-gov)?-[a-z]+-[0-9],[0-9.]+$`)
	n := 0
	for line := range strings.Lines(priceList) {
		if !strings.HasPrefix(line, "#") {
			require.Regexp(t, row, strings.TrimSpace(line))
			n++
		}
	}
	require.Len(t, prices(), n)
	require.Contains(t, strings.SplitN(priceList, "\n", 2)[0], "as of "+PricesAsOf)
	for of, price := range prices() {
		require.Greater(t, price, 0.1, "%+v", of)
		require.Less(t, price, 200.0, "%+v", of)
	}
}
