package aws

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// PricesAsOf is the day of the price list.
const PricesAsOf = "2026-01-21"

// priceList names its sources, and what it lacks, in its first lines. Nothing compares it
// with an invoice. Spot, Savings Plans and capacity blocks cost something else, so
// hourlyPrice in the node group file wins over it.
//
//go:embed prices.csv
var priceList string

type priced struct{ instanceType, region string }

// prices parses the list on first use.
var prices = sync.OnceValue(func() map[priced]float64 {
	all := map[priced]float64{}
	for line := range strings.Lines(priceList) {
		fields := strings.Split(strings.TrimSpace(line), ",")
		if strings.HasPrefix(line, "#") || len(fields) != 3 {
			continue
		}
		if price, err := strconv.ParseFloat(fields[2], 64); err == nil { // a test reads every line
			all[priced{fields[0], fields[1]}] = price
		}
	}
	return all
})

// Price returns the on-demand list price of a type in a region, in US dollars an hour as
// of PricesAsOf. It is not known where the list has no price for the region: those of
// other regions differ by up to two thirds.
func Price(instanceType, region string) (perHour float64, known bool) {
	perHour, known = prices()[priced{instanceType, region}]
	return perHour, known
}

// dearest returns the price of the dearest type with its source; nil when that of one type
// is not known.
func dearest(types []string, region string) (most *float64, source string) {
	for _, t := range types {
		price, known := Price(t, region)
		if !known {
			return nil, ""
		}
		if most == nil || price > *most {
			most, source = &price, fmt.Sprintf("list price of %s in %s on %s", t, region, PricesAsOf)
		}
	}
	return most, source
}
