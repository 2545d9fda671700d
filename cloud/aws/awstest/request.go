package awstest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// The services, by the names that IAM and the signature give them.
const (
	autoscaling   = "autoscaling"
	ec2           = "ec2"
	servicequotas = "servicequotas"
	eks           = "eks"
)

// versions tell the services of the Query protocol apart; the SDK sends the
// version of the service's API with each call.
var versions = map[string]string{"2011-01-01": autoscaling, "2016-11-15": ec2}

const quotaTarget = "ServiceQuotasV20190624."

// request is a call of an action, whichever protocol carried it.
type request struct {
	service, action string
	params          map[string]string // of the query protocol, or of the JSON object
}

// read takes the body off the call and leaves a fresh one, for a proxy to send on.
func read(r *http.Request) (request, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return request{}, fmt.Errorf("reading the call: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if req, ok := readEKS(r); ok {
		return req, nil
	}
	if target := r.Header.Get("X-Amz-Target"); target != "" {
		return readJSON(target, body)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return request{}, fmt.Errorf("reading the form: %w", err)
	}
	req := request{params: make(map[string]string, len(form))}
	for name, values := range form {
		if name != "Action" && name != "Version" {
			req.params[name] = values[0]
		}
	}
	req.action = form.Get("Action")
	if req.service = versions[form.Get("Version")]; req.service == "" {
		req.service = scope(r.Header.Get("Authorization"))
	}
	return req, nil
}

func readJSON(target string, body []byte) (request, error) {
	action, ok := strings.CutPrefix(target, quotaTarget)
	if !ok {
		return request{}, fmt.Errorf("X-Amz-Target %s is of no service known here", target)
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		return request{}, fmt.Errorf("reading the JSON: %w", err)
	}
	req := request{service: servicequotas, action: action, params: make(map[string]string, len(fields))}
	for name, value := range fields {
		req.params[name] = fmt.Sprint(value)
	}
	return req, nil
}

// scope is the service in the scope of a signature:
// AWS4-HMAC-SHA256 Credential=AKID/20260801/us-east-1/autoscaling/aws4_request, …
func scope(authorization string) string {
	if parts := strings.Split(authorization, "/"); len(parts) > 3 {
		return parts[3]
	}
	return ""
}

func (r request) str(name string) string { return r.params[name] }

func (r request) has(name string) bool { _, ok := r.params[name]; return ok }

func (r request) flag(name string) bool { return r.params[name] == "true" }

// num is the parameter, or otherwise when the call does not give it.
func (r request) num(name string, otherwise int) (int, *Error) {
	text, ok := r.params[name]
	if !ok {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, invalid("%s %q is not a number", name, text)
	}
	return n, nil
}

// list is a list of the Query protocol: prefix.1, prefix.2, …
func (r request) list(prefix string) []string {
	var values []string
	for n := 1; ; n++ {
		v, ok := r.params[prefix+"."+strconv.Itoa(n)]
		if !ok {
			return values
		}
		values = append(values, v)
	}
}

// filter is one of a Describe.
type filter struct {
	name   string
	values []string
}

// filters reads Filters.member.N.{Name,Values.member.M} of Auto Scaling, or
// Filter.N.{Name,Value.M} of EC2.
func (r request) filters() []filter {
	prefix, values := "Filters.member.", ".Values.member"
	if r.service == ec2 {
		prefix, values = "Filter.", ".Value"
	}
	var all []filter
	for n := 1; ; n++ {
		at := prefix + strconv.Itoa(n)
		name, ok := r.params[at+".Name"]
		if !ok {
			return all
		}
		all = append(all, filter{name: name, values: r.list(at + values)})
	}
}
