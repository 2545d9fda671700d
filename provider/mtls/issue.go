package mtls

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func newKey() (*ecdsa.PrivateKey, error) {
	// Every TLS library supports P-256, and signing is fast.
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func newAuthority(now time.Time, validity time.Duration) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{service}, CommonName: service + " CA"},
		NotBefore:             now.Add(-clockSkew), // for a peer whose clock is behind
		NotAfter:              now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate: certificate, key: key}, nil
}

// issue signs the template for a new key and returns both as PEM.
func (a *authority) issue(template *x509.Certificate) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return encodeCertificate(der), keyPEM, err
}

// templates returns the templates of the two pairs. Both names are subject alternative
// names, since Go, and so Cluster Autoscaler, ignores the CN of a server. Each is valid
// for its own side only, so that a leaked server pair gives no access as a client.
func templates(opts GenerateOptions, now, expiry time.Time) (server, client *x509.Certificate, err error) {
	template := func(usage x509.ExtKeyUsage) *x509.Certificate {
		return &x509.Certificate{
			Subject:               pkix.Name{Organization: []string{service}},
			NotBefore:             now.Add(-clockSkew),
			NotAfter:              expiry,
			KeyUsage:              x509.KeyUsageDigitalSignature,
			ExtKeyUsage:           []x509.ExtKeyUsage{usage},
			BasicConstraintsValid: true,
		}
	}
	server, client = template(x509.ExtKeyUsageServerAuth), template(x509.ExtKeyUsageClientAuth)
	server.Subject.CommonName = service
	return server, client, errors.Join(addServerNames(server, opts.ServerNames), addClientName(client, opts.ClientName))
}

func addServerNames(template *x509.Certificate, names []string) error {
	var errs []error
	for _, name := range names {
		ip := net.ParseIP(name)
		switch {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case isDNSName(strings.TrimPrefix(name, "*.")):
			template.DNSNames = append(template.DNSNames, name)
		default:
			errs = append(errs, fmt.Errorf("server name %q is neither a DNS name nor an IP address: write the host alone, without port or scheme", name))
		}
	}
	return errors.Join(errs...)
}

// maxCommonName is the limit of X.520; OpenSSL rejects a longer CN.
const maxCommonName = 64

func addClientName(template *x509.Certificate, name string) error {
	if isDNSName(name) {
		template.DNSNames = []string{name}
		if len(name) <= maxCommonName {
			template.Subject.CommonName = name
		}
		return nil
	}
	uri, err := url.Parse(name)
	if err != nil || !isURI(name) || uri.String() != name {
		return fmt.Errorf("client name %q is neither a DNS name nor a URI such as spiffe://example.org/cluster-autoscaler", name)
	}
	template.URIs = []*url.URL{uri}
	return nil
}

var dnsName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)

func isDNSName(name string) bool { return len(name) <= 253 && dnsName.MatchString(name) }

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateKeyBlock, Bytes: der}), nil
}
