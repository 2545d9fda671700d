package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

var update = flag.Bool("update", false, "write the printed form of the good files anew")

func goodFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*"+goodSuffix))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func TestGoodFilesPrintWithTheirDefaults(t *testing.T) {
	for _, path := range goodFiles(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			c, err := Load(path)
			require.NoError(t, err)
			require.NoError(t, c.Validate())
			printed, err := c.Marshal()
			require.NoError(t, err)

			golden := strings.TrimSuffix(path, goodSuffix) + ".printed.yaml"
			if *update {
				require.NoError(t, os.WriteFile(golden, printed, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), string(printed))

			again, err := Parse(printed)
			require.NoError(t, err)
			assert.True(t, equality.Semantic.DeepEqual(c, again), "what is printed reads back as something else")
			assert.Empty(t, c.RestartNeeded(again))
		})
	}
}

// minimal is the shortest valid file, with the simulated cloud.
func minimal(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "minimal"+goodSuffix))
	require.NoError(t, err)
	return string(data)
}

// edited is the minimal file after replacing old, new pairs.
func edited(t *testing.T, pairs ...string) string {
	t.Helper()
	text := minimal(t)
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, text, pairs[i])
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

func parsed(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text))
	require.NoError(t, err)
	return c
}

const onAWS = `apiVersion: gpu-node-provider.io/v1
kind: ProviderConfig
cloud: {aws: {region: eu-west-1}}
redis: {addresses: ["redis:6379"]}
nodeGroups:
  - {id: t4, maxSize: 4, autoScalingGroup: train-t4, labels: {accelerator: nvidia-tesla-t4}}
`

func TestKubernetesDefaultsToInClusterOnAWSOnly(t *testing.T) {
	assert.Nil(t, parsed(t, minimal(t)).Kubernetes)

	want := &Kubernetes{Namespace: "gpu-node-provider", LeaderElection: new(true)}
	assert.Equal(t, want, parsed(t, onAWS).Kubernetes)
	withSimulated := edited(t, "redis:\n", "kubernetes: {}\nredis:\n")
	assert.Equal(t, want, parsed(t, withSimulated).Kubernetes)
}

func TestZeroThatIsWrittenIsNotADefault(t *testing.T) {
	c := parsed(t, edited(t, "simulated: {}", "simulated: {bootDelay: 0s, heartbeat: false}",
		"redis:\n", "checkpoint: {askAfter: 0s, askOnTaints: []}\nredis:\n"))
	assert.Zero(t, c.Cloud.Simulated.BootDelay)
	assert.Equal(t, Duration{5 * time.Second}, c.Cloud.Simulated.DevicePluginDelay)
	assert.False(t, *c.Cloud.Simulated.Heartbeat)
	assert.Zero(t, c.Checkpoint.AskAfter)
	assert.Empty(t, c.Checkpoint.AskOnTaints)
	assert.Nil(t, c.NodeGroups[0].ScaleDown.UnneededTime)
	assert.True(t, c.NodeGroups[0].ScaleDown.Empty())
}

func TestCapacityIsCompletedWhereNoInstanceTypeTells(t *testing.T) {
	simulated := parsed(t, minimal(t)).NodeGroups[0].Capacity
	assert.Equal(t, int64(110), simulated.Pods().Value())
	storage := simulated[corev1.ResourceEphemeralStorage]
	assert.Zero(t, storage.Cmp(resource.MustParse("100Gi")))

	given := parsed(t, edited(t, "cpu: 4", "cpu: 4, pods: 29, ephemeral-storage: 1Ti")).NodeGroups[0].Capacity
	assert.Equal(t, int64(29), given.Pods().Value())

	aws := parsed(t, strings.Replace(onAWS, "maxSize: 4", "maxSize: 4, capacity: {nvidia.com/gpu: 4}", 1))
	assert.Len(t, aws.NodeGroups[0].Capacity, 1)
}

func TestTextIsTakenAsItIsWritten(t *testing.T) {
	for written, want := range map[string]string{
		"1.10": "1.10", "true": "true", "yes": "yes", "007": "007", "0x1F": "0x1F", `"7"`: "7", "2026-01-02": "2026-01-02", "": "", "~": "", "!!str 5": "5",
	} {
		c := parsed(t, edited(t, "nvidia-tesla-t4}", "nvidia-tesla-t4, a: "+written+" }"))
		assert.Equal(t, want, c.NodeGroups[0].Labels["a"], written)
	}
}

func TestTextThatIsAMergeElsewhere(t *testing.T) {
	assert.Equal(t, "<<", parsed(t, edited(t, "redis:\n", "checkpoint: {keyPrefix: <<}\nredis:\n")).Checkpoint.KeyPrefix)
}

func TestByteOrderMarkAndDocumentMarks(t *testing.T) {
	want := parsed(t, minimal(t))
	for name, text := range map[string]string{
		"byte order mark": "\ufeff" + minimal(t),
		"start":           "---\n" + minimal(t),
		"end":             minimal(t) + "...\n",
		"directive":       "%YAML 1.1\n---\n" + minimal(t),
		"CRLF":            strings.ReplaceAll(minimal(t), "\n", "\r\n"),
	} {
		assert.True(t, equality.Semantic.DeepEqual(want, parsed(t, text)), name)
	}
}
