package checkpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ErrRedis is wrapped by every error of a Store: whether a checkpoint was
// acknowledged is not known.
var ErrRedis = errors.New("redis")

// errReplica is the answer of a server that only copies another.
var errReplica = errors.New("READONLY the server is a replica; set redis.addresses to the master, or masterName and the addresses of the Sentinels")

// go-redis writes lines of its own to stderr, between the structured ones, about
// errors that it returns as well.
func init() { logging.Disable() }

// RedisOptions say how Redis is reached: one server, Sentinels when MasterName is
// set, or a Cluster.
type RedisOptions struct {
	Addresses    []string
	MasterName   string
	Cluster      bool
	Username     string
	PasswordFile string // read for each new connection, so that a changed password heals by itself
	DB           int
	TLS          *RedisTLS
}

// RedisTLS makes the client speak TLS. Without CAFile the system's roots are trusted.
// The files are read once.
type RedisTLS struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// newClient does not connect.
func newClient(o RedisOptions) (redis.UniversalClient, error) {
	switch {
	case len(o.Addresses) == 0:
		return nil, errors.New("redis: no address")
	case len(o.Addresses) > 1 && o.MasterName == "" && !o.Cluster:
		return nil, errors.New("redis: more than one address needs masterName or cluster")
	case o.MasterName != "" && o.Cluster:
		return nil, errors.New("redis: masterName and cluster exclude each other")
	}
	options := &redis.UniversalOptions{
		Addrs:         o.Addresses,
		MasterName:    o.MasterName,
		IsClusterMode: o.Cluster,
		DB:            o.DB,
		// No CLIENT SETNAME nor SETINFO: a user that may only read and write its keys can log in.
		DisableIdentity: true,
		// Pushes of RESP3 are of no use here, and fewer features are fewer surprises.
		Protocol:                 2,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		PipelinePoolSize:         -1,

		ContextTimeoutEnabled: true,
		DialTimeout:           readBudget,
		ReadTimeout:           readBudget,
		WriteTimeout:          readBudget,
		// Each retry is a new connection: one that died unnoticed, or a master that
		// has just moved, shall not fail a read. readBudget bounds them all.
		MaxRetries:      3,
		MaxRetryBackoff: 100 * time.Millisecond,
		DialerRetries:   1,
	}
	if o.PasswordFile != "" {
		if _, err := readPassword(o.PasswordFile); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		options.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := readPassword(o.PasswordFile)
			return o.Username, password, err
		}
	}
	dialer := &net.Dialer{Timeout: readBudget}
	options.Dialer = dialer.DialContext
	if o.TLS != nil {
		config, err := o.TLS.config()
		if err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		// go-redis's own dialer lets a handshake outlive the context.
		options.Dialer = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext
	}
	client := redis.NewUniversalClient(options)
	if cluster, ok := client.(*redis.ClusterClient); ok {
		// It asks for COMMAND, again for each command of a pipeline while the answer is
		// an error, and for 5 s whatever the context says. All that is sent here is
		// routed by its key.
		cluster.SetCommandInfoResolver(nil)
	}
	return client, nil
}

// errPassword is why there is no password to log in with.
type errPassword struct{ error }

func (e errPassword) Unwrap() error { return e.error }

func readPassword(path string) (string, error) {
	raw, err := readFile(path)
	if err != nil {
		return "", errPassword{fmt.Errorf("password file: %w", err)}
	}
	password := strings.TrimRight(string(raw), "\r\n")
	if password == "" {
		return "", errPassword{fmt.Errorf("password file: %s is empty", path)}
	}
	return password, nil
}

func (t RedisTLS) config() (*tls.Config, error) {
	config := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		raw, err := readFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("tls.caFile: %s contains no certificate", t.CAFile)
		}
	}
	if t.CertFile == "" && t.KeyFile == "" {
		return config, nil
	}
	certificate, err := readFile(t.CertFile)
	if err != nil {
		return nil, fmt.Errorf("tls.certFile: %w", err)
	}
	key, err := readFile(t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls.keyFile: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("tls.certFile, tls.keyFile: %w", err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// readFile reads a small regular file: a pipe would block a connection for ever.
func readFile(path string) ([]byte, error) {
	const most = 1 << 20
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is not a regular file of at most 1 MiB", path)
	}
	return os.ReadFile(path)
}

// redisError is ErrRedis with its cause.
type redisError struct {
	cause string
	err   error
}

func (e *redisError) Error() string {
	detail := e.err.Error()
	if strings.HasPrefix(detail, e.cause) {
		return "redis: " + detail
	}
	return "redis: " + e.cause + ": " + detail
}

func (e *redisError) Unwrap() []error { return []error{ErrRedis, e.err} }

// Cause names in a word or two why a Store could not answer, from a fixed set, so
// that it can label a metric. It is empty for an error that is not of a Store.
func Cause(err error) string {
	var e *redisError
	if !errors.As(err, &e) {
		return ""
	}
	return e.cause
}

func failed(err error) error { return &redisError{cause: causeOf(err), err: err} }

// codes are the first words of Redis's errors that an operator acts upon.
var codes = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "LOADING", "READONLY", "MISCONF", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "OOM", "TRYAGAIN",
}

func causeOf(err error) string {
	for _, code := range codes {
		if strings.HasPrefix(err.Error(), code+" ") || redis.HasErrorPrefix(err, code+" ") {
			return code
		}
	}
	for _, cause := range causes {
		if cause.is(err) {
			return cause.name
		}
	}
	return "error"
}

// causes are tried in this order: a handshake that timed out is a timeout.
var causes = []struct {
	name string
	is   func(error) bool
}{
	{"too many clients", redis.IsMaxClientsError},
	{"password file", isA[errPassword]},
	{"name lookup", isA[*net.DNSError]},
	{"TLS", isA[*tls.CertificateVerificationError]},
	{"TLS", isA[tls.RecordHeaderError]},
	{"TLS", isA[tls.AlertError]},
	{"connection refused", isOneOf(syscall.ECONNREFUSED)},
	{"cancelled", isOneOf(context.Canceled)},
	{"timeout", isOneOf(context.DeadlineExceeded, os.ErrDeadlineExceeded, redis.ErrPoolTimeout)},
	{"timeout", isTimeout},
	{"connection lost", isOneOf(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE)},
	{"closed", isOneOf(redis.ErrClosed)},
}

func isA[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func isOneOf(sentinels ...error) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(sentinels, func(sentinel error) bool { return errors.Is(err, sentinel) })
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}
