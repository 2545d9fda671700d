package awstest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
)

// Client calls a Stub without a network between them. Goroutines that wait for an answer
// are then durably blocked, as a synctest bubble requires.
type Client struct{ stub *Stub }

// Client returns one, for the options of a cloud.
func (s *Stub) Client() Client { return Client{s} }

// Do implements aws.HTTPClient. A connection that the Stub cuts is io.ErrUnexpectedEOF.
func (c Client) Do(r *http.Request) (answer *http.Response, err error) {
	defer func() {
		switch cut := recover().(type) {
		case nil:
		case error:
			if !errors.Is(cut, http.ErrAbortHandler) {
				panic(cut)
			}
			answer, err = nil, fmt.Errorf("%s %s: %w", r.Method, r.URL, io.ErrUnexpectedEOF)
			if end := r.Context().Err(); end != nil {
				err = fmt.Errorf("%s %s: %w", r.Method, r.URL, end)
			}
		default:
			panic(cut)
		}
	}()
	w := httptest.NewRecorder()
	c.stub.serve(w, r)
	return w.Result(), nil
}
