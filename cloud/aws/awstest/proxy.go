package awstest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"
)

// Proxy stands before a Stub or a Moto. It takes the same Faults, but for Stale,
// and keeps the same record of calls; of what they do to instances it knows nothing.
type Proxy struct {
	gate
	server *httptest.Server
	target string
	client *http.Client
}

// NewProxy starts a Proxy before the target, which ends with the test.
func NewProxy(t TB, target string) *Proxy {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	p := &Proxy{target: target, client: &http.Client{Transport: transport}}
	p.closing, p.dated = make(chan struct{}), time.Now
	p.server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(func() {
		close(p.closing)
		p.server.Close()
		transport.CloseIdleConnections()
	})
	return p
}

// URL is the endpoint of all services.
func (p *Proxy) URL() string { return p.server.URL }

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	req, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call := p.arrive(req, p.dated())
	p.pass(w, r, req, call, func(bool) answer { return p.forward(r) })
}

// forward sends the call on and takes the whole answer, so that a Fault can
// still befall it. The caller's going away does not stop it: the effect counts.
func (p *Proxy) forward(r *http.Request) answer {
	out, err := http.NewRequest(r.Method, p.target+r.URL.RequestURI(), r.Body)
	if err != nil {
		return unreachable(err)
	}
	out.Header = r.Header.Clone()
	out.Host = r.Host // it is signed
	in, err := p.client.Do(out)
	if err != nil {
		return unreachable(err)
	}
	defer in.Body.Close()
	body, err := io.ReadAll(in.Body)
	if err != nil {
		return unreachable(err)
	}
	a := answer{status: in.StatusCode, contentType: in.Header.Get("Content-Type"), body: body, date: in.Header.Get("Date")}
	if a.status >= http.StatusBadRequest {
		a.code = code(body, in)
	}
	return a
}

func unreachable(err error) answer {
	return answer{status: http.StatusBadGateway, contentType: "text/plain", body: []byte(err.Error()), code: "BadGateway"}
}

// code is the error's code, for the record alone; the SDK's own readers are what
// a test looks at.
func code(body []byte, r *http.Response) string {
	for _, around := range [][2]string{{"<Code>", "</Code>"}, {`"__type": "`, `"`}, {`"__type":"`, `"`}} {
		if _, after, ok := bytes.Cut(body, []byte(around[0])); ok {
			before, _, _ := bytes.Cut(after, []byte(around[1]))
			return string(before)
		}
	}
	return fmt.Sprint(r.StatusCode)
}
