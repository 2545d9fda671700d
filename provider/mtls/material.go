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

// clockSkew is how far into the future a certificate may begin and still be
// taken. Authority and server are different machines, and their clocks differ;
// a certificate refused for a few seconds would be out of use until the next
// change of its file.
const clockSkew = 5 * time.Minute

// files are the three paths.
type files struct{ cert, key, clientCA string }

func (f files) paths() []string { return []string{f.cert, f.key, f.clientCA} }

// read reads what can be read, so that New can judge the other files as well.
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

// explain turns the error of reading a file into what to do about it.
func explain(err error) error {
	cause := err
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		cause = pathError.Err // the path is named already
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: correct the path, mount the Secret that holds it, or make a set with `gpu-node-provider certs`", cause)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: let the user that the server runs as read it (in Kubernetes: securityContext.fsGroup)", cause)
	default:
		return fmt.Errorf("cannot be read: %w", cause)
	}
}

// material is one good set of files, ready for handshakes.
type material struct {
	config         *tls.Config
	leaf           *x509.Certificate
	expiry         time.Time // of the first to expire in the server's chain
	clientCAExpiry time.Time // of the last to expire: no client gets in after it
}

// material judges a set. errRead is why some files are not among the contents;
// the others are judged all the same, so that every problem is told at once.
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
			err = fmt.Errorf("is not the key of the certificate in %s: take both from the same issue, the server's certificate first in its file", f.cert)
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
			MinVersion:   tls.VersionTLS12, // 1.3 is chosen with every client that has it
			Certificates: []tls.Certificate{certificate},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    pool,
			NextProtos:   []string{"h2"},
			Time:         now,
			// A resumed session would go on with the old certificate and with
			// what the old client CA let in. Cluster Autoscaler keeps one
			// connection for hours: a full handshake costs it nothing.
			SessionTicketsDisabled: true,
		},
	}
}

func (m *material) serial() string { return m.leaf.SerialNumber.Text(16) }

// checkServing finds what would make every client refuse the certificate.
func checkServing(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("expired at %s and no client would accept it: renew it with the same authority", stamp(leaf.NotAfter))
	case leaf.NotBefore.After(now.Add(clockSkew)):
		return fmt.Errorf("is not valid before %s: check the clocks of this machine and of the authority", stamp(leaf.NotBefore))
	case len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0:
		return errors.New("has no DNS name or IP address as subject alternative name, and clients do not look at the CN: issue it again with the host part of the address in Cluster Autoscaler's cloud-config")
	case !mayServe(leaf):
		return errors.New("is not for servers (extended key usage): issue it again with `server auth`")
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

// checkAuthorities refuses a file that lets nobody in. While a client CA
// changes, one that has expired beside a good one is normal.
func checkAuthorities(authorities []*x509.Certificate, now time.Time) error {
	for _, c := range authorities {
		if !now.After(c.NotAfter) {
			return nil
		}
	}
	return fmt.Errorf("holds only expired certificates, the first expired at %s, and no client could connect: renew it", stamp(authorities[0].NotAfter))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
