package aws

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Ids have the form of a Node's spec.providerID on EKS, aws:///ZONE/INSTANCE.
// What is no instance has a name there that no instance can have.
var (
	machineForm     = regexp.MustCompile(`^aws:///([a-z0-9-]+)/(i-[0-9a-f]{8,17})$`)
	placeholderForm = regexp.MustCompile(`^aws:///[a-z0-9-]+/i-placeholder-([^/]+)-([0-9]+)$`)
	templateForm    = regexp.MustCompile(`^aws:///template/i-template-([^/]+)$`)
)

func machineID(zone, instance string) string { return "aws:///" + zone + "/" + instance }

func placeholderID(zone, group string, number uint64) string {
	return machineID(zone, "i-placeholder-"+group+"-"+strconv.FormatUint(number, 10))
}

// firstNumber is where a process starts to number its placeholders. The
// microseconds of its start are more than any earlier process can have got to,
// counting up one by one from its own: so no number comes back after a restart,
// although none is kept.
func firstNumber(start time.Time) uint64 { return uint64(max(0, start.UnixMicro())) }

// kind is what an id is the id of, by its form.
type kind int

const (
	kindForeign kind = iota
	kindMachine
	kindPlaceholder
	kindTemplate
)

// parseID takes an id apart: name is the EC2 instance of a machine, and the node
// group of a placeholder or template.
func parseID(id string) (name string, k kind) {
	if m := machineForm.FindStringSubmatch(id); m != nil {
		return m[2], kindMachine
	}
	if m := placeholderForm.FindStringSubmatch(id); m != nil {
		return m[1], kindPlaceholder
	}
	if m := templateForm.FindStringSubmatch(id); m != nil {
		return m[1], kindTemplate
	}
	return "", kindForeign
}

// Recognizes implements cloud.Backend.
func (c *Cloud) Recognizes(instance string) bool {
	_, k := parseID(instance)
	return k != kindForeign
}

// TemplateID implements cloud.Backend.
func (c *Cloud) TemplateID(group string) string {
	return fmt.Sprintf("aws:///template/i-template-%s", group)
}
