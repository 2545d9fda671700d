package checkpoint

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDecodeAckTakesWhatTrainersWrite(t *testing.T) {
	at := time.Date(2026, 8, 1, 10, 20, 30, 0, time.UTC) // 1785579630
	for raw, want := range map[string]Ack{
		"1785579630":                                              {SavedAt: at},
		"1785579630\n":                                            {SavedAt: at}, // date +%s | redis-cli -x SET key
		"1785579630.25":                                           {SavedAt: at.Add(250 * time.Millisecond)},
		"1785579630.123456789":                                    {SavedAt: at.Add(123456789)},
		"2026-08-01T10:20:30Z":                                    {SavedAt: at},
		"2026-08-01T12:20:30.5+02:00":                             {SavedAt: at.Add(500 * time.Millisecond)},
		"2026-08-01T10:20:30.000001Z":                             {SavedAt: at.Add(time.Microsecond)}, // checkpoint.py
		`{"v":1,"savedAt":1785579630}`:                            {SavedAt: at},
		`{"v":1,"savedAt":1785579630.25}`:                         {SavedAt: at.Add(250 * time.Millisecond)},
		`{"v": 1, "request": "r1"}`:                               {Request: "r1"},
		`{"v":1,"savedAt":null,"request":"r"}`:                    {Request: "r"},
		`{"v":1,"savedAt":1785579630,"request":null,"step":null}`: {SavedAt: at},
		` {"v":1,"savedAt":"2026-08-01T10:20:30Z","request":"r1","step":1200,"uri":"s3://b/k?a=1&b=\u00e9"} `: {at, "r1", 1200, "s3://b/k?a=1&b=é"},
		`{"v":1,"savedAt":1785579630,"step":9223372036854775807}`:                                             {SavedAt: at, Step: 1<<63 - 1},
		`{"loss":[0.1,{"deep":{}}],"v":1,"savedAt":1785579630,"SAVEDAT":0}`:                                   {SavedAt: at}, // other fields are theirs
		"946684800": {SavedAt: earliest},
	} {
		ack, err := DecodeAck([]byte(raw))
		if assert.NoError(t, err, raw) {
			assert.Equal(t, want, ack, raw)
		}
	}
}

func TestDecodeAckRefusesWhatIsNone(t *testing.T) {
	for raw, why := range map[string]string{
		"":                                "is empty",
		" \n":                             "is empty",
		"yes":                             `"yes" is neither Unix seconds nor RFC 3339 nor JSON`,
		"-1785579630":                     `"-1785579630" is neither Unix seconds nor RFC 3339 nor JSON`,
		"+1785579630":                     `"+1785579630" is neither Unix seconds nor RFC 3339 nor JSON`,
		"NaN":                             `"NaN" is neither Unix seconds nor RFC 3339 nor JSON`,
		"null":                            `"null" is neither Unix seconds nor RFC 3339 nor JSON`,
		`"2026-08-01T10:20:30Z"`:          `"\"2026-08-01T10:20:30Z\"" is neither Unix seconds nor RFC 3339 nor JSON`,
		"[1785579630]":                    `"[1785579630]" is neither Unix seconds nor RFC 3339 nor JSON`,
		"2026-08-01 10:20:30":             `"2026-08-01 10:20:30" is neither Unix seconds nor RFC 3339 nor JSON`,
		"2026-08-01T10:20:30":             `"2026-08-01T10:20:30" is neither Unix seconds nor RFC 3339 nor JSON`, // which zone?
		"2026-08-01T10:20:30,5Z":          `"2026-08-01T10:20:30,5Z" is neither Unix seconds nor RFC 3339 nor JSON`,
		"2026-08-01T1:20:30Z":             `"2026-08-01T1:20:30Z" is neither Unix seconds nor RFC 3339 nor JSON`,
		"2026-02-30T10:20:30Z":            `"2026-02-30T10:20:30Z" is neither Unix seconds nor RFC 3339 nor JSON`,
		"1785579630123":                   `"1785579630123" is not a Unix time in seconds; is it in milliseconds?`,
		"1.7e9":                           `"1.7e9" is not a Unix time in seconds`,
		"1785579630.":                     `"1785579630." is not a Unix time in seconds`,
		"1785579630.1.2":                  `"1785579630.1.2" is not a Unix time in seconds`,
		"1785579630.0123456789":           `"1785579630.0123456789" is not a Unix time in seconds`,
		"0x6a6dc9ee":                      `"0x6a6dc9ee" is not a Unix time in seconds`,
		"1785579630 ok":                   `"1785579630 ok" is not a Unix time in seconds`,
		"1785579630\x00":                  `"1785579630\x00" is not a Unix time in seconds`,
		"1_785_579_630":                   `"1_785_579_630" is not a Unix time in seconds`,
		"١٧٨٥٥٧٩٦٣٠":                      `is neither Unix seconds nor RFC 3339 nor JSON`,
		"0":                               `"0" is a time before 2000`,
		"1200":                            `"1200" is a time before 2000`, // a step
		"0001-01-01T00:00:00Z":            `"0001-01-01T00:00:00Z" is a time before 2000`,
		"\xff\xfe":                        `is neither`,
		"{":                               "not valid JSON",
		"{}":                              `"v" is missing`,
		`{"v":1}`:                         "neither savedAt nor request is set",
		`{"v":1,"request":""}`:            "neither savedAt nor request is set",
		`{"v":1,"savedAt":null}`:          "neither savedAt nor request is set",
		`{"v":1,"SavedAt":1785579630}`:    "neither savedAt nor request is set",
		`{"v":2,"savedAt":1785579630}`:    `version "2" is not supported; write 1`,
		`{"v":"1","savedAt":1785579630}`:  `version "\"1\"" is not supported; write 1`,
		`{"v":1.0,"savedAt":1785579630}`:  `version "1.0" is not supported; write 1`,
		`{"v":null,"savedAt":1785579630}`: `"v" is missing`,
		`{"savedAt":1785579630}`:          `"v" is missing`,
		`{"v":1,"savedAt":1,"savedAt":1785579630}`:               `key "savedAt" is set twice`,
		`{"v":1,"savedAt":1,"saved\u0041t":1785579630}`:          `key "savedAt" is set twice`,
		`{"v":1,"savedAt":null,"savedAt":1785579630}`:            `key "savedAt" is set twice`,
		`{"v":1,"savedAt":1785579630}{}`:                         "unexpected data after the JSON object",
		`{"v":1,"savedAt":1785579630},`:                          "unexpected data after the JSON object",
		`{"v":1,"savedAt":1785579630`:                            "not valid JSON",
		`{"v":1,"savedAt":1785579630,}`:                          "not valid JSON",
		`{"v":1,savedAt:1785579630}`:                             "not valid JSON",
		`{"v":1,"savedAt":0x6a6dc9ee}`:                           "not valid JSON",
		`{"v":1,"savedAt":NaN}`:                                  "not valid JSON",
		`{'v':1}`:                                                "not valid JSON",
		"{\"v\":1,\"savedAt\":1785579630,\"uri\":\"\xff\"}":      "not UTF-8",
		`{"v":1,"savedAt":"1785579630"}`:                         `savedAt "1785579630" is not an RFC 3339 time; write Unix seconds without quotes`,
		`{"v":1,"savedAt":""}`:                                   `savedAt "" is not an RFC 3339 time; write Unix seconds without quotes`,
		`{"v":1,"savedAt":1785579630123}`:                        `savedAt "1785579630123" is not a Unix time in seconds; is it in milliseconds?`,
		`{"v":1,"savedAt":-1785579630}`:                          `savedAt "-1785579630" is not a Unix time in seconds`,
		`{"v":1,"savedAt":1e9}`:                                  `savedAt "1e9" is not a Unix time in seconds`,
		`{"v":1,"savedAt":true}`:                                 `savedAt "true" is not a Unix time in seconds`,
		`{"v":1,"savedAt":{}}`:                                   `savedAt "{}" is not a Unix time in seconds`,
		`{"v":1,"savedAt":12}`:                                   `savedAt "12" is a time before 2000`,
		`{"v":1,"savedAt":"0001-01-01T00:00:00Z","request":"r"}`: `savedAt "0001-01-01T00:00:00Z" is a time before 2000`,
		`{"v":1,"request":7}`:                                    `request "7" is not a string`,
		`{"v":1,"request":["r"]}`:                                `request "[\"r\"]" is not a string`,
		`{"v":1,"request":"r","uri":{}}`:                         `uri "{}" is not a string`,
		`{"v":1,"request":"r","step":"9"}`:                       `step "\"9\"" is not a whole number`,
		`{"v":1,"request":"r","step":1.5}`:                       `step "1.5" is not a whole number`,
		`{"v":1,"request":"r","step":-1}`:                        `step "-1" is not a whole number`,
		`{"v":1,"request":"r","step":9223372036854775808}`:       `step "9223372036854775808" is not a whole number`,
		strings.Repeat("{", 4096):                                "not valid JSON",
		`{"v":` + strings.Repeat("[", 4000):                      "not valid JSON",
		strings.Repeat("1", 4096):                                `"1111111111111111111111111111111111111111"... is not a Unix time in seconds; is it in milliseconds?`,
		strings.Repeat("1", 4097):                                "longer than 4096 bytes",
		"1785579630" + strings.Repeat(" ", 4087):                 "longer than 4096 bytes",
	} {
		ack, err := DecodeAck([]byte(raw))
		if assert.ErrorContains(t, err, why, raw) {
			assert.Equal(t, Ack{}, ack, raw)
			assert.Less(t, len(err.Error()), 200, raw)
		}
	}
}

func FuzzDecodeAck(f *testing.F) {
	for _, seed := range []string{
		"", "1785579630", "1785579630.5", "2026-08-01T10:20:30.5+02:00", `{"v":1,"savedAt":1785579630,"request":"r","step":3,"uri":"s3://b"}`,
		`{"v":1,"savedAt":"2026-08-01T10:20:30Z"}`, `{"v":1,"v":1}`, `{"v":2}`, "{}", "[", "\xff", "0001-01-01T00:00:00Z",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := string(raw)
		ack, err := DecodeAck(raw)
		require.Equal(t, before, string(raw))
		if err != nil {
			require.Equal(t, Ack{}, ack)
			require.Less(t, len(err.Error()), 512)
			for _, r := range err.Error() {
				require.True(t, r >= ' ' && r < utf8.RuneSelf, "%q goes into a log", err)
			}
			return
		}
		require.LessOrEqual(t, len(raw), maxValue)
		require.False(t, ack.SavedAt.IsZero() && ack.Request == "", "says nothing")
		if !ack.SavedAt.IsZero() {
			require.False(t, ack.SavedAt.Before(earliest))
			require.Less(t, ack.SavedAt.Year(), 10000)
		}
		require.GreaterOrEqual(t, ack.Step, int64(0))

		// What was understood means the same when it is written as JSON.
		fields := map[string]any{"v": 1, "step": ack.Step, "request": ack.Request, "uri": ack.URI}
		if !ack.SavedAt.IsZero() {
			fields["savedAt"] = ack.SavedAt
		}
		again, err := json.Marshal(fields)
		require.NoError(t, err)
		if len(again) <= maxValue {
			back, err := DecodeAck(again)
			require.NoError(t, err, string(again))
			require.Equal(t, ack, back)
		}
	})
}

func TestRequestSurvivesItsEncoding(t *testing.T) {
	for _, request := range []Request{
		{ID: "r1", RequestedAt: time.Date(2026, 8, 1, 10, 20, 30, 123456000, time.UTC), Reason: "cordoned by <kubectl> & co"},
		{ID: "r2", RequestedAt: time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)},
	} {
		back, err := DecodeRequest(request.Encode())
		require.NoError(t, err)
		assert.Equal(t, request, back)
	}
	east := Request{ID: "r", RequestedAt: time.Date(2026, 8, 1, 12, 0, 0, 0, time.FixedZone("", 7200))}
	assert.JSONEq(t, `{"v":1,"id":"r","requestedAt":"2026-08-01T10:00:00Z"}`, string(east.Encode()))
}

// A trainer reads 4096 bytes of a request, and what is cut off there is no JSON.
func TestRequestIsNeverLongerThanTrainersRead(t *testing.T) {
	for _, reason := range []string{strings.Repeat("\x01", 5000), strings.Repeat("é", 5000), strings.Repeat("x", 511) + "é"} {
		raw := Request{ID: "r", RequestedAt: earliest, Reason: reason}.Encode()
		assert.LessOrEqual(t, len(raw), maxValue)
		back, err := DecodeRequest(raw)
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(reason, back.Reason))
		assert.Greater(t, len(back.Reason), 500)
	}
}

func TestDecodeRequestRefusesWhatIsNone(t *testing.T) {
	for raw, why := range map[string]string{
		"":                                      "not a JSON object",
		"r1":                                    "not a JSON object",
		`{"v":1}`:                               "id is missing",
		`{"v":1,"id":"r"}`:                      "requestedAt is missing",
		`{"v":1,"id":7}`:                        `id "7" is not a string`,
		`{"v":2,"id":"r"}`:                      `version "2" is not supported; write 1`,
		`{"v":1,"id":"r","requestedAt":"soon"}`: `requestedAt "soon" is not an RFC 3339 time`,
		`{"v":1,"id":"r","requestedAt":1785579630,"reason":[]}`: `reason "[]" is not a string`,
		strings.Repeat(" ", 4097):                               "longer than 4096 bytes",
	} {
		_, err := DecodeRequest([]byte(raw))
		assert.ErrorContains(t, err, why, raw)
	}
}
