package plan

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A FileError is a fault in a file: its position, what is wrong, and what would be
// right.
type FileError struct {
	// File is the file's name as the caller gave it.
	File string
	// Line and Column count from 1, columns in bytes. They are 0 if the fault is in
	// the file as a whole.
	Line, Column int
	Err          error
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Column, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// The columns of a services file. The first three are required.
var serviceColumns = []string{"model", "rate_rps", "slo_ms", "service", "scenario"}

const requiredColumns = 3

// maxRPS is a rate for some hundred thousand GPUs. A higher rate is a typing
// error, and planning it would exhaust the memory.
const maxRPS = 1e9

// ReadServices reads services from CSV. The header has the columns model, rate_rps
// and slo_ms, and optionally service and scenario, in any order. service is a name;
// if the column is missing or the field is empty, the name is the model's. If the
// file has more than one scenario, scenario selects one; otherwise it may be "".
// file is the file's name for errors, which are all *FileError.
//
// It refuses an unknown, missing or duplicate column, a row of another length, and
// a rate or SLO that is not a number above 0. It refuses a rate beyond all GPUs, an
// empty model, and a name that has control characters or is not UTF-8. It refuses a
// service that occurs twice in a scenario. It refuses an unknown scenario and a
// file without services. It also checks the rows of other scenarios.
func ReadServices(r io.Reader, file, scenario string) ([]Service, error) {
	t, err := readTable(r, file, serviceColumns, requiredColumns)
	if err != nil {
		return nil, err
	}
	type place struct{ scenario, service string }
	var rows []serviceRow
	var scenarios []string
	seen := map[place]int{}
	for t.next() {
		row, err := readService(t)
		if err != nil {
			return nil, err
		}
		at := place{row.scenario, row.service.Name}
		if line := seen[at]; line > 0 {
			return nil, t.fail(row.named, "service %q is already on line %d: want one row per service, with different names in the column service", row.service.Name, line)
		}
		seen[at] = t.line
		if !slices.Contains(scenarios, row.scenario) {
			scenarios = append(scenarios, row.scenario)
		}
		rows = append(rows, row)
	}
	if t.err != nil {
		return nil, t.err
	}
	whole := func(format string, args ...any) error {
		return &FileError{File: file, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case len(rows) == 0:
		return nil, whole("no services: want a row for each under the header")
	case scenario != "" && !t.has("scenario"):
		return nil, whole("no column scenario: want one to choose %q from", scenario)
	case scenario != "" && !slices.Contains(scenarios, scenario):
		return nil, whole("no scenario %q: want one of %s", scenario, strings.Join(scenarios, ", "))
	case scenario == "" && len(scenarios) > 1:
		return nil, whole("several scenarios: choose one of %s with --scenario", strings.Join(scenarios, ", "))
	}
	var services []Service
	for _, r := range rows {
		if scenario == "" || r.scenario == scenario {
			services = append(services, r.service)
		}
	}
	return services, nil
}

// serviceRow is a service and its scenario. named is the column that its name comes
// from.
type serviceRow struct {
	scenario string
	service  Service
	named    string
}

func readService(t *csvTable) (r serviceRow, err error) {
	s := Service{Name: t.text("service"), Model: t.text("model")}
	in := t.text("scenario")
	if s.Model == "" {
		return r, t.fail("model", "no model: want the name of a profile")
	}
	if s.RateRPS, err = t.positive("rate_rps", "requests per second"); err != nil {
		return r, err
	}
	if s.RateRPS > maxRPS {
		return r, t.fail("rate_rps", "rate_rps %q: want at most %.0f requests per second", t.text("rate_rps"), maxRPS)
	}
	if s.SLOMS, err = t.positive("slo_ms", "milliseconds"); err != nil {
		return r, err
	}
	if t.has("scenario") && in == "" {
		return r, t.fail("scenario", "no scenario: want a name, as other rows have")
	}
	for _, column := range []string{"model", "service", "scenario"} {
		switch text := t.text(column); {
		case strings.ContainsFunc(text, unicode.IsControl):
			return r, t.fail(column, "%s %q: want no control characters in a name", column, text)
		case !utf8.ValidString(text): // encoding as JSON would change it
			return r, t.fail(column, "%s %q: want a name in UTF-8", column, text)
		}
	}
	r = serviceRow{in, s, "service"}
	if s.Name == "" {
		r.service.Name, r.named = s.Model, "model"
	}
	return r, nil
}

// csvTable reads a CSV file with a header row by row, and tracks its position.
type csvTable struct {
	file   string
	reader *csv.Reader
	column map[string]int
	fields []string
	line   int
	err    error
}

// readTable reads the header. columns are the allowed columns, of which the first
// required ones must be present.
func readTable(r io.Reader, file string, columns []string, required int) (*csvTable, error) {
	t := &csvTable{file: file, reader: csv.NewReader(r), column: map[string]int{}}
	t.reader.FieldsPerRecord = -1
	t.reader.TrimLeadingSpace = true
	header, err := t.reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, &FileError{File: file, Err: fmt.Errorf("empty: want a header with %s", strings.Join(columns[:required], ","))}
	}
	if err != nil {
		return nil, t.wrap(err)
	}
	header = slices.Clone(header)
	// Spreadsheets put a byte order mark in front.
	header[0] = strings.TrimPrefix(header[0], "\ufeff")
	for i, name := range header {
		name = strings.TrimSpace(name)
		line, col := t.reader.FieldPos(i)
		if !slices.Contains(columns, name) {
			return nil, &FileError{file, line, col, fmt.Errorf("unknown column %q: want one of %s", name, strings.Join(columns, ","))}
		}
		if _, twice := t.column[name]; twice {
			return nil, &FileError{file, line, col, fmt.Errorf("column %q is listed twice", name)}
		}
		t.column[name] = i
	}
	for _, name := range columns[:required] {
		if !t.has(name) {
			last := len(header) - 1
			line, col := t.reader.FieldPos(last)
			return nil, &FileError{file, line, col + len(header[last]),
				fmt.Errorf("no column %q: want a header with %s", name, strings.Join(columns[:required], ","))}
		}
	}
	return t, nil
}

// next reads a row. It returns false at the end or on an error, which it stores in
// err.
func (t *csvTable) next() bool {
	fields, err := t.reader.Read()
	if errors.Is(err, io.EOF) {
		return false
	}
	if err != nil {
		t.err = t.wrap(err)
		return false
	}
	t.fields = fields
	t.line, _ = t.reader.FieldPos(0)
	if want := len(t.column); len(fields) != want {
		line, col := t.reader.FieldPos(min(len(fields)-1, want))
		t.err = &FileError{t.file, line, col, fmt.Errorf("%d fields: want %d, as the header has", len(fields), want)}
		return false
	}
	return true
}

func (t *csvTable) has(name string) bool { _, ok := t.column[name]; return ok }

// text returns a field of the row, "" if there is no such column.
func (t *csvTable) text(name string) string {
	i, ok := t.column[name]
	if !ok {
		return ""
	}
	return strings.TrimSpace(t.fields[i])
}

// fail returns an error at a field of the row.
func (t *csvTable) fail(name, format string, args ...any) error {
	line, col := t.reader.FieldPos(t.column[name])
	return &FileError{t.file, line, col, fmt.Errorf(format, args...)}
}

// positive returns a field that must be a number above 0. unit is for the error.
func (t *csvTable) positive(name, unit string) (float64, error) {
	text := t.text(name)
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !positive(x) {
		return 0, t.fail(name, "%s %q: want a number of %s above 0", name, text, unit)
	}
	return x, nil
}

// wrap adds the position that encoding/csv reports for an error.
func (t *csvTable) wrap(err error) error {
	if at, ok := errors.AsType[*csv.ParseError](err); ok {
		return &FileError{t.file, at.Line, at.Column, at.Err}
	}
	return &FileError{File: t.file, Err: err}
}
