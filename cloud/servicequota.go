package cloud

import "time"

// ServiceQuota is a quota that the cloud keeps for a whole account and region, in vCPUs.
type ServiceQuota struct {
	// Code is the cloud's own name of the quota.
	Code string
	// Limit and Use are vCPUs. Use counts every instance in the account and region that
	// falls under the quota, the provider's and others', until it is gone.
	Limit, Use int
	// Source names the service that Limit was read from, for a person.
	Source string
	// ReadAt is when the older of the two was read, UsedAt when Use was.
	ReadAt, UsedAt time.Time
	// Problem is why the values are not newer; nil when they are as new as a reading gets.
	Problem error
}
