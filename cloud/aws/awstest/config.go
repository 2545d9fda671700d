package awstest

import (
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// TB is what is needed of a test: *testing.T and *rapid.T have it.
type TB interface {
	Helper()
	Cleanup(func())
}

// Config has the SDK's clients call url, a Stub's, a Moto's or a Proxy's, with
// connections of their own that are closed with the test.
func Config(t TB, url string) aws.Config {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return aws.Config{
		Region: region, BaseEndpoint: &url, HTTPClient: &http.Client{Transport: patient{transport}},
		Credentials: credentials.NewStaticCredentialsProvider("testing", "testing", ""),
	}
}

// patient keeps a server that is as near as this one from being too fast for the
// SDK, which closes the body of a request as soon as the answer begins. If
// net/http has not yet looked for the body's end by then, smithy-go's WriteTo
// gives it an io.EOF, which from there is an error, and the connection is closed
// in the middle of the answer: "use of closed network connection" in one of four
// answers of half a megabyte; https://github.com/aws/aws-sdk-go-v2/issues/2737
// looks the same, from afar. Its Read is right, so the other one is hidden.
type patient struct{ transport http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return p.transport.RoundTrip(r)
	}
	sent := *r
	sent.Body = struct{ io.ReadCloser }{r.Body}
	return p.transport.RoundTrip(&sent)
}
