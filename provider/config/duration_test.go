package config

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDuration(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
		out  string
	}{
		{`"90s"`, 90 * time.Second, `"1m30s"`},
		{`"5m"`, 5 * time.Minute, `"5m"`},
		{`"1h"`, time.Hour, `"1h"`},
		{`"1h0m5s"`, time.Hour + 5*time.Second, `"1h0m5s"`},
		{`"10h"`, 10 * time.Hour, `"10h"`},
		{`"100m"`, 100 * time.Minute, `"1h40m"`},
		{`"20s"`, 20 * time.Second, `"20s"`},
		{`"0"`, 0, `"0s"`},
		{`"-1.5s"`, -1500 * time.Millisecond, `"-1.5s"`},
	} {
		var d Duration
		require.NoError(t, json.Unmarshal([]byte(tt.in), &d), tt.in)
		assert.Equal(t, tt.want, d.Duration, tt.in)
		out, err := json.Marshal(d)
		require.NoError(t, err)
		assert.Equal(t, tt.out, string(out))
		var again Duration
		require.NoError(t, json.Unmarshal(out, &again))
		assert.Equal(t, d, again)
	}
}

func TestDurationRefuses(t *testing.T) {
	for in, want := range map[string]string{
		`20`:     `20 is not a duration such as "90s" or "5m"`,
		`"20"`:   `"20" is not a duration such as "90s" or "5m"`,
		`""`:     `"" is not a duration such as "90s" or "5m"`,
		`{}`:     `{} is not a duration such as "90s" or "5m"`,
		`"5min"`: `"5min" is not a duration such as "90s" or "5m"`,
	} {
		var d Duration
		require.EqualError(t, json.Unmarshal([]byte(in), &d), want)
	}
}
