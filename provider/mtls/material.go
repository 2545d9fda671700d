package mtls

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"gpu-node-provider/provider/reload"
)

// clockSkew is the tolerated difference between the clocks of CA and server. Without
// it, a certificate that becomes valid in a few seconds would stay rejected until its
// file changes again.
const clockSkew = 5 * time.Minute

// files are the paths of the three TLS files.
type files struct{ cert, key, clientCA string }

func (f files) paths() []string { return []string{f.cert, f.key, f.clientCA} }

// read returns the readable files beside the error, so that New also validates those.
func (f files) read() (reload.Contents, error) {
	contents := reload.Contents{}
	var errs []error
	for _, file := range []struct{ role, path string }{
		{"certificate file", f.cert}, {"key file", f.key}, {"client CA file", f.clientCA},
	} {
		if file.path == "" {
			errs = append(errs, fmt.Errorf("no %s is set: mutual TLS needs a certificate, its key and the CA of the clients", file.role))
			continue
		}
		data, err := reload.ReadFile(file.path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", file.role, file.path, explain(err)))
			continue
		}
		contents[file.path] = data
	}
	return contents, errors.Join(errs...)
}

// explain adds the remedy to an error of reading a file.
func explain(err error) error {
	cause := err
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		cause = pathError.Err // the caller adds the path
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: correct the path, mount the Secret, or create the files with `gpu-node-provider certs`", cause)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: make it readable for the user of the process (in Kubernetes: securityContext.fsGroup)", cause)
	default:
		return fmt.Errorf("cannot be read: %w", cause)
	}
}

// material is a valid set of files, ready for handshakes.
type material struct {
	config         *tls.Config
	leaf           *x509.Certificate
	expiry         time.Time // earliest expiry in the server's chain
	clientCAExpiry time.Time // latest expiry of the client CAs; no client connects after it
}

// material validates a set. errRead is the error for files missing from contents; the
// others are validated all the same, so that every problem is reported at once.
func (f files) material(contents reload.Contents, errRead error, now func() time.Time) (*material, error) {
	errs := []error{errRead}
	var chain, authorities []*x509.Certificate
	var key crypto.Signer
	if data, ok := contents[f.cert]; ok {
		var err error
		if chain, err = parseCertificates(data); err == nil {
			err = checkServing(chain[0], now())
		}
		errs = append(errs, about("certificate file", f.cert, err))
	}
	if data, ok := contents[f.key]; ok {
		var err error
		if key, err = parseKey(data); err == nil && chain != nil && !belongs(key, chain[0]) {
			err = fmt.Errorf("is not the key of the certificate in %s: use a matching pair, with the server's certificate first in its file", f.cert)
		}
		errs = append(errs, about("key file", f.key, err))
	}
	if data, ok := contents[f.clientCA]; ok {
		var err error
		if authorities, err = parseCertificates(data); err == nil {
			err = checkAuthorities(authorities, now())
		}
		errs = append(errs, about("client CA file", f.clientCA, err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return assemble(chain, key, authorities, now), nil
}

func about(role, path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %w", role, path, err)
}

func assemble(chain []*x509.Certificate, key crypto.Signer, authorities []*x509.Certificate, now func() time.Time) *material {
	certificate := tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		certificate.Certificate = append(certificate.Certificate, c.Raw)
	}
	pool := x509.NewCertPool()
	for _, c := range authorities {
		pool.AddCert(c)
	}
	byExpiry := func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }
	return &material{
		leaf:           chain[0],
		expiry:         slices.MinFunc(chain, byExpiry).NotAfter,
		clientCAExpiry: slices.MaxFunc(authorities, byExpiry).NotAfter,
		config: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{certificate},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    pool,
			NextProtos:   []string{"h2"},
			Time:         now,
			// A resumed session would keep the old certificate and skip the new client
			// CA. Cluster Autoscaler keeps one connection for hours, so resumption
			// saves nothing.
			SessionTicketsDisabled: true,
		},
	}
}

func (m *material) serial() string { return m.leaf.SerialNumber.Text(16) }

// checkServing returns the reason for which every client would reject the certificate.
func checkServing(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("expired at %s, so no client accepts it: renew it with the same CA", stamp(leaf.NotAfter))
	case leaf.NotBefore.After(now.Add(clockSkew)):
		return fmt.Errorf("is not valid before %s: check the clocks of this machine and of the CA", stamp(leaf.NotBefore))
	case len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0:
		return errors.New("has no DNS name or IP address as subject alternative name, and clients ignore the CN: issue it again with the host part of the address in Cluster Autoscaler's cloud-config")
	case !mayServe(leaf):
		return errors.New("lacks the extended key usage `server auth`: issue it again with that usage")
	}
	return nil
}

func mayServe(leaf *x509.Certificate) bool {
	if len(leaf.ExtKeyUsage) == 0 && len(leaf.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.ContainsFunc(leaf.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool {
		return usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny
	})
}

// checkAuthorities rejects a file of expired certificates only. During a rotation of
// the client CA, an expired certificate beside a valid one is normal.
func checkAuthorities(authorities []*x509.Certificate, now time.Time) error {
	for _, c := range authorities {
		if !now.After(c.NotAfter) {
			return nil
		}
	}
	return fmt.Errorf("contains only expired certificates, the first expired at %s, so no client can connect: renew it", stamp(authorities[0].NotAfter))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
