package simulated

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

const (
	stateKind    = "gpu-node-provider.io/simulated-cloud"
	stateVersion = 1
)

// stateFile is the state as it is written. A field that is added needs a new
// version: older programs refuse what they do not know rather than lose it.
type stateFile struct {
	Kind     string            `json:"kind"`
	Version  int               `json:"version"`
	Clock    time.Time         `json:"clock"`
	Sequence sequence          `json:"sequence"`
	Groups   map[string][]unit `json:"groups"`
}

func encodeState(s *state) ([]byte, error) {
	data, err := json.Marshal(stateFile{
		Kind: stateKind, Version: stateVersion, Clock: s.Clock, Sequence: s.Sequence, Groups: s.Groups,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the state: %w", err)
	}
	return append(data, '\n'), nil
}

// decodeState accepts only what encodeState could have written.
func decodeState(data []byte) (*state, error) {
	// Kind and version come first: that a file is not ours is more to the point
	// than the first of its fields that is unknown here.
	var header struct {
		Kind    string `json:"kind"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(data, &header); err != nil {
		return nil, fmt.Errorf("invalid or truncated JSON: %w", err)
	}
	if header.Kind != stateKind {
		return nil, fmt.Errorf("not a state file of the simulated cloud: kind is %q, not %q", header.Kind, stateKind)
	}
	if header.Version != stateVersion {
		return nil, fmt.Errorf("version %d is not supported, this version reads %d", header.Version, stateVersion)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var file stateFile
	if err := decoder.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the state")
	}
	s := &state{Clock: file.Clock, Sequence: file.Sequence, Groups: file.Groups}
	if s.Groups == nil {
		s.Groups = map[string][]unit{}
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *state) validate() error {
	if s.Clock.IsZero() {
		return errors.New("clock is missing")
	}
	if !s.Sequence.valid() {
		return fmt.Errorf("sequence %+v is out of range", s.Sequence)
	}
	serials := map[string]string{}
	for _, group := range slices.Sorted(maps.Keys(s.Groups)) {
		if !validGroup(group) {
			return fmt.Errorf("group %q is not a DNS label", group)
		}
		for i, u := range s.Groups[group] {
			if err := u.validate(); err != nil {
				return fmt.Errorf("groups.%s[%d]: %w", group, i, err)
			}
			where := fmt.Sprintf("groups.%s[%d]", group, i)
			if other, ok := serials[u.Serial]; ok {
				return fmt.Errorf("%s and %s have the same serial %q", other, where, u.Serial)
			}
			serials[u.Serial] = where
		}
	}
	return nil
}

func (u unit) validate() error {
	switch {
	case !isCode(u.Serial, serialLen):
		return fmt.Errorf("serial %q is malformed", u.Serial)
	case !isCode(u.Salt, saltLen):
		return fmt.Errorf("salt %q is malformed", u.Salt)
	case u.Asked.IsZero() || u.Launch.Before(u.Asked):
		return errors.New("asked and launch are not in order")
	case u.Failure != nil:
		return u.validateFailure()
	case u.Running.Before(u.Launch) || u.Devices.Before(u.Running):
		return errors.New("launch, running and devices are not in order")
	default:
		return u.validateEnd()
	}
}

func (u unit) validateFailure() error {
	switch {
	case !slices.Contains(launchCodes, u.Failure.Code):
		return fmt.Errorf("failure code %q is unknown", u.Failure.Code)
	case !u.Running.IsZero() || !u.Devices.IsZero() || u.isEnded() || !u.Gone.IsZero() || u.Replaced:
		return errors.New("a failed launch has fields of a running instance")
	}
	return nil
}

func (u unit) validateEnd() error {
	switch {
	case u.isEnded() == u.Gone.IsZero() || u.Gone.Before(u.Ended):
		return errors.New("ended and gone are not in order")
	case u.isEnded() && u.Ended.Before(u.Launch):
		return errors.New("ended before its launch")
	case u.Replaced && !u.isEnded():
		return errors.New("replaced, but not ended")
	}
	return nil
}
