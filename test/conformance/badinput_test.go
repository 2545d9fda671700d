package conformance

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// assertLines checks that stderr has one line for each problem, and that each
// contains its words and is for people, not a log entry or a stack.
func assertLines(t *testing.T, p *process, problems ...[]string) {
	t.Helper()
	lines := strings.Split(strings.TrimRight(p.stderr.String(), "\n"), "\n")
	if !assert.Len(t, lines, len(problems), p.stderr.String()) {
		return
	}
	for i, words := range problems {
		for _, word := range words {
			assert.Contains(t, lines[i], word)
		}
		assert.False(t, strings.HasPrefix(lines[i], "{"), lines[i])
	}
	assert.Empty(t, p.stdout.String())
}

// badInputs are files with the words of each problem's line, in the order of the file.
var badInputs = map[string]struct {
	file     file
	problems [][]string
}{
	"an unknown key": {
		file{top: []string{"qotas: []"}}, [][]string{{"qotas", "unknown key", "quotas"}},
	},
	"an unknown key deep down": {
		file{groups: []string{group("t4", "maxsize: 3")}}, [][]string{{"nodeGroups[0].maxsize"}},
	},
	"min above max": {
		file{groups: []string{group("t4", "minSize: 5", "maxSize: 4")}}, [][]string{{"nodeGroups[0].maxSize", "4", "5"}},
	},
	"an id that is there twice": {
		file{groups: []string{group("t4"), group("t4")}}, [][]string{{"nodeGroups[1].id", "nodeGroups[0]"}},
	},
	"a negative quota": {
		file{quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: -1}"}}, [][]string{{"quotas[0].limit", "-1"}},
	},
	"a GPU label on a group without a GPU": {
		file{groups: []string{group("t4", "capacity: {cpu: 4, memory: 16Gi}")}}, [][]string{{"nodeGroups[0].labels[accelerator]", "GPU"}},
	},
	"a key file that is not there": {
		file{server: []string{`tls: {certFile: "/no/such/server.crt", keyFile: "/no/such/server.key", clientCAFile: "/no/such/ca.crt"}`}},
		[][]string{{"server.tls.certFile", "/no/such/server.crt"}, {"server.tls.keyFile", "/no/such/server.key"}, {"server.tls.clientCAFile", "/no/such/ca.crt"}},
	},
	"a state file in no folder": {
		file{simulated: []string{`stateFile: "/no/such/folder/state.json"`}}, [][]string{{"cloud.simulated.stateFile", "/no/such/folder"}},
	},
	"plaintext on all interfaces": {
		file{server: []string{`address: "0.0.0.0:0"`}}, [][]string{{"server.address", "plaintext", "insecure: true"}},
	},
	"several at once": {
		file{
			groups: []string{group("t4", "minSize: 3", "maxSize: 2"), group("a100", "capacity: {cpu: 4}"), group("t4", "hourlyPrice: -1")},
			quotas: []string{"{name: gpus, resource: nvidia.com/gpu, limit: -1}"},
		},
		[][]string{
			{"quotas[0].limit"},
			{"nodeGroups[0].maxSize"},
			{"nodeGroups[1].labels[accelerator]"},
			{"nodeGroups[1].capacity", "memory"},
			{"nodeGroups[2].id"},
			{"nodeGroups[2].hourlyPrice"},
		},
	},
}

func TestBadFilesAreRefusedWithALineForEachProblem(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	for name, bad := range badInputs {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			for _, command := range []string{"validate", "serve"} {
				dir, grpcPort, httpPort := t.TempDir(), freePort(t), freePort(t)
				f := bad.file
				f.server = settings([]string{`address: "` + grpcPort + `"`, `httpAddress: "` + httpPort + `"`}, f.server...)
				f.write(t, dir)
				p := finish(t, command, "--config", configPath(dir))
				assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), command)
				assertLines(t, p, bad.problems...)
				assertNothingStarted(t, dir)
				assert.False(t, accepts(grpcPort) || accepts(httpPort))
			}
		})
	}
}

// TestAUsedPortIsRefusedAndNothingIsHalfStarted: every port that the file names
// is looked at before the cloud's state is touched.
func TestAUsedPortIsRefusedAndNothingIsHalfStarted(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	used, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = used.Close() }()
	taken := used.Addr().String()
	for field, lines := range map[string]func(free string) file{
		"server.address": func(free string) file {
			return file{server: []string{`address: "` + taken + `"`, `httpAddress: "` + free + `"`}}
		},
		"server.httpAddress": func(free string) file {
			return file{server: []string{`address: "` + free + `"`, `httpAddress: "` + taken + `"`}}
		},
	} {
		dir, free := t.TempDir(), freePort(t)
		lines(free).write(t, dir)
		p := finish(t, "serve", "--config", configPath(dir))
		assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), field)
		assertLines(t, p, []string{field, taken, "in use"})
		assertNothingStarted(t, dir)
		assert.False(t, accepts(free), field)
	}
}

// TestAnUnreadableKeyFile: what is there and is no key is refused as well.
func TestAnUnreadableKeyFile(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	for name, spoil := range map[string]func(t *testing.T, key string){
		"a folder": func(t *testing.T, key string) {
			require.NoError(t, os.Remove(key))
			require.NoError(t, os.Mkdir(key, 0o700))
		},
		"no key":        func(t *testing.T, key string) { require.NoError(t, os.WriteFile(key, []byte("x"), 0o600)) },
		"another's key": func(t *testing.T, key string) { copyFile(t, filepath.Join(filepath.Dir(key), "client.key"), key) },
		"a dangling link": func(t *testing.T, key string) {
			require.NoError(t, os.Remove(key))
			require.NoError(t, os.Symlink("x", key))
		},
	} {
		pairs, dir := t.TempDir(), t.TempDir()
		certs(t, pairs)
		key := filepath.Join(pairs, "server.key")
		spoil(t, key)
		file{server: []string{`tls: {certFile: "` + pairs + `/server.crt", keyFile: "` + key + `", clientCAFile: "` + pairs + `/ca.crt"}`}}.write(t, dir)
		p := finish(t, "serve", "--config", configPath(dir))
		assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), name)
		assertLines(t, p, []string{"server.tls", key})
		assertNothingStarted(t, dir)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// TestBadCommandLines are usage errors too.
func TestBadCommandLines(t *testing.T) {
	needsOwnServer(t)
	parallel(t)
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"serve"}, "--config"},
		{[]string{"validate"}, "--config"},
		{[]string{"serve", "--config", "/no/such/file"}, "/no/such/file"},
		{[]string{"serve", "--conf", "x"}, "--conf"},
		{[]string{"serve", "x"}, "no arguments"},
		{[]string{"srve"}, "srve"},
		{[]string{"certs"}, "--dir"},
		{[]string{"status", "-o", "xml"}, "xml"},
	} {
		p := finish(t, c.args...)
		assert.Equal(t, 2, p.cmd.ProcessState.ExitCode(), c.args)
		assertLines(t, p, []string{c.word})
	}
}
