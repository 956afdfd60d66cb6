package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Read reads a plan's JSON form strictly. It refuses unknown fields, data after
// the plan, other versions, and parts that contradict each other. GPUs must be
// known and segments must have one of their sizes. Each segment's service must be
// in the list, and counts must match the segments. Read does not check that the
// plan serves its services: planner/verify does. It skips what `penstock plan` adds
// next to a plan (Beside). file is the file's name for errors, which are all
// *FileError.
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

// check returns an error if parts of a plan contradict each other.
func (pl *Plan) check() error {
	if pl.Version != Version {
		return fmt.Errorf("version %d: want %d", pl.Version, Version)
	}
	services := map[string]Assigned{}
	for i, s := range pl.Services {
		_, twice := services[s.Service]
		switch {
		case s.Service == "":
			return fmt.Errorf("services[%d]: no name", i)
		case twice:
			return fmt.Errorf("services[%d]: service %q is listed twice", i, s.Service)
		case !positive(s.RateRPS), !positive(s.SLOMS):
			return fmt.Errorf("services[%d]: rate_rps %v, slo_ms %v: want numbers above 0", i, s.RateRPS, s.SLOMS)
		}
		services[s.Service] = s
	}
	models := map[int]string{}
	gpcs, gpus := 0, pl.GPUs+len(pl.IdleGPUs)
	for i, s := range pl.Segments {
		g, err := Lookup(s.GPUModel)
		if err != nil {
			return fmt.Errorf("segments[%d]: gpu_model %w", i, err)
		}
		size, ok := g.Size(s.GPCs)
		service, known := services[s.Service]
		switch {
		case !ok:
			return fmt.Errorf("segments[%d]: size_gpcs %d: %s can be cut into %s", i, s.GPCs, g.Name, sizeList(g))
		case !size.MayStart(s.Slot):
			return fmt.Errorf("segments[%d]: slot %d: size %d on %s starts at one of %v", i, s.Slot, s.GPCs, g.Name, size.Starts)
		case s.GPU < 0 || s.GPU >= gpus:
			return fmt.Errorf("segments[%d]: gpu %d: want 0 to %d, as gpus is %d", i, s.GPU, gpus-1, pl.GPUs)
		case slices.Contains(pl.IdleGPUs, s.GPU):
			return fmt.Errorf("segments[%d]: gpu %d is in idle_gpus", i, s.GPU)
		case models[s.GPU] != "" && models[s.GPU] != s.GPUModel:
			return fmt.Errorf("segments[%d]: gpu %d is a %s here and a %s above", i, s.GPU, s.GPUModel, models[s.GPU])
		case !known:
			return fmt.Errorf("segments[%d]: service %q is not in services", i, s.Service)
		case s.Model != service.Model:
			return fmt.Errorf("segments[%d]: model %q: service %q has %q", i, s.Model, s.Service, service.Model)
		case s.Batch < 1 || s.Processes < 1:
			return fmt.Errorf("segments[%d]: batch %d, processes %d: want at least 1", i, s.Batch, s.Processes)
		case !positive(s.ThroughputRPS), !positive(s.LatencyMS):
			return fmt.Errorf("segments[%d]: throughput_rps %v, latency_ms %v: want numbers above 0", i, s.ThroughputRPS, s.LatencyMS)
		}
		models[s.GPU] = s.GPUModel
		gpcs += s.GPCs
	}
	if len(models) != pl.GPUs {
		return fmt.Errorf("gpus %d: segments lie on %d", pl.GPUs, len(models))
	}
	if gpcs != pl.GPCs {
		return fmt.Errorf("gpcs %d: segments have %d", pl.GPCs, gpcs)
	}
	return nil
}
