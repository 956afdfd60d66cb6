package loadgen_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/loadfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
)

func TestParseRequirement(t *testing.T) {
	for text, want := range map[string]loadgen.Requirement{
		"within=99%":            {Metric: "within", Bound: 99},
		"face:p99=25ms":         {Function: "face", Metric: "p99", Bound: 25},
		"p99.9=1s":              {Metric: "p99.9", Bound: 1000},
		"p50=250us":             {Metric: "p50", Bound: 0.25},
		"a-b_1:answered=0%":     {Function: "a-b_1", Metric: "answered"},
		"ok=99.95%":             {Metric: "ok", Bound: 99.95},
		"accuracy=100%":         {Metric: "accuracy", Bound: 100},
		"goodput=50":            {Metric: "goodput", Bound: 50},
		"fashion:goodput=0.5/s": {Function: "fashion", Metric: "goodput", Bound: 0.5},
	} {
		if got, err := loadgen.ParseRequirement(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
}

func TestParseRequirementErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":               "want [FUNCTION:]METRIC=BOUND, like within=99% or face:p99=25ms",
		"within":         "want [FUNCTION:]METRIC=BOUND",
		"p98=25ms":       `metric "p98" is unknown; known are within, answered, ok, accuracy, goodput, p50, p99, p99.9`,
		":p99=25ms":      "want a function before the colon",
		"face:=1":        `metric "" is unknown`,
		"within=99":      "want 0% to 100%, like within=99%",
		"within=0.99":    "want 0% to 100%",
		"within=101%":    "want 0% to 100%",
		"within=-1%":     "want 0% to 100%",
		"within=NaN%":    "want 0% to 100%",
		"within=>99%":    "want 0% to 100%",
		"face:p99=25":    "want a duration with its unit, more than 0, like face:p99=25ms",
		"p99=-25ms":      "want a duration",
		"p99=0s":         "want a duration",
		"p99=25%":        "want a duration",
		"goodput=fast":   "want requests per second, like goodput=50",
		"goodput=Inf":    "want requests per second",
		"goodput=50/s/s": "want requests per second",
		"goodput=-1":     "want requests per second",
	} {
		if _, err := loadgen.ParseRequirement(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// require returns what a report misses of the given requirements.
func require(t *testing.T, r *loadgen.Report, texts ...string) []string {
	t.Helper()
	var all []loadgen.Requirement
	for _, text := range texts {
		q, err := loadgen.ParseRequirement(text)
		must.OK(t, err)
		all = append(all, q)
	}
	must.OK(t, r.Require(all))
	return r.Missed()
}

func TestMissedRequirements(t *testing.T) {
	r := sample()
	missed := require(t, r, "within=97.5%", "fashion:p99=8.5ms", "fashion:p99=8ms", "fashion:goodput=33", "fashion:answered=99.6%", "fashion:ok=98%", "fashion:accuracy=92%", "fashion:p50=2ms", "fashion:p99.9=9ms", "detect:p99=1s", "detect:accuracy=1%")
	want := []string{
		"detect: within is 0 %, want at least 97.5 %",
		"fashion: p99 is 8.5 ms, want at most 8 ms",
		"fashion: goodput is 32.5 /s, want at least 33 /s",
		"fashion: answered is 99.4 %, want at least 99.6 %",
		"fashion: accuracy is 91.9 %, want at least 92 %",
		"fashion: p99.9 is 9.75 ms, want at most 9 ms",
		"detect: p99 is unknown (nothing was answered ok), want at most 1000 ms",
		"detect: accuracy is unknown (no labelled picture was answered), want at least 1 %",
	}
	if !slices.Equal(missed, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(missed, "\n"), strings.Join(want, "\n"))
	}
	var table, object bytes.Buffer
	if err := r.WriteTable(&table, 0); err != nil || !strings.Contains(table.String(), "\n4 of 12 requirements met\n") {
		t.Errorf("%v in\n%s", err, &table)
	}
	var read struct {
		Requirements []map[string]any `json:"requirements"`
	}
	must.OK(t, r.WriteJSON(&object))
	if err := json.Unmarshal(object.Bytes(), &read); err != nil || len(read.Requirements) != 12 {
		t.Fatalf("%v, %v", read, err)
	}
	v := read.Requirements[3] // "within" of both functions comes first
	if v["function"] != "fashion" || v["metric"] != "p99" || v["required"] != 8.0 || v["most"] != true || v["unit"] != "ms" || v["measured"] != 8.5 || v["met"] != false {
		t.Errorf("verdict %v", v)
	}
}

func TestRequireNoAnswers(t *testing.T) {
	r := &loadgen.Report{Functions: []loadgen.FunctionReport{{Name: "face"}}}
	if missed := require(t, r, "within=0%"); len(missed) != 1 || !strings.Contains(missed[0], "nothing was sent") {
		t.Errorf("missed %q", missed)
	}
}

func TestRequireNoTraffic(t *testing.T) {
	err := sample().Require([]loadgen.Requirement{{Function: "fase", Metric: "p99", Bound: 1}})
	if err == nil || err.Error() != "require p99 of fase: want a function with traffic" {
		t.Errorf("got %v", err)
	}
}

// TestRequireAll: rounding does not hide one missing answer among very many.
func TestRequireAll(t *testing.T) {
	report := run(t, constant(t, 5000, 60*time.Second), dead(7, 8))
	if f := report.Functions[0]; f.Unanswered != 1 || f.WithinSLO == 100 {
		t.Fatalf("%d unanswered, %v %% within", f.Unanswered, f.WithinSLO)
	}
	if missed := require(t, report, "answered=100%", "within=100%", "ok=100%", "answered=99.99%"); len(missed) != 3 {
		t.Errorf("missed %q", missed)
	}
	if missed := require(t, run(t, constant(t, 100, time.Second), &loadfake.System{}), "answered=100%", "within=100%"); len(missed) != 0 {
		t.Errorf("missed %q", missed)
	}
}
