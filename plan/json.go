package plan

import (
	"fmt"
	"io"

	"github.com/penstock/penstock/models/document"
)

// Read reads a plan's JSON form strictly. It refuses unknown fields, data after
// the plan, and other versions. Read does not check that the plan is legal:
// planner/verify does. It skips what `penstock plan` adds next to a plan (Extra).
// file is the file's name for errors, which are all *document.Problem.
func Read(r io.Reader, file string) (*Plan, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, &document.Problem{File: file, Text: err.Error()}
	}
	pl := new(Plan)
	whole := struct {
		*Plan
		Extra
	}{Plan: pl}
	if err := document.DecodeJSON(file, text, &whole, "a plan"); err != nil {
		return nil, err
	}
	if err := pl.check(); err != nil {
		return nil, &document.Problem{File: file, Text: err.Error()}
	}
	return pl, nil
}

// Extra has the fields that `penstock plan` may add to a plan's JSON object. They
// answer questions about the plan, are not part of it, and Read skips them.
type Extra struct {
	Change any `json:"change,omitempty"`
	Replay any `json:"replay,omitempty"`
	Steps  any `json:"steps,omitempty"`
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
