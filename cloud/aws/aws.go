// Package aws is a cloud.Backend on Amazon EC2 Auto Scaling: one Auto Scaling
// group (ASG) is one node group. It also reads what the rest of the provider
// has to know of AWS: what a group's machines have (Machines), which groups carry
// a tag (Discover), how much of a vCPU quota is left (Quota), and rough prices.
//
// It does not know Cluster Autoscaler, Kubernetes objects, or the provider's own
// limits. Nothing here waits for a lock while AWS is asked, and nothing is kept
// on disk: what AWS says is the truth, and what has to be added to it is in
// group.go.
package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"gpu-node-provider/cloud"
)

// callTimeout ends one attempt of a call. AWS answers within seconds; without
// it a connection that died silently would hold a Refresh up for good, since
// not every caller has a deadline.
const callTimeout = 15 * time.Second

// ScaleInProtection is how instances are kept from being the victims that an
// ASG chooses when its desired capacity is lowered; see protection.go.
type ScaleInProtection string

// The ways to treat scale-in protection.
const (
	// Manage switches protection on where it is off. It is the default.
	Manage ScaleInProtection = "manage"
	// Require lowers nothing unless everything is protected already.
	Require ScaleInProtection = "require"
	// Ignore lowers without looking: instances may be lost.
	Ignore ScaleInProtection = "ignore"
)

// Options says which AWS to use, and how. The zero value is the SDK's own
// configuration: environment, shared files, EKS Pod Identity, IRSA, IMDS.
type Options struct {
	// Region is where the groups are, such as us-east-1; empty is the SDK's.
	Region string
	// Endpoint replaces the address of all three services, for a stand-in.
	Endpoint string
	// Cluster is the name of the cluster in the tags of ASGs; empty takes it from those
	// that Discover finds, and checks nothing until then.
	Cluster string
	// ScaleInProtection is Manage when empty.
	ScaleInProtection ScaleInProtection
	// Registerer takes the metrics; it may be nil.
	Registerer prometheus.Registerer
	// Log may be nil.
	Log *zap.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Client sends the calls; nil is the SDK's own client.
	Client awssdk.HTTPClient
}

// Cloud is AWS in one region, seen with one set of credentials.
type Cloud struct {
	asg        autoScaling
	ec2        compute
	quotas     serviceQuotas
	eks        nodeGroups
	region     string
	protection ScaleInProtection
	log        *zap.Logger
	now        func() time.Time
	metrics    *metrics
	number     atomic.Uint64 // of the last placeholder
	tickets    atomic.Uint64 // puts readings and writes in order

	// configured has Run protect the groups.
	configured chan struct{}

	machines   machineCache
	quotaCache quotaCache
	managed    managedCache

	mu     sync.Mutex // guards what follows, the contents of the groups included
	order  []string
	named  map[string]*group
	before map[string]*group // every group ever configured, for when it comes back
	// cluster is the name that ASGs must have in their tags; empty while it is not known.
	cluster string
	// found holds the ASGs of configured groups that were discovered.
	found      map[string]bool
	discovered discovery
}

var _ cloud.Backend = (*Cloud)(nil)

// New reads the SDK's configuration. It makes no call to the services: missing
// permissions show in the first Describe.
func New(ctx context.Context, o Options) (*Cloud, error) {
	settings := []func(*config.LoadOptions) error{
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(callTimeout)),
		config.WithLogger(sdkLog(o.Log)),
	}
	if o.Region != "" {
		settings = append(settings, config.WithRegion(o.Region))
	}
	if o.Endpoint != "" {
		settings = append(settings, config.WithBaseEndpoint(o.Endpoint))
	}
	sdk, err := config.LoadDefaultConfig(ctx, settings...)
	if err != nil {
		return nil, fmt.Errorf("aws: reading the AWS configuration (environment and ~/.aws): %w", err)
	}
	if sdk.Region == "" {
		return nil, errors.New("aws: no region: set cloud.aws.region or AWS_REGION")
	}
	sdk.HTTPClient = patient{sdk.HTTPClient}
	if o.Client != nil {
		sdk.HTTPClient = o.Client
	}
	return open(sdk, o)
}

// patient hides how smithy-go writes the body of a request. The SDK closes the
// body as soon as the answer begins; when net/http has not yet looked for its end
// by then, WriteTo gives it an io.EOF, which from there is an error, and the
// connection is closed in the middle of the answer ("use of closed network
// connection"; https://github.com/aws/aws-sdk-go-v2/issues/2737 looks the same).
// It takes an endpoint that is near, and an answer that is long. Read is right.
type patient struct{ client awssdk.HTTPClient }

// Do implements awssdk.HTTPClient.
func (p patient) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return p.client.Do(r)
	}
	sent := *r
	sent.Body = struct{ io.ReadCloser }{r.Body}
	return p.client.Do(&sent)
}

func open(sdk awssdk.Config, o Options) (*Cloud, error) {
	switch o.ScaleInProtection {
	case "":
		o.ScaleInProtection = Manage
	case Manage, Require, Ignore:
	default:
		return nil, fmt.Errorf("aws: scaleInProtection %q is not one of %s, %s, %s", o.ScaleInProtection, Manage, Require, Ignore)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Cloud{
		region:     sdk.Region,
		protection: o.ScaleInProtection,
		log:        o.Log,
		now:        o.Now,
		metrics:    newMetrics(o.Registerer),
		named:      map[string]*group{},
		before:     map[string]*group{},
		cluster:    o.Cluster,
		configured: make(chan struct{}, 1),
	}
	c.connect(sdk)
	c.number.Store(firstNumber(o.Now()))
	return c, nil
}
