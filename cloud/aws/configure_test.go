package aws

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/aws/awstest"
)

func TestBadSpecs(t *testing.T) {
	c, _ := one(t, awstest.Group{Desired: 1}, Options{})
	for text, specs := range map[string][]cloud.Spec{
		"a group has no id":                                   {{Name: "x"}},
		`group id "a" is listed twice`:                        {{ID: "a", Name: "x"}, {ID: "a", Name: "y"}},
		`group "a" has no autoScalingGroup`:                   {{ID: "a"}},
		`groups "a" and "b" have the same autoScalingGroup x`: {{ID: "a", Name: "x"}, {ID: "b", Name: "x"}},
	} {
		err := c.Configure(t.Context(), specs)
		require.ErrorIs(t, err, cloud.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
	require.Equal(t, 1, get(t, c).Target, "the old ones stay")
}

func TestBadOptions(t *testing.T) {
	_, err := open(awstest.Config(t, "http://127.0.0.1:1"), Options{ScaleInProtection: "sometimes"})
	require.ErrorContains(t, err, `scaleInProtection "sometimes" is not one of manage, require, ignore`)

	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	_, err = New(t.Context(), Options{})
	require.ErrorContains(t, err, "no region: set cloud.aws.region or AWS_REGION")
	t.Setenv("AWS_REGION", "eu-west-1")
	c, err := New(t.Context(), Options{})
	require.NoError(t, err)
	require.Equal(t, "eu-west-1", c.region)
}

// TestEndpoint: the option replaces the address of all three services.
func TestEndpoint(t *testing.T) {
	stub := awstest.NewStub(t)
	stub.CreateGroup(awstest.Group{Name: "train-t4", Max: 3, Desired: 1})
	stub.Settle()
	t.Setenv("AWS_ACCESS_KEY_ID", "testing")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "testing")
	c, err := New(t.Context(), Options{Region: "us-east-1", Endpoint: stub.URL()})
	require.NoError(t, err)
	require.NoError(t, c.Configure(t.Context(), []cloud.Spec{{ID: "t4", Name: "train-t4"}}))
	require.Equal(t, 1, get(t, c).Target)
	_, err = c.Quota(t.Context(), "L-DB2E81BA")
	require.NoError(t, err)
	for _, action := range []string{"autoscaling:DescribeAutoScalingGroups", "ec2:DescribeInstances", "servicequotas:GetServiceQuota"} {
		require.Contains(t, stub.Actions(), action)
	}
}
