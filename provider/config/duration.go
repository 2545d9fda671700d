package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// UnmarshalJSON parses "90s" or "5m". It rejects a bare number, which Go would read
// as nanoseconds and most users mean as seconds.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("%s is not a duration such as \"90s\" or \"5m\"", data)
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%s is not a duration such as \"90s\" or \"5m\"", show(text))
	}
	d.Duration = parsed
	return nil
}

// MarshalJSON writes the shortest form that UnmarshalJSON parses: 5m, not Go's 5m0s.
func (d Duration) MarshalJSON() ([]byte, error) {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return json.Marshal(text)
}
