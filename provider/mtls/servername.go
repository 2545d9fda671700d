package mtls

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"gpu-node-provider/provider/reload"
)

// CheckServerName returns an error when clients that dial address, host or host:port,
// reject the certificate in certFile. Cluster Autoscaler verifies the host part of
// `address` in its cloud-config; on a mismatch each of its calls fails with
// Unavailable, and only its own log contains the reason.
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
		return errors.New("the address has no host part, so Cluster Autoscaler cannot verify a certificate for it")
	}
	if chain[0].VerifyHostname(host) == nil {
		return nil
	}
	return fmt.Errorf("certificate file %s is not valid for %q but for %s: dial one of those, or issue the certificate again with the name %q",
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
		return "no name (it has no subject alternative name, and clients ignore the CN)"
	}
	return strings.Join(names, ", ")
}

// sans returns the DNS names and IP addresses that the certificate is valid for.
func sans(certificate *x509.Certificate) []string {
	names := append([]string(nil), certificate.DNSNames...)
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}
