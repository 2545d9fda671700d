package aws

import "time"

// PricesAsOf is when the prices were put down. They are from public lists, and
// nobody has held them to an invoice.
var PricesAsOf = time.Date(2026, 8, 17, 0, 0, 0, 0, time.UTC)

// Price is what a machine of a type costs, in US dollars an hour: on demand,
// Linux, in us-east-1, from https://aws.amazon.com/ec2/pricing/on-demand/ as of
// PricesAsOf. Other regions cost up to half as much again, spot mostly less; it
// is for comparing groups, and hourlyPrice in the node group file is for money.
func Price(instanceType string) (perHour float64, known bool) {
	perHour, known = prices[instanceType]
	return perHour, known
}

var prices = map[string]float64{
	"g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.4xlarge": 1.204, "g4dn.8xlarge": 2.176,
	"g4dn.12xlarge": 3.912, "g4dn.16xlarge": 4.352, "g4dn.metal": 7.824,

	"g4ad.xlarge": 0.37853, "g4ad.2xlarge": 0.54117, "g4ad.4xlarge": 0.867, "g4ad.8xlarge": 1.734, "g4ad.16xlarge": 3.468,

	"g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.4xlarge": 1.624, "g5.8xlarge": 2.448,
	"g5.12xlarge": 5.672, "g5.16xlarge": 4.096, "g5.24xlarge": 8.144, "g5.48xlarge": 16.288,

	"g5g.xlarge": 0.42, "g5g.2xlarge": 0.556, "g5g.4xlarge": 0.828, "g5g.8xlarge": 1.372, "g5g.16xlarge": 2.744, "g5g.metal": 2.744,

	"g6.xlarge": 0.8048, "g6.2xlarge": 0.9776, "g6.4xlarge": 1.3232, "g6.8xlarge": 2.0144,
	"g6.12xlarge": 4.6016, "g6.16xlarge": 3.3968, "g6.24xlarge": 6.6752, "g6.48xlarge": 13.3504,
	"gr6.4xlarge": 1.5392, "gr6.8xlarge": 2.4464,

	"g6e.xlarge": 1.861, "g6e.2xlarge": 2.24208, "g6e.4xlarge": 3.00424, "g6e.8xlarge": 4.52856,
	"g6e.12xlarge": 10.49264, "g6e.16xlarge": 7.57719, "g6e.24xlarge": 15.06559, "g6e.48xlarge": 30.13118,

	"g7e.2xlarge": 3.3631, "g7e.4xlarge": 3.9982, "g7e.8xlarge": 5.2682,
	"g7e.12xlarge": 8.2861, "g7e.24xlarge": 16.5722, "g7e.48xlarge": 33.1443,

	"p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "p3.16xlarge": 24.48, "p3dn.24xlarge": 31.212,

	"p4d.24xlarge": 21.957642, "p4de.24xlarge": 27.44705,

	"p5.4xlarge": 6.88, "p5.48xlarge": 55.04, "p5en.48xlarge": 63.296,

	"p6-b200.48xlarge": 113.9328,
}

// dearest is the price of the dearest type; nil when one is not known.
func dearest(types []string) *float64 {
	var most *float64
	for _, t := range types {
		price, known := Price(t)
		if !known {
			return nil
		}
		if most == nil || price > *most {
			most = &price
		}
	}
	return most
}
