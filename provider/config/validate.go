package config

import (
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Validate returns an *Error with every rule that c breaks, or nil. Load and Parse
// call it already; it serves configurations built in Go.
func (c *Config) Validate() error {
	return failure("", c.problems().sorted())
}

// validator runs the rules on one configuration. Each rule adds a message of the form
// "what is wrong; what to do", and no rule depends on the findings of another.
type validator struct {
	*problems
	c   *Config
	ids map[string]bool // ids of the node groups
}

func (c *Config) problems() *problems {
	v := validator{problems: &problems{}, c: c, ids: map[string]bool{}}
	for _, g := range c.NodeGroups {
		v.ids[g.ID] = true
	}
	v.header()
	v.server()
	v.listeners()
	v.kubernetes()
	v.cloud()
	v.redis()
	v.gpuLabelKey()
	v.checkpoint()
	v.groups()
	v.quotas()
	return v.problems
}

func (v validator) header() {
	v.expect("apiVersion", v.c.APIVersion, v.c.APIVersion == APIVersion, "a supported version", "write "+APIVersion)
	v.expect("kind", v.c.Kind, v.c.Kind == Kind, "a supported kind", "write "+Kind)
}

func (v validator) server() {
	s := v.c.Server
	v.listenAddress("server.address", s.Address)
	v.listenAddress("server.httpAddress", s.HTTPAddress)
	if s.TLS != nil {
		v.serverTLS(s.TLS)
	}
	if s.WebhookAddress != "" {
		v.listenAddress("server.webhookAddress", s.WebhookAddress)
		if s.TLS == nil {
			v.add("server.webhookAddress", "needs server.tls, since the API server calls webhooks over TLS only; set it, or remove the address")
		}
		if v.c.Kubernetes == nil {
			v.add("server.webhookAddress", "needs a kubernetes section, since the API server calls it; write one, or remove the address")
		}
	}
	switch {
	case s.TLS != nil && s.Insecure:
		v.add("server.insecure", "enables plaintext while server.tls enables TLS; remove one of the two")
	case s.TLS == nil && !s.Insecure && exposed(s.Address):
		v.addFrom([]string{"server.insecure"}, "server.address", "would serve plaintext on %s, which is not loopback; set server.tls, or server.insecure: true to accept it", show(s.Address))
	}
}

func (v validator) serverTLS(t *TLS) {
	for _, f := range []struct{ name, file string }{
		{"certFile", t.CertFile}, {"keyFile", t.KeyFile}, {"clientCAFile", t.ClientCAFile},
	} {
		if f.file == "" {
			v.add("server.tls."+f.name, "is missing; mutual TLS needs certFile, keyFile and clientCAFile")
		}
	}
	v.eachOnce("server.tls.allowedClients", t.AllowedClients, func(at, client string) {
		if strings.TrimSpace(client) != client || client == "" {
			v.add(at, "%s is not a client name; write its DNS name, URI or common name without spaces around it", show(client))
		} else if strings.Contains(client, "*") {
			v.add(at, "%s has a wildcard, but names are compared literally; write every name, or an empty list to allow all clients of the CA", show(client))
		}
	})
}

// listeners rejects two listeners on one port, which would otherwise fail only when
// the second one opens.
func (v validator) listeners() {
	type listener struct{ field, address string }
	all := []listener{{"server.address", v.c.Server.Address}, {"server.httpAddress", v.c.Server.HTTPAddress}}
	if v.c.Server.WebhookAddress != "" {
		all = append(all, listener{"server.webhookAddress", v.c.Server.WebhookAddress})
	}
	if e := v.c.Redis.Embedded; e != nil {
		all = append(all, listener{"redis.embedded.address", e.Address})
	}
	for i, l := range all {
		for _, earlier := range all[:i] {
			if clash(l.address, earlier.address) {
				v.add(l.field, "%s uses the same port as %s; choose another", show(l.address), earlier.field)
			}
		}
	}
}

func clash(a, b string) bool {
	hostA, portA, okA := hostPort(a)
	hostB, portB, okB := hostPort(b)
	if !okA || !okB || portA != portB || portA == 0 {
		return false
	}
	same := hostA == hostB || hostA == "localhost" && loopback(hostB) || hostB == "localhost" && loopback(hostA)
	return same || wildcard(hostA) || wildcard(hostB)
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// exposed reports whether other machines can reach the address. It returns false for
// a malformed address, which listenAddress reports.
func exposed(address string) bool {
	host, _, ok := hostPort(address)
	return ok && !loopback(host)
}

// listenAddress checks a listen address. An empty host means all interfaces, and port 0 any
// free port.
func (v validator) listenAddress(field, address string) {
	_, _, ok := hostPort(address)
	v.expect(field, address, ok, "host:port with a port up to 65535", "write an address such as 127.0.0.1:8086")
}

func hostPort(address string) (host string, port uint64, ok bool) {
	host, text, err := net.SplitHostPort(address)
	port, notNumber := strconv.ParseUint(text, 10, 16)
	return host, port, err == nil && notNumber == nil && (host == "" || isHost(host))
}

// hostName is looser than DNS, since names in container networks may contain '_'.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || hostName.MatchString(host)
}

func (v validator) kubernetes() {
	k := v.c.Kubernetes
	if k == nil {
		if v.onAWS() {
			v.add("kubernetes", "is missing; nodes on AWS are held through the Kubernetes API; only the simulated cloud runs without one")
		}
		return
	}
	v.expect("kubernetes.namespace", k.Namespace, isDNSLabel(k.Namespace), "the name of a namespace", dnsLabelHelp)
}

// onAWS and onSimulated are both false while the file names no cloud or both, so that
// rules of one cloud do not apply.
func (v validator) onAWS() bool       { return v.c.Cloud.AWS != nil && v.c.Cloud.Simulated == nil }
func (v validator) onSimulated() bool { return v.c.Cloud.Simulated != nil && v.c.Cloud.AWS == nil }

func (v validator) cloud() {
	switch aws, simulated := v.c.Cloud.AWS, v.c.Cloud.Simulated; {
	case aws == nil && simulated == nil:
		v.add("cloud", "names no cloud; write aws or simulated below it")
	case aws != nil && simulated != nil:
		v.add("cloud", "names two clouds; keep aws or simulated")
	case aws != nil:
		v.aws(aws)
	default:
		v.simulated(simulated)
	}
}

// awsRegion does not match zones such as eu-west-1a, a common mistake.
var awsRegion = regexp.MustCompile(`^[a-z]{2,}(-[a-z]+)+-[0-9]+$`)

// clusterName matches the rest of a tag's key of at most 128 characters. The names of EKS have
// no dots, those of other tools may.
var clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func (v validator) aws(a *AWS) {
	v.expect("cloud.aws.region", a.Region, awsRegion.MatchString(a.Region), "a region", "write one such as eu-west-1")
	if a.Endpoint != "" && !isHTTP(a.Endpoint) {
		v.add("cloud.aws.endpoint", "%s is not a URL; write one such as http://127.0.0.1:5000, or remove it to use AWS itself", show(a.Endpoint))
	}
	v.expect("cloud.aws.cluster", a.Cluster, a.Cluster == "" || clusterName.MatchString(a.Cluster) && a.Cluster != "enabled",
		"the name of a cluster in tags", "write NAME of the tag k8s.io/cluster-autoscaler/NAME or kubernetes.io/cluster/NAME")
	v.positive("cloud.aws.refreshInterval", a.RefreshInterval)
	p := a.ScaleInProtection
	v.expect("cloud.aws.scaleInProtection", string(p), p == ScaleInManage || p == ScaleInRequire || p == ScaleInIgnore,
		"a scale-in protection mode", "write manage, require or ignore")
	if a.Discovery != nil {
		v.discovery(a.Discovery)
	}
}

func isHTTP(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func (v validator) discovery(d *Discovery) {
	if len(d.Tags) == 0 {
		v.add("cloud.aws.discovery.tags", "is empty, which would discover every Auto Scaling Group of the account; write the tags that yours carry")
	}
	for _, tag := range sortedKeys(d.Tags) {
		// The limits of EC2 tags.
		if tag == "" || len([]rune(tag)) > 128 || len([]rune(d.Tags[tag])) > 256 {
			v.add(key("cloud.aws.discovery.tags", tag), "is not a tag; use up to 128 letters for the key and 256 for the value")
		}
	}
}

func (v validator) simulated(s *Simulated) {
	v.notNegative("cloud.simulated.launchDelay", s.LaunchDelay)
	v.notNegative("cloud.simulated.bootDelay", s.BootDelay)
	v.notNegative("cloud.simulated.devicePluginDelay", s.DevicePluginDelay)
	v.notNegative("cloud.simulated.terminateDelay", s.TerminateDelay)
	v.notNegative("cloud.simulated.api.latency", s.API.Latency)
	v.share("cloud.simulated.launchErrors.rate", s.LaunchErrors.Rate)
	v.share("cloud.simulated.api.errorRate", s.API.ErrorRate)
	v.share("cloud.simulated.api.lostAnswerRate", s.API.LostAnswerRate)
	v.launchCode(s.LaunchErrors.Code)
	for _, id := range sortedKeys(s.Capacity) {
		field := key("cloud.simulated.capacity", id)
		if v.unknown(id) {
			v.add(field, "is not the id of a node group; correct it, or remove the line")
		}
		if s.Capacity[id] < 0 {
			v.add(field, "%d is negative; write how many instances can be launched", s.Capacity[id])
		}
	}
}

// unknown reports whether no group has the id. It returns false while the id of a group
// is missing, since that group may be the one meant.
func (v validator) unknown(id string) bool {
	return len(v.ids) > 0 && !v.ids[""] && !v.ids[id]
}

// LaunchCodes returns the valid values of cloud.simulated.launchErrors.code.
func LaunchCodes() []string { return slices.Clone(launchCodes) }

// launchCodes repeats the codes of package cloud, which this package does not import.
// A test in cmd/gpu-node-provider compares the two lists.
var launchCodes = []string{
	"InsufficientInstanceCapacity",
	"MaxSpotInstanceCountExceeded",
	"VcpuLimitExceeded",
	"UnfulfillableCapacity",
	"Unsupported",
	"InsufficientFreeAddressesInSubnet",
	"LaunchTemplateError",
	"Other",
}
