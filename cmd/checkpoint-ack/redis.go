package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// maxValue is the length of the longest value that the provider reads.
	maxValue = 4096

	// ackExpires is the time to live of an acknowledgement. The provider ignores one that
	// is this old, and without an expiry every pod would leave a key behind.
	ackExpires = 7 * 24 * time.Hour

	// attemptTimeout limits one attempt, so that a Redis that does not answer is tried
	// again.
	attemptTimeout = 5 * time.Second

	// pause is the time between attempts; all trainers of a cluster may be retrying.
	pause = 250 * time.Millisecond
)

// options reads the password for each attempt, since it may have changed.
func (c *command) options() (*redis.Options, error) {
	options, err := redis.ParseURL(c.url)
	if err != nil {
		return nil, errors.New("REDIS_URL is not a redis:// or rediss:// URL") // err shows the password
	}
	if c.passwordFile != "" {
		raw, err := os.ReadFile(c.passwordFile)
		if err != nil {
			return nil, fmt.Errorf("REDIS_PASSWORD_FILE: %w", err)
		}
		options.Password = strings.TrimRight(string(raw), "\r\n")
	}
	options.Protocol = 2
	options.DisableIdentity = true
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	options.ContextTimeoutEnabled = true
	options.MaxRetries = -1 // retry repeats attempts
	options.DialerRetries = 1
	options.PipelinePoolSize = -1
	return options, nil
}

// session is one attempt.
type session struct {
	context.Context
	*command
	redis.UniversalClient
}

// retry makes attempts until one succeeds or --wait has passed.
func (c *command) retry(do func(session) error) error {
	ctx, cancel := context.WithDeadline(context.Background(), c.started.Add(c.wait))
	defer cancel()
	var why error
	for {
		err := c.attempt(ctx, do)
		if err == nil {
			return nil
		}
		// The last error of Redis explains more than a timeout.
		if why == nil || !errors.Is(err, context.DeadlineExceeded) {
			why = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no attempt succeeded within %s: %w", c.wait, why)
		case <-time.After(pause):
		}
	}
}

func (c *command) attempt(ctx context.Context, do func(session) error) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	options, err := c.options()
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close() //nolint:errcheck // the process ends
	err = do(session{ctx, c, client})
	if _, moved := redis.IsMovedError(err); !moved {
		return err
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:    []string{options.Addr},
		Username: options.Username, Password: options.Password, TLSConfig: options.TLSConfig,
		Protocol: options.Protocol, DisableIdentity: true, MaintNotificationsConfig: options.MaintNotificationsConfig,
		ContextTimeoutEnabled: true, DialerRetries: 1, PipelinePoolSize: -1,
	})
	cluster.SetCommandInfoResolver(nil) // it calls COMMAND, which the ACL of the trainer's user may forbid
	defer cluster.Close()               //nolint:errcheck // the process ends
	return do(session{ctx, c, cluster})
}

func (s session) acknowledge() error {
	now, err := s.Time(s).Result()
	if err != nil {
		return err
	}
	// A trainer that runs this program in the background continues training meanwhile, so
	// only the state at the call of this program is known to be durable.
	savedAt := now.Add(-time.Since(s.started))
	if err := s.Set(s, s.key("ack"), s.value(savedAt), ackExpires).Err(); err != nil {
		return err
	}
	// The provider also polls, so a failed publication only delays it by seconds.
	_ = s.Publish(s, s.prefix+":acks", s.key("ack")).Err()
	return nil
}

// value is version 1 of an acknowledgement.
func (c *command) value(savedAt time.Time) []byte {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // URLs are full of &
	err := encoder.Encode(struct {
		V       int    `json:"v"`
		SavedAt string `json:"savedAt"`
		Request string `json:"request,omitempty"`
		Step    *int64 `json:"step,omitempty"`
		URI     string `json:"uri,omitempty"`
	}{1, savedAt.UTC().Format(time.RFC3339Nano), c.request, c.step, c.uri})
	if err != nil {
		panic(err) // strings and a number cannot fail
	}
	return []byte(strings.TrimSuffix(text.String(), "\n"))
}

// requested returns the id of the pending request, and an empty string for none and for a
// value that is not a request.
func (s session) requested() (string, error) {
	raw, err := s.GetRange(s, s.key("request"), 0, maxValue).Result()
	switch {
	case err != nil && redis.HasErrorPrefix(err, "WRONGTYPE"):
		return "", nil
	case err != nil:
		return "", err
	}
	var request struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(raw), &request); err != nil || len(raw) > maxValue {
		return "", nil //nolint:nilerr // see above
	}
	return request.ID, nil
}
