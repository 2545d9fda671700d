package mtls

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// ErrNotAllowed: no name of the client certificate is in the list of allowed clients.
// Retrying does not help.
var ErrNotAllowed = errors.New("client not allowed")

// maxNamesShown bounds the names in an error, since a certificate may have thousands.
const maxNamesShown = 5

// clients is the list of allowed clients; nil allows all.
//
// An entry that is a URI (it contains "://" or begins with "urn:"), such as a SPIFFE
// id, is compared with URI SANs only, byte for byte. Any other entry is compared with
// DNS SANs, ignoring case, and with the CN. The CN counts even beside SANs, because
// many CAs put a client's name only there and add another kind of SAN; a CA that lets
// clients choose their CN must not be the client CA. A CN is never compared with a URI
// entry, so that it cannot impersonate a SPIFFE id.
type clients []string

func newClients(allowed []string) (clients, error) {
	var errs []error
	for i, name := range allowed {
		switch {
		case name == "" || strings.TrimSpace(name) != name:
			errs = append(errs, fmt.Errorf("allowed client %d (%q) is empty or has spaces around it: write the name as in the certificate", i+1, name))
		case strings.Contains(name, "*"):
			errs = append(errs, fmt.Errorf("allowed client %q has a wildcard: write every name, or an empty list to allow all clients of the CA", name))
		}
	}
	return slices.Clone(allowed), errors.Join(errs...)
}

func isURI(name string) bool {
	return strings.Contains(name, "://") || strings.HasPrefix(name, "urn:")
}

func (c clients) allow(certificate *x509.Certificate) bool {
	return len(c) == 0 || slices.ContainsFunc(c, func(name string) bool {
		if isURI(name) {
			return slices.Contains(uris(certificate), name)
		}
		return certificate.Subject.CommonName == name ||
			slices.ContainsFunc(certificate.DNSNames, func(dns string) bool { return strings.EqualFold(dns, name) })
	})
}

// Authorize returns nil for an allowed client, else an error that wraps ErrNotAllowed
// and lists the names in the client certificate. ctx is the context of an RPC.
func (s *Server) Authorize(ctx context.Context) error {
	certificate := callerCertificate(ctx)
	if certificate == nil {
		s.metrics.clientsRefused.WithLabelValues(refusedNoCertificate).Inc()
		return fmt.Errorf("%w: the connection has no verified client certificate", ErrNotAllowed)
	}
	if !s.clients.allow(certificate) {
		s.metrics.clientsRefused.WithLabelValues(refusedNotListed).Inc()
		return fmt.Errorf("%w: none of the names in the client certificate (%s) is in allowedClients", ErrNotAllowed, names(certificate))
	}
	return nil
}

// callerCertificate returns the client's verified certificate, or nil.
func callerCertificate(ctx context.Context) *x509.Certificate {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

func uris(certificate *x509.Certificate) []string {
	names := make([]string, len(certificate.URIs))
	for i, uri := range certificate.URIs {
		names[i] = uri.String()
	}
	return names
}

// names lists the names that allowedClients is compared with, in the form to copy.
func names(certificate *x509.Certificate) string {
	all := slices.Concat(uris(certificate), certificate.DNSNames)
	if cn := certificate.Subject.CommonName; cn != "" && !slices.Contains(all, cn) {
		all = append(all, cn)
	}
	if len(all) == 0 {
		return "it has none"
	}
	more := ""
	if len(all) > maxNamesShown {
		more = fmt.Sprintf(" and %d more", len(all)-maxNamesShown)
		all = all[:maxNamesShown]
	}
	quoted := make([]string, len(all))
	for i, name := range all {
		quoted[i] = fmt.Sprintf("%.100q", name)
	}
	return strings.Join(quoted, ", ") + more
}
