package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckFiles reports, as an *Error, every file that the configuration names and
// that cannot be read. It is apart from Validate because files come and go:
// what Load returned stays true. The path of the configuration itself is only
// for the messages.
func (c *Config) CheckFiles(path string) error {
	var all problems
	check := func(field, file string) {
		if file == "" {
			return
		}
		if err := readable(file); err != nil {
			all.add(field, "%s cannot be read: %s; correct the path or its permissions", show(file), err)
		}
	}
	if t := c.Server.TLS; t != nil {
		check("server.tls.certFile", t.CertFile)
		check("server.tls.keyFile", t.KeyFile)
		check("server.tls.clientCAFile", t.ClientCAFile)
	}
	if c.Kubernetes != nil {
		check("kubernetes.kubeconfig", c.Kubernetes.Kubeconfig)
	}
	check("redis.passwordFile", c.Redis.PasswordFile)
	if t := c.Redis.TLS; t != nil {
		check("redis.tls.caFile", t.CAFile)
		check("redis.tls.certFile", t.CertFile)
		check("redis.tls.keyFile", t.KeyFile)
	}
	if s := c.Cloud.Simulated; s != nil && s.StateFile != "" {
		// The file itself need not be there yet.
		if info, err := os.Stat(filepath.Dir(s.StateFile)); err != nil || !info.IsDir() {
			all.add("cloud.simulated.stateFile", "%s is in no directory; create it, or correct the path", show(s.StateFile))
		}
	}
	return failure(path, all.sorted())
}

// readable opens the file, since permissions alone do not tell. A pipe is
// refused before that: opening one may wait for ever.
func readable(file string) error {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		return errors.New("it is not a file")
	}
	if err == nil {
		var f *os.File
		if f, err = os.Open(file); err == nil {
			err = f.Close()
		}
	}
	// The path is in the message already.
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
