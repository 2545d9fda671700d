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

// The files that Generate makes. The server needs ServerCertFile, ServerKeyFile
// and CACertFile, Cluster Autoscaler ClientCertFile, ClientKeyFile and
// CACertFile; CAKeyFile is for renewing and belongs on neither.
const (
	CACertFile     = "ca.crt"
	CAKeyFile      = "ca.key"
	ServerCertFile = "server.crt"
	ServerKeyFile  = "server.key"
	ClientCertFile = "client.crt"
	ClientKeyFile  = "client.key"
)

const (
	// DefaultValidity of both pairs. Cluster Autoscaler does not see a new pair
	// of its own before it restarts: much less than a year would make somebody
	// restart it for the certificate's sake alone.
	DefaultValidity = 365 * 24 * time.Hour

	// minValidity is a guard against a forgotten unit.
	minValidity = time.Minute

	// caValidity outlives many pairs: a new authority has to reach both sides
	// at once, which means an outage or two certificates in each CA file.
	caValidity = 10 * 365 * 24 * time.Hour

	// DefaultClientName is the client certificate's DNS SAN and CN.
	DefaultClientName = "cluster-autoscaler"

	service          = "gpu-node-provider" // the Kubernetes Service in deploy/
	defaultNamespace = "gpu-node-provider"
)

// ErrExists: Generate would overwrite files and was not told to.
var ErrExists = errors.New("already there")

// GenerateOptions of Generate; the zero value is good.
type GenerateOptions struct {
	// ServerNames are the DNS names and IP addresses that clients dial. Empty:
	// those that the server certificate had when renewing, otherwise
	// DefaultServerNames(Namespace).
	ServerNames []string
	Namespace   string // of the Service, for the default names; empty: gpu-node-provider

	// ClientName is a DNS name or a URI, such as a SPIFFE id. Empty: the one
	// that the client certificate had when renewing, otherwise DefaultClientName.
	ClientName string

	Validity time.Duration // of both pairs; zero: DefaultValidity

	// Renew makes new pairs with the authority that is in the directory. Both
	// sides go on trusting each other while one of them has the old pair, so
	// it is the way to renew: Cluster Autoscaler reads its files only once.
	Renew bool

	// Force replaces everything, the authority too: what was made before is
	// then refused by what is made now.
	Force bool

	Now func() time.Time // nil: time.Now
}

// Generated is what Generate made.
type Generated struct {
	Files       []string // paths, in the order of writing
	ServerNames []string
	ClientName  string
	CAExpiry    time.Time
	Expiry      time.Time // of both pairs
}

// DefaultServerNames are the names of the Services in a namespace, for Cluster
// Autoscaler and for the API server's evictions, and those of the loopback for a Cluster Autoscaler in the same pod or a person's trial.
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

// Generate writes an authority, a server pair and a client pair into dir, which
// it makes. All files are written or none; keys are readable by their owner only.
func Generate(dir string, opts GenerateOptions) (Generated, error) {
	if err := opts.complete(dir); err != nil {
		return Generated{}, err
	}
	// A certificate keeps whole seconds.
	now := opts.Now().UTC().Truncate(time.Second)
	ca, out, err := authorityFor(dir, opts, now)
	if err != nil {
		return Generated{}, err
	}

	expiry := now.Add(opts.Validity)
	if expiry.After(ca.certificate.NotAfter) {
		expiry = ca.certificate.NotAfter // a pair does not work beyond its authority
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

// complete checks the options and fills in what is empty.
func (o *GenerateOptions) complete(dir string) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Validity == 0 {
		o.Validity = DefaultValidity
	}
	switch {
	case o.Validity < minValidity:
		return fmt.Errorf("validity %s is shorter than %s: the pairs would be of no use", o.Validity, minValidity)
	case o.Renew && o.Force:
		return errors.New("renewing keeps the authority and forcing makes a new one: choose one of them")
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

// inherit takes the names of the present certificates, so that a renewal by
// somebody who does not remember them changes nothing but the dates.
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

// existing is the certificate in a file, or none when there is no such file. One
// that cannot be read is an error: guessing its names would change them.
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
		return nil, fmt.Errorf("certificate file %s %w, or write out the names that it had", path, err)
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
	return fmt.Errorf("%w in %s: %s; renew the pairs with their authority, take another directory, or force a new authority that refuses the old clients",
		ErrExists, dir, strings.Join(found, ", "))
}

// authorityFor reads the authority to renew with, or makes one and returns its files.
func authorityFor(dir string, opts GenerateOptions, now time.Time) (*authority, []newFile, error) {
	if opts.Renew {
		ca, err := readAuthority(dir, now)
		return ca, nil, err
	}
	ca, err := newAuthority(now, max(caValidity, opts.Validity))
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	keyPEM, err := encodeKey(ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority: %w", err)
	}
	return ca, []newFile{{CACertFile, 0o644, encodeCertificate(ca.certificate.Raw)}, {CAKeyFile, 0o600, keyPEM}}, nil
}

// readAuthority reads the authority of an earlier Generate, or of anybody else's
// making as long as it may sign.
func readAuthority(dir string, now time.Time) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, CACertFile), filepath.Join(dir, CAKeyFile)
	chain, errCert := parseFile(certFile, parseCertificates)
	key, errKey := parseFile(keyFile, parseKey)
	if err := errors.Join(errCert, errKey); err != nil {
		return nil, fmt.Errorf("the authority to renew with: %w", err)
	}
	certificate := chain[0]
	switch {
	case !belongs(key, certificate):
		return nil, fmt.Errorf("the authority to renew with: %s is not the key of %s", keyFile, certFile)
	case !certificate.IsCA:
		return nil, fmt.Errorf("the authority to renew with: %s is not a CA certificate", certFile)
	case !now.Before(certificate.NotAfter):
		return nil, fmt.Errorf("the authority to renew with: %s expired at %s; force a new one, and give it to both sides", certFile, stamp(certificate.NotAfter))
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
