// Command checkpoint-ack acknowledges to gpu-node-provider that a trainer's state is durable,
// so that its node may be deleted. It is one static file to copy into the image of a trainer
// that is not written in Python:
//
//	request=$(checkpoint-ack requested) || true         # before the save begins
//	save && checkpoint-ack --request "$request" --step "$step" --uri "$file"
//
// It does not import the packages of the provider, which depend on Kubernetes, so it repeats
// the keys and the value of the protocol. A test of provider/checkpoint reads a value that
// this program wrote.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9/logging"
)

// Exit codes, for scripts.
const (
	exitDone    = 0
	exitRedis   = 1 // Redis did not answer within --wait: save again before the next attempt
	exitUsage   = 2
	exitNothing = 3 // no checkpoint is requested
)

const usage = `checkpoint-ack [--step N] [--uri TEXT] [--request ID] [--wait 30s]
    acknowledges that all state up to now is durable. Call it after the file is
    synced and renamed, and never from a preStop hook.
checkpoint-ack requested [--wait 30s]
    prints the id of the request for a checkpoint; exits with 3 when there is none.
    Read it before the save begins, and hand it to --request.

Environment:
    REDIS_URL            redis://[user:password@]host:port/db, or rediss:// for TLS
                         (SSL_CERT_FILE names the CA's certificates)
    REDIS_PASSWORD_FILE  instead of a password in the URL
    POD_NAMESPACE, POD_NAME, POD_UID   by the downward API
    CHECKPOINT_PREFIX    checkpoint.keyPrefix of the provider; default checkpoint

Exit codes: 0 done, 1 Redis did not answer within --wait, 2 usage error, 3 no checkpoint requested
`

func main() {
	started := time.Now()
	logging.Disable() // go-redis logs to stderr
	os.Exit(run(started, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

func run(started time.Time, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c, err := parse(args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitDone
	}
	if err != nil {
		fmt.Fprintln(stderr, "checkpoint-ack:", err)
		return exitUsage
	}
	c.started = started
	if c.onlyRead {
		var id string
		if err := c.retry(func(s session) (err error) { id, err = s.requested(); return err }); err != nil {
			fmt.Fprintln(stderr, "checkpoint-ack: failed to read the request for a checkpoint:", err)
			return exitRedis
		}
		if id == "" {
			return exitNothing
		}
		fmt.Fprintln(stdout, id)
		return exitDone
	}
	if err := c.retry(session.acknowledge); err != nil {
		fmt.Fprintln(stderr, "checkpoint-ack: failed to acknowledge:", err)
		return exitRedis
	}
	return exitDone
}

// command is a checked command line with its environment.
type command struct {
	started  time.Time
	onlyRead bool
	wait     time.Duration

	step    *int64
	uri     string
	request string

	url          string
	passwordFile string
	prefix       string
	pod          [3]string // namespace, name, uid
}

func parse(args []string, getenv func(string) string) (command, error) {
	var c command
	if len(args) > 0 && args[0] == "requested" {
		c.onlyRead, args = true, args[1:]
	}
	flags := c.flags()
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	switch {
	case flags.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	case c.wait <= 0:
		return c, errors.New("--wait must be greater than 0")
	case !utf8.ValidString(c.uri) || !utf8.ValidString(c.request):
		return c, errors.New("--uri and --request must be UTF-8")
	}
	if err := c.environment(getenv); err != nil {
		return c, err
	}
	// The longest text of a time, so that the limit does not depend on the clock.
	if size := len(c.value(time.Unix(0, 999_999_999))); size > maxValue {
		return c, fmt.Errorf("--uri and --request are too long: %d bytes of %d together", size, maxValue)
	}
	return c, nil
}

func (c *command) flags() *flag.FlagSet {
	flags := flag.NewFlagSet("checkpoint-ack", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&c.wait, "wait", 30*time.Second, "")
	if !c.onlyRead {
		flags.StringVar(&c.uri, "uri", "", "")
		flags.StringVar(&c.request, "request", "", "")
		flags.Func("step", "", func(text string) error {
			step, err := strconv.ParseInt(text, 10, 64)
			if err != nil || step < 0 {
				return errors.New("must be an integer of at least 0")
			}
			c.step = &step
			return nil
		})
	}
	return flags
}

func (c *command) environment(getenv func(string) string) error {
	c.url = getenv("REDIS_URL")
	c.passwordFile = getenv("REDIS_PASSWORD_FILE")
	c.prefix = getenv("CHECKPOINT_PREFIX")
	if c.prefix == "" {
		c.prefix = "checkpoint"
	}
	var missing []string
	if c.url == "" {
		missing = append(missing, "REDIS_URL")
	}
	for i, name := range []string{"POD_NAMESPACE", "POD_NAME", "POD_UID"} {
		c.pod[i] = getenv(name)
		if c.pod[i] == "" {
			missing = append(missing, name)
		}
		if strings.Contains(c.pod[i], ":") {
			return fmt.Errorf("%s=%q contains a colon, which is not allowed in the names of Kubernetes", name, c.pod[i])
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not set: %s; see --help", strings.Join(missing, ", "))
	}
	if _, err := c.options(); err != nil {
		return err
	}
	return nil
}

func (c *command) key(kind string) string {
	return strings.Join([]string{c.prefix, kind, c.pod[0], c.pod[1], c.pod[2]}, ":")
}
