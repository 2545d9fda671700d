package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxValue is the longest value that is looked at. An acknowledgement with a long
// URI has some 300 bytes; whoever needs more is writing something else there.
const maxValue = 4096

// earliest is the first time that is taken for one. A number below it is a step
// count or a duration, and to call such an acknowledgement malformed tells its
// author more than to call it old.
var earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Ack says that all of a trainer's state up to a moment is durable.
type Ack struct {
	SavedAt time.Time // by Redis TIME; zero when the acknowledgement only echoes a request
	Request string    // id of the request that was read before the save began
	Step    int64
	URI     string
}

// Request asks a trainer for a checkpoint.
type Request struct {
	ID          string
	RequestedAt time.Time // by Redis TIME
	Reason      string
}

// DecodeAck reads what a trainer wrote: Unix seconds, an RFC 3339 time, or JSON
// of version 1. What it returns is what was written and not yet judged: the time
// may lie in the future.
func DecodeAck(raw []byte) (Ack, error) {
	if len(raw) > maxValue {
		return Ack{}, fmt.Errorf("longer than %d bytes", maxValue)
	}
	text := strings.TrimSpace(string(raw)) // redis-cli -x sends the line's end along
	switch {
	case text == "":
		return Ack{}, errors.New("is empty")
	case text[0] == '{':
		return decodeAckJSON([]byte(text))
	case isDigits(text[:1]) && !strings.ContainsAny(text, "-:"):
		at, err := parseUnix(text)
		return Ack{SavedAt: at}, err
	}
	at, err := parseRFC3339(text)
	if err != nil {
		return Ack{}, fmt.Errorf("%s is neither Unix seconds nor RFC 3339 nor JSON", excerpt(text))
	}
	at, err = inRange(at, text)
	return Ack{SavedAt: at}, err
}

func decodeAckJSON(raw []byte) (Ack, error) {
	fields, err := decodeObject(raw)
	if err != nil {
		return Ack{}, err
	}
	var ack Ack
	if ack.SavedAt, err = timeField(fields, "savedAt"); err != nil {
		return Ack{}, err
	}
	if ack.Request, err = textField(fields, "request"); err != nil {
		return Ack{}, err
	}
	if ack.URI, err = textField(fields, "uri"); err != nil {
		return Ack{}, err
	}
	if step, ok := fields["step"]; ok {
		if ack.Step, err = strconv.ParseInt(string(step), 10, 64); err != nil || ack.Step < 0 {
			return Ack{}, fmt.Errorf("step %s is not a whole number", excerpt(string(step)))
		}
	}
	if ack.SavedAt.IsZero() && ack.Request == "" {
		return Ack{}, errors.New("neither savedAt nor request is set")
	}
	return ack, nil
}

// DecodeRequest reads what Encode wrote, perhaps in another version of this program.
func DecodeRequest(raw []byte) (Request, error) {
	if len(raw) > maxValue {
		return Request{}, fmt.Errorf("longer than %d bytes", maxValue)
	}
	fields, err := decodeObject(raw)
	if err != nil {
		return Request{}, err
	}
	var request Request
	if request.ID, err = textField(fields, "id"); err != nil {
		return Request{}, err
	}
	if request.ID == "" {
		return Request{}, errors.New("id is missing")
	}
	if request.RequestedAt, err = timeField(fields, "requestedAt"); err != nil {
		return Request{}, err
	}
	if request.RequestedAt.IsZero() {
		return Request{}, errors.New("requestedAt is missing")
	}
	request.Reason, err = textField(fields, "reason")
	return request, err
}

// Encode is the value of a request key. Trainers read at most maxValue bytes of it,
// so a long reason is cut.
func (r Request) Encode() []byte {
	const longestReason = 512 // six times that, when each byte is escaped, still fits
	if len(r.Reason) > longestReason {
		r.Reason = strings.ToValidUTF8(r.Reason[:longestReason], "")
	}
	raw, err := json.Marshal(struct {
		V           int    `json:"v"`
		ID          string `json:"id"`
		RequestedAt string `json:"requestedAt"`
		Reason      string `json:"reason,omitempty"`
	}{1, r.ID, r.RequestedAt.UTC().Format(time.RFC3339Nano), r.Reason})
	if err != nil {
		panic(err) // strings and a number cannot fail
	}
	return raw
}

// decodeObject returns the fields of one JSON object of version 1, without those
// that are null. encoding/json alone is too kind: it takes SAVEDAT for savedAt, the
// last of two fields of one name, and replaces what is not UTF-8.
func decodeObject(raw []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("not UTF-8")
	}
	fields, err := splitObject(raw)
	if err != nil {
		return nil, err
	}
	for name, value := range fields {
		if string(value) == "null" {
			delete(fields, name)
		}
	}
	version, ok := fields["v"]
	if !ok {
		return nil, errors.New(`"v" is missing`)
	}
	if string(version) != "1" {
		return nil, fmt.Errorf("version %s is not supported; write 1", excerpt(string(version)))
	}
	return fields, nil
}

func splitObject(raw []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	fields := map[string]json.RawMessage{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, errNoJSON
		}
		text, ok := name.(string)
		if !ok {
			return nil, errNoJSON
		}
		if _, twice := fields[text]; twice {
			return nil, fmt.Errorf("key %s is set twice", excerpt(text))
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, errNoJSON
		}
		fields[text] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, errNoJSON
	}
	if len(bytes.TrimSpace(raw[decoder.InputOffset():])) > 0 {
		return nil, errors.New("unexpected data after the JSON object")
	}
	return fields, nil
}

var errNoJSON = errors.New("not valid JSON")

// timeField is zero when there is none.
func timeField(fields map[string]json.RawMessage, name string) (time.Time, error) {
	value, ok := fields[name]
	if !ok {
		return time.Time{}, nil
	}
	if value[0] != '"' {
		at, err := parseUnix(string(value))
		if err != nil {
			return time.Time{}, fmt.Errorf("%s %w", name, err)
		}
		return at, nil
	}
	text, err := textField(fields, name)
	if err != nil {
		return time.Time{}, err
	}
	at, err := parseRFC3339(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%s %s is not an RFC 3339 time; write Unix seconds without quotes", name, excerpt(text))
	}
	if at, err = inRange(at, text); err != nil {
		return time.Time{}, fmt.Errorf("%s %w", name, err)
	}
	return at, nil
}

// textField is empty when there is none.
func textField(fields map[string]json.RawMessage, name string) (string, error) {
	value, ok := fields[name]
	if !ok {
		return "", nil
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return "", fmt.Errorf("%s %s is not a string", name, excerpt(string(value)))
	}
	return text, nil
}

// parseUnix reads seconds with at most nine decimals, as date +%s and Python's
// time.time() print them.
func parseUnix(text string) (time.Time, error) {
	whole, fraction, dotted := strings.Cut(text, ".")
	if !isDigits(whole) || dotted && !isDigits(fraction) || len(fraction) > 9 {
		return time.Time{}, fmt.Errorf("%s is not a Unix time in seconds", excerpt(text))
	}
	if len(whole) > 11 {
		return time.Time{}, fmt.Errorf("%s is not a Unix time in seconds; is it in milliseconds?", excerpt(text))
	}
	seconds, _ := strconv.ParseInt(whole, 10, 64)                            // eleven digits at most
	nanoseconds, _ := strconv.ParseInt((fraction + "000000000")[:9], 10, 64) // nine digits
	return inRange(time.Unix(seconds, nanoseconds).UTC(), text)
}

// rfc3339 is stricter than time.Parse, which takes a comma and an hour of one digit.
var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$`)

func parseRFC3339(text string) (time.Time, error) {
	if !rfc3339.MatchString(text) {
		return time.Time{}, errors.New("not an RFC 3339 time")
	}
	at, err := time.Parse(time.RFC3339, text)
	return at.UTC(), err
}

func inRange(at time.Time, text string) (time.Time, error) {
	if at.Before(earliest) {
		return time.Time{}, fmt.Errorf("%s is a time before 2000", excerpt(text))
	}
	return at, nil
}

func isDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// excerpt quotes the start of what somebody else wrote: it goes into logs and Events.
func excerpt(text string) string {
	const most = 40
	if len(text) > most {
		return strconv.QuoteToASCII(strings.ToValidUTF8(text[:most], "")) + "..."
	}
	return strconv.QuoteToASCII(text)
}
