package config

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckFilesWithoutPermission reads as another user when it runs as root, which may
// read every file.
func TestCheckFilesWithoutPermission(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tls.key")
	require.NoError(t, os.WriteFile(file, nil, 0))
	if os.Getuid() == 0 {
		const nobody = 65534
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		runtime.LockOSThread() // the user is that of the thread
		defer runtime.UnlockOSThread()
		require.NoError(t, syscall.Setfsuid(nobody))
		defer func() { require.NoError(t, syscall.Setfsuid(0)) }()
	}
	c := &Config{Server: Server{TLS: &TLS{KeyFile: file}}}
	require.ErrorContains(t, c.CheckFiles(""), "server.tls.keyFile: "+show(file)+" cannot be read: permission denied")
}
