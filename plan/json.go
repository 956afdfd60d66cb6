package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Read reads a plan's JSON form strictly. It refuses unknown fields, data after
// the plan, and other versions. Read does not check that the plan is legal:
// planner/verify does. It skips what `penstock plan` adds next to a plan (Extra).
// file is the file's name for errors, which are all *FileError.
func Read(r io.Reader, file string) (*Plan, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, &FileError{File: file, Err: err}
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // CSV files may have one, too
	pl := new(Plan)
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	whole := struct {
		*Plan
		Extra
	}{Plan: pl}
	if err := decoder.Decode(&whole); err != nil {
		return nil, jsonError(text, file, decoder.InputOffset(), err)
	}
	end := decoder.InputOffset()
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, jsonError(text, file, end, errors.New("more after the plan: want one plan and nothing else"))
	}
	if err := pl.check(); err != nil {
		return nil, &FileError{File: file, Err: err}
	}
	return pl, nil
}

// Extra has the fields that `penstock plan` may add to a plan's JSON object. They
// answer questions about the plan, are not part of it, and Read skips them.
type Extra struct {
	Change   any `json:"change,omitempty"`
	Replay   any `json:"replay,omitempty"`
	MIGSteps any `json:"mig_steps,omitempty"`
}

// jsonError adds the position to an error of encoding/json. It uses offset if the
// error has none.
func jsonError(text []byte, file string, offset int64, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
		// The path begins with the embedded struct.
		err = fmt.Errorf("%s: want %s, not %s", cmp.Or(strings.TrimPrefix(kind.Field, "Plan."), "the whole"), kindName(kind), kind.Value)
	case errors.Is(err, io.EOF):
		err = errors.New("empty: want a plan")
	case errors.Is(err, io.ErrUnexpectedEOF):
		offset = int64(len(text))
		err = errors.New("ends in the middle of a plan")
	default:
		err = errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	before := text[:min(max(offset, 0), int64(len(text)))]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := max(1, len(before)-(bytes.LastIndexByte(before, '\n')+1))
	return &FileError{File: file, Line: line, Column: column, Err: err}
}

// kindName returns the type that a field must have, in JSON's terms.
func kindName(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "int":
		return "a whole number"
	case "float64":
		return "a number"
	case "slice":
		return "a list"
	case "struct", "map":
		return "an object"
	case "bool":
		return "true or false"
	}
	return "a text"
}

// check returns an error if the plan is not of this version, or if a service's rate or objective is no number above 0.
func (pl *Plan) check() error {
	if pl.Version != Version {
		return fmt.Errorf("version %d: want %d", pl.Version, Version)
	}
	for i, s := range pl.Services {
		if !positive(s.RateRPS) || !positive(s.SLOMS) {
			return fmt.Errorf("services[%d]: rate_rps %v, slo_ms %v: want numbers above 0", i, s.RateRPS, s.SLOMS)
		}
	}
	return nil
}
