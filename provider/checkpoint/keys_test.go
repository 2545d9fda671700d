package checkpoint

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestKeysNameOnePodEach(t *testing.T) {
	pod := PodID{"ml", "train-0", "5a3c"}
	assert.Equal(t, "checkpoint:ack:ml:train-0:5a3c", AckKey("checkpoint", pod))
	assert.Equal(t, "a:b:request:ml:train-0:5a3c", RequestKey("a:b", pod))
	assert.Equal(t, "ml/train-0", pod.String())
	for _, prefix := range []string{"checkpoint", "a:b", "{jobs}:größe", "ack", "ack:ack"} {
		back, ok := ParseAckKey(prefix, AckKey(prefix, pod))
		assert.True(t, ok, prefix)
		assert.Equal(t, pod, back, prefix)
	}
}

func TestParseAckKeyRefusesOtherKeys(t *testing.T) {
	for _, key := range []string{
		"", "c", "c:ack", "c:ack:", "c:ack:::", "c:ack:ns:p", "c:ack:ns:p:", "c:ack::p:u", "c:ack:ns::u", "c:ack:ns:p:u:x",
		"c:request:ns:p:u", "d:ack:ns:p:u", "cc:ack:ns:p:u", "x:c:ack:ns:p:u", strings.Repeat(":", 1<<20),
	} {
		pod, ok := ParseAckKey("c", key)
		assert.False(t, ok, key)
		assert.Equal(t, PodID{}, pod, key)
	}
}
