package config

import (
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Validate reports every rule that c breaks, as an *Error. Load and Parse have
// called it; it is for configurations that are put together in Go.
func (c *Config) Validate() error {
	return failure("", c.problems().sorted())
}

// validator runs the rules over one configuration. Each rule adds a line of the
// form "what is wrong; what to do", and none looks at what another has found.
type validator struct {
	*problems
	c *Config
}

func (c *Config) problems() *problems {
	v := validator{problems: &problems{}, c: c}
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
	if v.c.APIVersion != APIVersion {
		v.add("apiVersion", "%s is not a version known here; write %s", show(v.c.APIVersion), APIVersion)
	}
	if v.c.Kind != Kind {
		v.add("kind", "%s is not a kind known here; write %s", show(v.c.Kind), Kind)
	}
}

func (v validator) server() {
	s := v.c.Server
	host, _ := v.address("server.address", s.Address, 0)
	v.address("server.httpAddress", s.HTTPAddress, 0)
	if s.TLS != nil {
		v.serverTLS(s.TLS)
	}
	switch {
	case s.TLS != nil && s.Insecure:
		v.add("server.insecure", "asks for plaintext while server.tls asks for TLS; remove one of the two")
	case s.TLS == nil && !s.Insecure && !loopback(host):
		v.add("server.address", "would serve plaintext on %s, which is not loopback; set server.tls, or server.insecure: true to accept it", show(s.Address))
	}
}

func (v validator) serverTLS(t *TLS) {
	for _, f := range []struct{ name, file string }{
		{"certFile", t.CertFile}, {"keyFile", t.KeyFile}, {"clientCAFile", t.ClientCAFile},
	} {
		if f.file == "" {
			v.add("server.tls."+f.name, "is missing; both sides show a certificate here, so write certFile, keyFile and clientCAFile")
		}
	}
	v.eachOnce("server.tls.allowedClients", t.AllowedClients, func(at, client string) {
		if strings.TrimSpace(client) != client || client == "" {
			v.add(at, "%s is no client's name; write its DNS name, URI or common name without spaces around it", show(client))
		}
	})
}

// listeners refuses two ports of ours that are one, which otherwise shows only
// when the second of them opens.
func (v validator) listeners() {
	type listener struct{ field, address string }
	all := []listener{{"server.address", v.c.Server.Address}, {"server.httpAddress", v.c.Server.HTTPAddress}}
	if e := v.c.Redis.Embedded; e != nil {
		all = append(all, listener{"redis.embedded.address", e.Address})
	}
	for i, l := range all {
		for _, earlier := range all[:i] {
			if clash(l.address, earlier.address) {
				v.add(l.field, "%s takes the port of %s; choose another", show(l.address), earlier.field)
			}
		}
	}
}

func clash(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || wildcard(hostA) || wildcard(hostB) || loopback(hostA) && loopback(hostB)
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// address checks host:port and returns the two. Port 0, any free one, makes
// sense only for listening.
func (v validator) address(field, address string, lowest int) (host string, port int) {
	host, text, err := net.SplitHostPort(address)
	port, notNumber := strconv.Atoi(text)
	switch {
	case err != nil || host != "" && !isHost(host):
		v.add(field, "%s is not host:port; write an address such as 127.0.0.1:8086", show(address))
	case notNumber != nil || port < lowest || port > 65535:
		v.add(field, "%s has no port from %d to 65535; write an address such as 127.0.0.1:8086", show(address), lowest)
	}
	return host, port
}

func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || isDNSName(host)
}

func (v validator) kubernetes() {
	k := v.c.Kubernetes
	if k == nil {
		if v.c.Cloud.AWS != nil {
			v.add("kubernetes", "is missing; real nodes are held through the Kubernetes API, so only the simulated cloud does without")
		}
		return
	}
	if !isDNSLabel(k.Namespace) {
		v.add("kubernetes.namespace", "%s is not the name of a namespace; %s", show(k.Namespace), dnsLabelHelp)
	}
}

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

// awsRegion leaves out zones, such as eu-west-1a, which are easily taken for regions.
var awsRegion = regexp.MustCompile(`^[a-z]{2,}(-[a-z]+)+-[0-9]+$`)

func (v validator) aws(a *AWS) {
	if !awsRegion.MatchString(a.Region) {
		v.add("cloud.aws.region", "%s is not a region; write one such as eu-west-1", show(a.Region))
	}
	if a.Endpoint != "" && !isHTTP(a.Endpoint) {
		v.add("cloud.aws.endpoint", "%s is not a URL; write one such as http://127.0.0.1:5000, or remove it to use AWS itself", show(a.Endpoint))
	}
	v.positive("cloud.aws.refreshInterval", a.RefreshInterval)
	switch a.ScaleInProtection {
	case ScaleInManage, ScaleInRequire, ScaleInIgnore:
	default:
		v.add("cloud.aws.scaleInProtection", "%s is not a way to protect instances; write manage, require or ignore", show(a.ScaleInProtection))
	}
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
		v.add("cloud.aws.discovery.tags", "is empty, which would take every Auto Scaling Group of the account; write the tags that ours carry")
	}
	for _, tag := range sortedKeys(d.Tags) {
		// The limits are those of EC2 tags.
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
	groups := v.c.groupIDs()
	for _, id := range sortedKeys(s.Capacity) {
		field := key("cloud.simulated.capacity", id)
		if !groups[id] {
			v.add(field, "is not the id of a node group; correct it, or remove the line")
		}
		if s.Capacity[id] < 0 {
			v.add(field, "%d is negative; write how many machines there are to be had", s.Capacity[id])
		}
	}
}

// launchCodes repeats the codes of package cloud, which this package does not
// import; a test elsewhere holds the two lists together.
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
