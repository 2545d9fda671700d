package mtls

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

func TestA12AllowedClients(t *testing.T) {
	uri := func(s string) []*url.URL {
		u, err := url.Parse(s)
		require.NoError(t, err)
		return []*url.URL{u}
	}
	cn := func(name string) pkix.Name { return pkix.Name{CommonName: name} }
	const spiffe = "spiffe://example.org/ns/kube-system/sa/cluster-autoscaler"
	cases := []struct {
		name        string
		allowed     []string
		certificate x509.Certificate
		want        bool
	}{
		{"empty list allows all", nil, x509.Certificate{}, true},
		{"DNS SAN", []string{"ca"}, x509.Certificate{DNSNames: []string{"x", "ca"}}, true},
		{"DNS SAN in other case", []string{"CA.example.org"}, x509.Certificate{DNSNames: []string{"ca.Example.org"}}, true},
		{"second entry", []string{"other", "ca"}, x509.Certificate{DNSNames: []string{"ca"}}, true},
		{"other DNS SAN", []string{"ca"}, x509.Certificate{DNSNames: []string{"ca.example.org"}}, false},
		{"wildcard in the certificate is only a name", []string{"ca.example.org"}, x509.Certificate{DNSNames: []string{"*.example.org"}}, false},
		{"URI SAN", []string{spiffe}, x509.Certificate{URIs: uri(spiffe)}, true},
		{"URN", []string{"urn:example:ca"}, x509.Certificate{URIs: uri("urn:example:ca")}, true},
		{"URI SAN in other case", []string{spiffe}, x509.Certificate{URIs: uri("spiffe://example.org/ns/kube-system/sa/Cluster-autoscaler")}, false},
		{"URI SAN below", []string{spiffe}, x509.Certificate{URIs: uri(spiffe + "/x")}, false},
		{"CN", []string{"system:ca"}, x509.Certificate{Subject: cn("system:ca")}, true},
		{"CN beside a SAN", []string{"ca"}, x509.Certificate{Subject: cn("ca"), DNSNames: []string{"x"}}, true},
		{"CN in other case", []string{"ca"}, x509.Certificate{Subject: cn("CA")}, false},
		{"CN that poses as a URI", []string{spiffe}, x509.Certificate{Subject: cn(spiffe)}, false},
		{"DNS SAN that poses as a URI", []string{spiffe}, x509.Certificate{DNSNames: []string{spiffe}}, false},
		{"no name at all", []string{"ca"}, x509.Certificate{}, false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			allowed, err := newClients(tc.allowed)
			require.NoError(t, err)
			require.Equal(t, tc.want, allowed.allow(&tc.certificate))
		})
	}
}

func TestA12WrongIdentityIsRefusedAtTheCall(t *testing.T) {
	dir := made(t, GenerateOptions{ClientName: "spiffe://example.org/stranger"})
	opts := options(dir)
	opts.AllowedClients = []string{"cluster-autoscaler", "spiffe://example.org/cluster-autoscaler"}
	r := start(t, opts)
	conn := r.dial(clientOf(t, dir))
	for range 2 {
		_, err := conn.call()
		require.Equal(t, codes.PermissionDenied, status.Code(err))
		require.Equal(t, `client not allowed: none of the names in the client certificate ("spiffe://example.org/stranger") is in allowedClients`,
			status.Convert(err).Message())
	}
	require.Empty(t, r.failures(), "the handshake itself is good")
	require.InDelta(t, 2, testutil.ToFloat64(r.metrics.clientsRefused.WithLabelValues(refusedNotListed)), 0)

	right := renewed(t, dir, GenerateOptions{ClientName: "cluster-autoscaler"})
	r.dial(clientOf(t, right)).mustSee(serialOf(t, dir), "a client of the list")
	require.InDelta(t, 2, testutil.ToFloat64(r.metrics.clientsRefused.WithLabelValues(refusedNotListed)), 0)
}

func TestAuthorizeWithoutAVerifiedCertificate(t *testing.T) {
	s, err := New(options(made(t, GenerateOptions{}))) // the empty list allows every client of the CA, and no other
	require.NoError(t, err)
	unverified := credentials.TLSInfo{}
	unverified.State.PeerCertificates = []*x509.Certificate{{}}
	for name, ctx := range map[string]context.Context{
		"no peer":    t.Context(),
		"plaintext":  peer.NewContext(t.Context(), &peer.Peer{}),
		"unverified": peer.NewContext(t.Context(), &peer.Peer{AuthInfo: unverified}),
	} {
		t.Run(name, func(t *testing.T) {
			before := testutil.ToFloat64(s.metrics.clientsRefused.WithLabelValues(refusedNoCertificate))
			err := s.Authorize(ctx)
			require.ErrorIs(t, err, ErrNotAllowed)
			require.EqualError(t, err, "client not allowed: the connection has no verified client certificate")
			require.InDelta(t, before+1, testutil.ToFloat64(s.metrics.clientsRefused.WithLabelValues(refusedNoCertificate)), 0)
		})
	}
}

func TestNamesAreBoundedAndQuoted(t *testing.T) {
	require.Equal(t, "it has none", names(&x509.Certificate{}))
	require.Equal(t, `"a", "b"`, names(&x509.Certificate{DNSNames: []string{"a"}, Subject: pkix.Name{CommonName: "b"}}))
	require.Equal(t, `"a"`, names(&x509.Certificate{DNSNames: []string{"a"}, Subject: pkix.Name{CommonName: "a"}}))
	require.Equal(t, `"a\nb"`, names(&x509.Certificate{Subject: pkix.Name{CommonName: "a\nb"}}))
	many := &x509.Certificate{}
	for i := range 1000 {
		many.DNSNames = append(many.DNSNames, fmt.Sprintf("%0200d", i))
	}
	require.Less(t, len(names(many)), 600)
	require.Contains(t, names(many), " and 995 more")
}
