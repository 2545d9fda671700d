package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"gpu-node-provider/provider/checkpoint"
	"gpu-node-provider/provider/config"
)

// openRedis starts the embedded Redis, if the file has one, and sets the options of the
// client.
func (r *replica) openRedis() error {
	r.redis = redisOptions(r.config.Redis)
	if r.config.Redis.Embedded == nil {
		return nil
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(r.config.Redis.Embedded.Address); err != nil {
		return usageError{fmt.Errorf("redis.embedded.address: %w; stop the process that uses it, or choose another address", err)}
	}
	r.closers = append(r.closers, server.Close)
	r.redis.Addresses = []string{server.Addr()}
	stop := make(chan struct{})
	var aging sync.WaitGroup
	aging.Go(func() { age(server, stop) })
	r.closers = append(r.closers, func() { close(stop); aging.Wait() })
	return nil
}

// age advances the clock of miniredis, which expires keys only then.
func age(server *miniredis.Miniredis, stop <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			server.FastForward(time.Second)
		}
	}
}

// redisOptions returns the options of the client for the Redis of a file.
func redisOptions(c config.Redis) checkpoint.RedisOptions {
	if c.Embedded != nil {
		return checkpoint.RedisOptions{Addresses: []string{c.Embedded.Address}}
	}
	o := checkpoint.RedisOptions{
		Addresses: c.Addresses, MasterName: c.MasterName, Cluster: c.Cluster, Username: c.Username, PasswordFile: c.PasswordFile, DB: c.DB,
	}
	if c.TLS != nil {
		o.TLS = &checkpoint.RedisTLS{CAFile: c.TLS.CAFile, CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, ServerName: c.TLS.ServerName}
	}
	return o
}
