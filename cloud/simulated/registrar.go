package simulated

import (
	"hash/fnv"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpu-node-provider/cloud"
)

// ownAnnotation marks the Nodes that were made here; no other is ever deleted.
// It is an annotation and not a label because Cluster Autoscaler compares labels
// of Nodes with those of their template.
const ownAnnotation = "gpu-node-provider.io/simulated"

// machine is a unit that has, or had, a machine.
type machine struct {
	group, name, id string
	state           cloud.State
	gone            bool
	devices         time.Time
}

// machines lists all machines that are remembered, of all groups.
func (c *Cloud) machines() (all []machine, configured map[string]bool, now time.Time, err error) {
	m, order, err := c.look()
	if err != nil {
		return nil, nil, now, err
	}
	now = m.now
	configured = make(map[string]bool, len(order))
	for _, group := range order {
		configured[group] = true
	}
	for group, units := range m.Groups {
		for _, u := range units {
			if u.isPlaceholder(now) {
				continue
			}
			all = append(all, machine{
				group: group, name: machineName(group, u.Serial), id: machineID(group, u.Serial),
				state: u.instance(group, now).State, gone: u.isGone(now), devices: u.Devices,
			})
		}
	}
	return all, configured, now, nil
}

// plan says what is to be done. It calls nothing and, apart from what it
// remembers of each machine, changes nothing.
func (r *registrar) plan(machines []machine, configured map[string]bool, nodes []*corev1.Node, now time.Time) []step {
	byName := make(map[string]*corev1.Node, len(nodes))
	for _, node := range nodes {
		byName[node.Name] = node
	}
	var steps []step
	known, alive := map[string]bool{}, map[string]bool{}
	for _, m := range machines {
		known[m.id] = true
		if !m.gone {
			alive[m.id] = true
			steps = append(steps, r.follow(m, byName[m.name], configured[m.group], now)...)
		}
	}
	maps.DeleteFunc(r.seen, func(id string, _ *sighting) bool { return !alive[id] })
	for _, node := range nodes {
		group, _, k := parseID(node.Spec.ProviderID)
		ours := k == kindMachine && isOwn(node) && (configured[group] || known[node.Spec.ProviderID])
		if ours && !alive[node.Spec.ProviderID] && node.DeletionTimestamp == nil {
			steps = append(steps, r.removeStep(group, node))
		}
	}
	return steps
}

// follow says what is to be done for a machine that is there.
func (r *registrar) follow(m machine, node *corev1.Node, configured bool, now time.Time) []step {
	if node != nil {
		return r.maintain(m, node, now)
	}
	// Nobody can tell what the Node of a group without configuration looks like.
	if m.state == cloud.Running && configured {
		return []step{r.registerStep(m, now)}
	}
	return nil
}

func isOwn(node *corev1.Node) bool {
	_, ok := node.Annotations[ownAnnotation]
	return ok
}

// maintain says what the Node of a machine needs.
func (r *registrar) maintain(m machine, node *corev1.Node, now time.Time) []step {
	if node.Spec.ProviderID != m.id {
		return []step{r.strangerStep(m, node)}
	}
	seen := r.seen[m.id]
	if seen == nil {
		seen = &sighting{nextBeat: now.Add(phase(m.id))}
		r.seen[m.id] = seen
	}
	var steps []step
	if !seen.equipped && !now.Before(m.devices) {
		steps = append(steps, r.equipStep(m, node, seen))
	}
	if r.kubernetes.Heartbeat && !now.Before(seen.nextBeat) {
		seen.nextBeat = now.Add(beatAgain) // unless it succeeds
		steps = append(steps, r.beatStep(m, node, seen, now))
	}
	return steps
}

// phase spreads the beats of many Nodes that were made at the same moment.
func phase(id string) time.Duration {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(id)) // a hash never fails
	return time.Duration(hash.Sum64() % uint64(beatEvery))
}
