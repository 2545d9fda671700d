package aws

// Permissions are the IAM actions that this package calls, sorted: a policy that
// lacks one breaks what is said beside it, and one that has more gives away too
// much. Launching is not here: AWS does that with the service-linked role of
// Auto Scaling.
var Permissions = []Permission{
	{Action: "autoscaling:DescribeAutoScalingGroups", Use: "sizes and instances of the groups; required for everything else"},
	{Action: "autoscaling:DescribeAutoScalingInstances", Use: "distinguishing deleted instances from unknown ones, and confirming terminations"},
	{Action: "autoscaling:DescribeInstanceRefreshes", Use: "doctor: instance refreshes, which replace instances"},
	{Action: "autoscaling:DescribeLaunchConfigurations", Use: "the instance type of a group without a launch template"},
	{Action: "autoscaling:DescribePolicies", Use: "doctor: scaling policies that change a group's size"},
	{Action: "autoscaling:DescribeScalingActivities", Use: "reasons why an instance does not launch"},
	{Action: "autoscaling:DescribeScheduledActions", Use: "doctor: scheduled actions that change a group's size"},
	{Action: "autoscaling:SetDesiredCapacity", Use: "increasing groups, and cancelling placeholders", Changes: true},
	{Action: "autoscaling:SetInstanceProtection", Use: "scaleInProtection: manage", Changes: true},
	{Action: "autoscaling:TerminateInstanceInAutoScalingGroup", Use: "deleting nodes", Changes: true},
	{Action: "autoscaling:UpdateAutoScalingGroup", Use: "scaleInProtection: manage", Changes: true},
	{Action: "ec2:DescribeInstanceTypes", Use: "CPUs, memory and GPUs of a type"},
	{Action: "ec2:DescribeInstances", Use: "launch times, instances that are gone, and the use of vCPU quotas"},
	{Action: "ec2:DescribeLaunchTemplateVersions", Use: "the instance type of a launch template"},
	{Action: "eks:DescribeNodegroup", Use: "labels and taints of EKS managed node groups"},
	{Action: "servicequotas:GetAWSDefaultServiceQuota", Use: "awsServiceQuota, where the account has no applied value"},
	{Action: "servicequotas:GetServiceQuota", Use: "awsServiceQuota"},
}

// Permission is one IAM action.
type Permission struct {
	// Action is as in a policy: service:Action.
	Action string
	// Use is what it is for.
	Use string
	// Changes is true for actions that change something; a policy can bind
	// those to groups with a tag. The others cannot be bound to a resource.
	Changes bool
}
