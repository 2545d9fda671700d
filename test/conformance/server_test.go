package conformance

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gpu-node-provider/proto"
)

// patience bounds every wait for what has to come. It is long because it only
// matters when something is broken.
const patience = 30 * time.Second

// server is a provider and a client of it.
type server struct {
	proto.CloudProviderClient
	*process // nil for a server elsewhere

	conn *grpc.ClientConn
	grpc string // address of the gRPC port
	http string // address of the HTTP port
	dir  string // of the node group file and the state; empty for a server elsewhere
	id   string // the node group that tests change
}

// serve starts a provider with the file. Its first group is the one that tests
// change.
func serve(t *testing.T, f file) *server {
	t.Helper()
	needsOwnServer(t)
	s := &server{dir: t.TempDir()}
	f.write(t, s.dir)
	s.boot(t)
	return s
}

// wire is the server for subtests that need nothing but the wire: the one
// elsewhere if there is one, else one of our own.
func wire(t *testing.T, f file) *server {
	t.Helper()
	if remoteAddress() == "" {
		return serve(t, f)
	}
	s := &server{grpc: remoteAddress()}
	s.connect(t)
	s.chooseGroup(t)
	return s
}

// boot starts the program on what is in the server's folder.
func (s *server) boot(t *testing.T) {
	t.Helper()
	s.process = start(t, "serve", "--config", configPath(s.dir))
	s.grpc, s.http = s.addresses(t)
	s.connect(t)
	s.chooseGroup(t)
}

func (s *server) chooseGroup(t *testing.T) {
	t.Helper()
	s.id = groupToChange()
	if s.id == "" {
		s.id = s.nodeGroups(t)[0].GetId()
	}
}

// restart kills the program as kill -9 does and starts it again.
func (s *server) restart(t *testing.T) {
	t.Helper()
	s.kill()
	s.boot(t)
}

func (s *server) connect(t *testing.T) {
	t.Helper()
	if s.conn != nil {
		require.NoError(t, s.conn.Close())
	}
	s.conn = dial(t, s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.CloudProviderClient = proto.NewCloudProviderClient(s.conn)
}

// dial makes a client whose answers are audited, and closes it after the test.
func dial(t *testing.T, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	audit := &auditor{}
	// passthrough is how Cluster Autoscaler dials.
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithChainUnaryInterceptor(bounded, audit.intercept),
	}, options...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close() // twice after a restart
		for _, complaint := range audit.complaints() {
			t.Error(complaint)
		}
	})
	return conn
}

// bounded gives calls without a deadline one, so that no test hangs.
func bounded(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); ok {
		return invoke(ctx, method, req, reply, cc, options...)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return invoke(ctx, method, req, reply, cc, options...)
}

// eventually polls until it holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if !poll(patience, holds) {
		require.FailNow(t, "this did not happen in "+patience.String()+": "+what)
	}
}

// poll looks until it holds, and says whether it did within d.
func poll(d time.Duration, holds func() bool) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			return false
		case <-tick.C:
		}
	}
	return true
}

// throughout polls for a while, and fails when it does not hold all the time.
func throughout(t *testing.T, d time.Duration, what string, holds func() bool) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		require.True(t, holds(), what)
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}

// together runs all at the same time and waits for them.
func together(all ...func()) {
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(f)
	}
	wg.Wait()
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// metric is the value of one series, written as on /metrics; 0 when it is not there.
func (s *server) metric(t *testing.T, series string) float64 {
	t.Helper()
	_, body := get(t, "http://"+s.http+"/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			require.NoError(t, err)
			return number
		}
	}
	return 0
}

// snapshotTime is when the cloud was last read as a whole. It tells whether the
// background refresh has come in between.
func (s *server) snapshotTime(t *testing.T) string {
	t.Helper()
	_, body := get(t, "http://"+s.http+"/report.json")
	var report struct {
		Snapshot string `json:"snapshot"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &report))
	return report.Snapshot
}
