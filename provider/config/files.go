package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckFiles returns an *Error with every file that the configuration names and
// that cannot be read, or nil. It is separate from Validate because its result
// depends on the machine. path is the configuration file, for messages only.
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
		// The first save creates the file itself.
		if info, err := os.Stat(filepath.Dir(s.StateFile)); err != nil || !info.IsDir() {
			all.add("cloud.simulated.stateFile", "%s is in a directory that does not exist; create it, or correct the path", show(s.StateFile))
		}
	}
	return failure(path, all.sorted())
}

// readable opens the file, since its mode alone does not decide access. It rejects
// a pipe first, since opening one may block forever.
func readable(file string) error {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	if err == nil {
		var f *os.File
		if f, err = os.Open(file); err == nil {
			err = f.Close()
		}
	}
	// The message already contains the path.
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		return inner.Err
	}
	return err
}
