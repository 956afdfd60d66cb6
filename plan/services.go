package plan

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/models/document"
)

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
// file is the file's name for errors, which are all *document.Problem.
//
// It refuses an unknown, missing or duplicate column, a row of another length, and
// a rate or SLO that is not a number above 0. It refuses a rate beyond all GPUs, an
// empty model, and a name that has control characters or is not UTF-8. It refuses a
// service that occurs twice in a scenario. It refuses an unknown scenario and a
// file without services. It also checks the rows of other scenarios.
func ReadServices(r io.Reader, file, scenario string) ([]Service, error) {
	t, err := document.OpenTable(file, r, serviceColumns, requiredColumns)
	if err != nil {
		return nil, err
	}
	type place struct{ scenario, service string }
	var rows []serviceRow
	var scenarios []string
	seen := map[place]int{}
	for t.Next() {
		row, err := readService(t)
		if err != nil {
			return nil, err
		}
		at := place{row.scenario, row.service.Name}
		if line := seen[at]; line > 0 {
			return nil, t.Fail(row.named, "service %q is already on line %d: want one row per service, with different names in the column service", row.service.Name, line)
		}
		seen[at] = t.Line()
		if !slices.Contains(scenarios, row.scenario) {
			scenarios = append(scenarios, row.scenario)
		}
		rows = append(rows, row)
	}
	if err := t.Err(); err != nil {
		return nil, err
	}
	whole := func(format string, args ...any) error {
		return &document.Problem{File: file, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(rows) == 0:
		return nil, whole("no services: want a row for each under the header")
	case scenario != "" && !t.Has("scenario"):
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

func readService(t *document.Table) (r serviceRow, err error) {
	s := Service{Name: t.Text("service"), Model: t.Text("model")}
	in := t.Text("scenario")
	if s.Model == "" {
		return r, t.Fail("model", "no model: want the name of a profile")
	}
	if s.RateRPS, err = readPositive(t, "rate_rps", "requests per second"); err != nil {
		return r, err
	}
	if s.RateRPS > maxRPS {
		return r, t.Fail("rate_rps", "rate_rps %q: want at most %.0f requests per second", t.Text("rate_rps"), maxRPS)
	}
	if s.SLOMS, err = readPositive(t, "slo_ms", "milliseconds"); err != nil {
		return r, err
	}
	if t.Has("scenario") && in == "" {
		return r, t.Fail("scenario", "no scenario: want a name, as other rows have")
	}
	for _, column := range []string{"model", "service", "scenario"} {
		switch text := t.Text(column); {
		case strings.ContainsFunc(text, unicode.IsControl):
			return r, t.Fail(column, "%s %q: want no control characters in a name", column, text)
		case !utf8.ValidString(text): // encoding as JSON would change it
			return r, t.Fail(column, "%s %q: want a name in UTF-8", column, text)
		}
	}
	r = serviceRow{in, s, "service"}
	if s.Name == "" {
		r.service.Name, r.named = s.Model, "model"
	}
	return r, nil
}

// readPositive returns a field that must be a number above 0. unit is for the error.
func readPositive(t *document.Table, name, unit string) (float64, error) {
	text := t.Text(name)
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !positive(x) {
		return 0, t.Fail(name, "%s %q: want a number of %s above 0", name, text, unit)
	}
	return x, nil
}
