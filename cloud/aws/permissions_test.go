package aws

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPermissions: the list says neither less nor more than what can be called.
func TestPermissions(t *testing.T) {
	var called []string
	for service, client := range map[string]reflect.Type{
		"autoscaling": reflect.TypeFor[autoScaling](), "ec2": reflect.TypeFor[compute](), "servicequotas": reflect.TypeFor[serviceQuotas](), "eks": reflect.TypeFor[nodeGroups](),
	} {
		for n := range client.NumMethod() {
			called = append(called, service+":"+client.Method(n).Name)
		}
	}
	slices.Sort(called)
	var listed []string
	for _, p := range Permissions {
		listed = append(listed, p.Action)
		require.NotEmpty(t, p.Use)
	}
	require.Equal(t, called, listed)
}
