package mtls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"gpu-node-provider/provider/reload"
)

// CheckServerName tells whether clients that dial address, host or host:port,
// would accept the certificate in certFile for it. Cluster Autoscaler compares
// the host part of `address` in its cloud-config, and nothing else; when they
// differ, its every call fails as Unavailable and its log has the only clue.
func CheckServerName(certFile, address string) error {
	data, err := reload.ReadFile(certFile)
	if err != nil {
		return fmt.Errorf("certificate file %s: %w", certFile, explain(err))
	}
	chain, err := parseCertificates(data)
	if err != nil {
		return about("certificate file", certFile, err)
	}
	host := hostOf(address)
	if host == "" {
		return errors.New("the address has no host part: Cluster Autoscaler could not verify any certificate for it")
	}
	if chain[0].VerifyHostname(host) == nil {
		return nil
	}
	return fmt.Errorf("certificate file %s does not serve %q but %s: dial one of those, or issue the certificate again with %q among its names",
		certFile, host, serverNames(chain[0]), host)
}

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]") // an IPv6 address without a port
}

func serverNames(certificate *x509.Certificate) string {
	names := sans(certificate)
	if len(names) == 0 {
		return "no name at all (it has no subject alternative name, and the CN does not count)"
	}
	return strings.Join(names, ", ")
}

// sans are the names that a client may dial.
func sans(certificate *x509.Certificate) []string {
	names := append([]string(nil), certificate.DNSNames...)
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}
