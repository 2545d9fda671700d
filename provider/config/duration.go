package config

import (
	"encoding/json"
	"fmt"
	"time"
)

// UnmarshalJSON reads "90s" or "5m". A bare number is refused: it would be
// nanoseconds to Go and seconds to everybody else.
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

// MarshalJSON writes what UnmarshalJSON reads.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(d.String())
}
