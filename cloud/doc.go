// Package cloud is the seam between the provider and what really owns
// machines. It holds the vocabulary (Group, Instance, State), the classes of
// error a caller acts on, and the contract that every Backend keeps.
//
// It does not know Cluster Autoscaler, gRPC, quotas or Kubernetes objects:
// those are the business of the packages that use it. Nor does it know a cloud: AWS is in
// cloud/aws, and cloud/simulated buys nothing.
//
// # How other clouds fit
//
// None of these is built. What each would have to map, by its own documents:
//
// Managed instance groups of Google Compute Engine
// (https://cloud.google.com/compute/docs/instance-groups/working-with-managed-instances).
// Target is targetSize. Increase is resize to an absolute size, as on AWS. A unit has a name
// as soon as it is asked for: listManagedInstances lists it as CREATING, with the errors of its
// last attempt, before the machine is there. So a failed launch is an Instance in state
// Creating that has an Error and is no Placeholder, or a Placeholder whose id is that name.
// Cancel and Delete are both deleteInstances, which names instances and lowers targetSize by
// as many: nothing can arrive in place of what is cancelled, and no protection is needed.
// CREATING_WITHOUT_RETRIES lowers targetSize by itself when a launch fails, so a group must
// not use it, or the Error would go before Cluster Autoscaler has read it.
//
// Virtual machine scale sets of Azure
// (https://learn.microsoft.com/en-us/rest/api/compute/virtual-machine-scale-sets).
// Target is sku.capacity, Increase sets it, and Delete is Delete Instances by id, which
// lowers it. A machine whose provisioningState is Failed stays in the set, counts in its
// capacity and has an id: it is an Instance in state Creating with an Error, and Delete, not
// Cancel, ends it. Overprovisioning launches more machines than asked for and deletes the
// surplus, which no picture could tell from a loss; a Backend refuses a set that has it on, in
// Group.Problem.
//
// Cluster API
// (https://cluster-api.sigs.k8s.io/tasks/automated-machine-management/scaling).
// Target is spec.replicas of a MachineDeployment. Each unit is a Machine object at once, and
// one without spec.providerID is a Placeholder; its conditions tell a failed launch. Delete
// and Cancel mark Machines with the annotation cluster.x-k8s.io/delete-machine, which go
// first under every deletion policy, and then lower spec.replicas: two writes, so what was
// marked and not yet lowered is Unsettled. The resourceVersion of the update takes the place
// of the absolute value, since a conflict shows that another client changed the number.
package cloud
