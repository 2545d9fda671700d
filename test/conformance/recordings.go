package conformance

import (
	"bufio"
	"compress/gzip"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

//go:embed testdata/*.jsonl.gz
var recordings embed.FS

const recordingSuffix = ".jsonl.gz"

// Call is one call of a real Cluster Autoscaler.
type Call struct {
	Seq      int           // from 1
	At       time.Duration // since the server started
	Method   string        // of service CloudProvider
	Request  []byte        // as it was on the wire
	Deadline time.Duration // what was left of it when the call arrived
	Code     string        // of the recorded server's answer
}

// Recordings lists the recordings by name, such as ca-1.36-round. README.md
// describes them.
func Recordings() ([]string, error) {
	files, err := fs.Glob(recordings, "testdata/*"+recordingSuffix)
	if err != nil {
		return nil, err
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), recordingSuffix)
	}
	return files, nil
}

// Recording reads a recording, its calls in the order of their answers.
func Recording(name string) ([]Call, error) {
	f, err := recordings.Open("testdata/" + name + recordingSuffix)
	if err != nil {
		return nil, fmt.Errorf("recording %s: %w", name, err)
	}
	defer f.Close() //nolint:errcheck // it is part of the program
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("recording %s: %w", name, err)
	}
	lines := bufio.NewScanner(unpacked)
	lines.Buffer(nil, 1<<20)
	var calls []Call
	for lines.Scan() {
		call, err := decodeCall(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("recording %s, line %d: %w", name, len(calls)+1, err)
		}
		calls = append(calls, call)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("recording %s, after line %d: %w", name, len(calls), err)
	}
	return calls, nil
}

// decodeCall leaves the line's field "request" aside: it has less than the bytes.
func decodeCall(line []byte) (Call, error) {
	var l struct {
		Seq        int    `json:"seq"`
		AtMS       int    `json:"at_ms"`
		Method     string `json:"method"`
		RequestHex string `json:"request_hex"`
		DeadlineMS int    `json:"deadline_ms"`
		Code       string `json:"code"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return Call{}, err
	}
	request, err := hex.DecodeString(l.RequestHex)
	if err != nil {
		return Call{}, fmt.Errorf("request_hex: %w", err)
	}
	return Call{
		Seq: l.Seq, At: time.Duration(l.AtMS) * time.Millisecond, Method: l.Method, Request: request,
		Deadline: time.Duration(l.DeadlineMS) * time.Millisecond, Code: l.Code,
	}, nil
}
