package aws

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestSDKLogsToZap: the SDK warns of an answer without a valid date.
func TestSDKLogsToZap(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "testing")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testing")
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "yesterday")
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	core, logs := observer.New(zap.DebugLevel)
	cloud, err := New(t.Context(), Options{Region: "us-east-1", Endpoint: server.URL, Log: zap.New(core)})
	require.NoError(t, err)
	_, err = cloud.Discover(t.Context(), map[string]string{"gpu": "yes"}, nil)
	require.Error(t, err)
	warnings := logs.FilterMessageSnippet("failed to parse response Date header").All()
	require.NotEmpty(t, warnings)
	require.Equal(t, "aws-sdk", warnings[0].LoggerName)
	require.Equal(t, zap.WarnLevel, warnings[0].Level)
}
