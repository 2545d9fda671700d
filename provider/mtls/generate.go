package mtls

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpu-node-provider/provider/reload"
)

// Files written by Generate. The server needs ServerCertFile, ServerKeyFile and
// CACertFile, Cluster Autoscaler ClientCertFile, ClientKeyFile and CACertFile.
// CAKeyFile signs renewals and must not be copied to either.
const (
	CACertFile     = "ca.crt"
	CAKeyFile      = "ca.key"
	ServerCertFile = "server.crt"
	ServerKeyFile  = "server.key"
	ClientCertFile = "client.crt"
	ClientKeyFile  = "client.key"
)

const (
	// DefaultValidity of both pairs. Cluster Autoscaler reads its pair only at
	// start-up, so much less than a year would require extra restarts.
	DefaultValidity = 365 * 24 * time.Hour

	// minValidity catches a forgotten unit.
	minValidity = time.Minute

	// caValidity spans many renewals, since a new CA must reach both sides at
	// once: an outage, or two certificates in each CA file.
	caValidity = 10 * 365 * 24 * time.Hour

	// DefaultClientName is the client certificate's DNS SAN and CN.
	DefaultClientName = "cluster-autoscaler"

	service          = "gpu-node-provider" // the Kubernetes Service in deploy/
	defaultNamespace = "gpu-node-provider"
)

// ErrExists: Generate would overwrite files, and neither Renew nor Force is set.
var ErrExists = errors.New("files exist already")

// GenerateOptions configures Generate. The zero value is valid.
type GenerateOptions struct {
	// ServerNames are the DNS names and IP addresses that clients dial. Empty means
	// those of the existing server certificate with Renew, else
	// DefaultServerNames(Namespace).
	ServerNames []string
	Namespace   string // namespace of the Service, for the default names; empty means gpu-node-provider

	// ClientName is a DNS name or a URI, such as a SPIFFE id. Empty means that of the
	// existing client certificate with Renew, else DefaultClientName.
	ClientName string

	Validity time.Duration // of both pairs; zero means DefaultValidity

	// Renew issues new pairs with the CA in the directory. Both sides keep trusting
	// each other while one still has the old pair, which is needed because Cluster
	// Autoscaler reads its files only once.
	Renew bool

	// Force replaces all files including the CA. Pairs of the old CA are then rejected.
	Force bool

	Now func() time.Time // nil means time.Now
}

// Generated is the result of Generate.
type Generated struct {
	Files       []string // paths in the order written
	ServerNames []string
	ClientName  string
	CAExpiry    time.Time
	Expiry      time.Time // of both pairs
}

// DefaultServerNames returns the names of the provider's Services in a namespace, one
// for Cluster Autoscaler and one for the webhook, and the loopback names, for a Cluster
// Autoscaler in the same pod and for local tests.
func DefaultServerNames(namespace string) []string {
	if namespace == "" {
		namespace = defaultNamespace
	}
	return []string{
		service,
		service + "." + namespace,
		service + "." + namespace + ".svc",
		service + "." + namespace + ".svc.cluster.local",
		service + "-webhook." + namespace + ".svc",
		"localhost",
		"127.0.0.1",
		"::1",
	}
}

// Generate writes a CA, a server pair and a client pair into dir, and creates dir when
// it is missing. It writes all files or none; only the owner can read the keys.
func Generate(dir string, opts GenerateOptions) (Generated, error) {
	if err := opts.complete(dir); err != nil {
		return Generated{}, err
	}
	// Certificates store whole seconds.
	now := opts.Now().UTC().Truncate(time.Second)
	ca, out, err := authorityFor(dir, opts, now)
	if err != nil {
		return Generated{}, err
	}

	expiry := now.Add(opts.Validity)
	if expiry.After(ca.certificate.NotAfter) {
		expiry = ca.certificate.NotAfter // a pair is invalid after its CA expires
	}
	server, client, err := templates(opts, now, expiry)
	if err != nil {
		return Generated{}, err
	}
	for _, pair := range []struct {
		template  *x509.Certificate
		cert, key string
	}{{server, ServerCertFile, ServerKeyFile}, {client, ClientCertFile, ClientKeyFile}} {
		certPEM, keyPEM, err := ca.issue(pair.template)
		if err != nil {
			return Generated{}, fmt.Errorf("issue %s: %w", pair.cert, err)
		}
		out = append(out, newFile{pair.cert, 0o644, certPEM}, newFile{pair.key, 0o600, keyPEM})
	}

	written, err := writeAll(dir, out)
	if err != nil {
		return Generated{}, err
	}
	return Generated{
		Files:       written,
		ServerNames: opts.ServerNames,
		ClientName:  opts.ClientName,
		CAExpiry:    ca.certificate.NotAfter,
		Expiry:      expiry,
	}, nil
}

// complete validates the options and sets the defaults.
func (o *GenerateOptions) complete(dir string) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Validity == 0 {
		o.Validity = DefaultValidity
	}
	switch {
	case o.Validity < minValidity:
		return fmt.Errorf("validity %s is shorter than %s: set a longer one, such as 8760h", o.Validity, minValidity)
	case o.Renew && o.Force:
		return errors.New("renew keeps the CA and force replaces it: choose one of them")
	case o.Renew:
		if err := o.inherit(dir); err != nil {
			return err
		}
	case !o.Force:
		if err := refuseExisting(dir); err != nil {
			return err
		}
	}
	if len(o.ServerNames) == 0 {
		o.ServerNames = DefaultServerNames(o.Namespace)
	}
	if o.ClientName == "" {
		o.ClientName = DefaultClientName
	}
	return nil
}

// inherit copies the names of the existing certificates, so that a renewal without
// names changes only the dates.
func (o *GenerateOptions) inherit(dir string) error {
	if len(o.ServerNames) == 0 {
		old, err := existing(filepath.Join(dir, ServerCertFile))
		if err != nil {
			return err
		}
		for _, leaf := range old {
			o.ServerNames = sans(leaf)
		}
	}
	if o.ClientName == "" {
		old, err := existing(filepath.Join(dir, ClientCertFile))
		if err != nil {
			return err
		}
		for _, leaf := range old {
			o.ClientName = cmp.Or(slices.Concat(uris(leaf), leaf.DNSNames, []string{leaf.Subject.CommonName})...)
		}
	}
	return nil
}

// existing returns the first certificate of a file, or none when the file does not
// exist. An unreadable file is an error, since default names could replace its names.
func existing(path string) ([]*x509.Certificate, error) {
	data, err := reload.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("certificate file %s: %w", path, explain(err))
	}
	chain, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("certificate file %s %w, or set the names explicitly", path, err)
	}
	return chain[:1], nil
}

func refuseExisting(dir string) error {
	var found []string
	for _, name := range []string{CACertFile, CAKeyFile, ServerCertFile, ServerKeyFile, ClientCertFile, ClientKeyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%w in %s: %s; renew the pairs with their CA, choose another directory, or force a new CA, which rejects the old clients",
		ErrExists, dir, strings.Join(found, ", "))
}

// authorityFor reads the CA to renew with, or creates one and returns its files.
func authorityFor(dir string, opts GenerateOptions, now time.Time) (*authority, []newFile, error) {
	if opts.Renew {
		ca, err := readAuthority(dir, now)
		return ca, nil, err
	}
	ca, err := newAuthority(now, max(caValidity, opts.Validity))
	if err != nil {
		return nil, nil, fmt.Errorf("create the CA: %w", err)
	}
	keyPEM, err := encodeKey(ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("create the CA: %w", err)
	}
	return ca, []newFile{{CACertFile, 0o644, encodeCertificate(ca.certificate.Raw)}, {CAKeyFile, 0o600, keyPEM}}, nil
}

// readAuthority reads the CA of an earlier Generate, or any other that may sign.
func readAuthority(dir string, now time.Time) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, CACertFile), filepath.Join(dir, CAKeyFile)
	chain, errCert := parseFile(certFile, parseCertificates)
	key, errKey := parseFile(keyFile, parseKey)
	if err := errors.Join(errCert, errKey); err != nil {
		return nil, fmt.Errorf("CA to renew with: %w", err)
	}
	certificate := chain[0]
	switch {
	case !belongs(key, certificate):
		return nil, fmt.Errorf("CA to renew with: %s is not the key of %s", keyFile, certFile)
	case !certificate.IsCA:
		return nil, fmt.Errorf("CA to renew with: %s is not a CA certificate", certFile)
	case !now.Before(certificate.NotAfter):
		return nil, fmt.Errorf("CA to renew with: %s expired at %s; force a new one, and deploy it to both sides", certFile, stamp(certificate.NotAfter))
	}
	return &authority{certificate: certificate, key: key}, nil
}

func parseFile[T any](path string, parse func([]byte) (T, error)) (parsed T, err error) {
	data, err := reload.ReadFile(path)
	if err != nil {
		return parsed, fmt.Errorf("%s: %w", path, explain(err))
	}
	parsed, err = parse(data)
	if err != nil {
		return parsed, fmt.Errorf("%s %w", path, err)
	}
	return parsed, nil
}
