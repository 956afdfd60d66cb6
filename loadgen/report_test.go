package loadgen_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/answer"
)

var update = flag.Bool("update", false, "write the golden files")

func pointer[T any](v T) *T { return &v }

// sample returns a report of two functions. The first sets every field. The
// second was never answered, and the manager does not know it.
func sample() *loadgen.Report {
	return &loadgen.Report{
		Seconds: 30,
		Functions: []loadgen.FunctionReport{{
			Name: "fashion", SLOMillis: 10, Sent: 1000, Answered: 994, OK: 980, Late: 5, Dropped: 1, Incomplete: 1, Busy: 4, Refused: 2, Failed: 3, Unanswered: 5, InTime: 975,
			WithinSLO: 97.5, GoodputRPS: 32.5, P50Millis: 1.234, P99Millis: 8.5, P999Millis: 9.75, MeanBatch: 3.25,
			SharePercent: pointer(40.0), Swaps: pointer(uint64(2)), Lost: pointer(uint64(0)),
			Checked: 980, Wrong: 1, Differences: []string{"picture 3: place 1: class 4 with 0.9000, want 0.8000"},
			OfferedRPS: 33.333, Unsent: 2, GaveUp: "no credit within the timeout", SendLagP99Millis: 0.15,
			Stages:            map[string]loadgen.StageReport{"aggregate": {P50: 0.1, P99: 0.2}, "infer": {P50: 1, P99: 2}},
			FirstSharePercent: pointer(25.0), SwapIdle: &control.IdleMicros{Count: 2, Last: 41, P50: 42.4, P99: 55, Max: 55}, KernelDrops: pointer(uint64(7)),
			Answers: []answer.Answer{{Payload: []byte{1}}},
		}, {
			Name: "detect", SLOMillis: 400, Sent: 3, Unanswered: 3, Stages: map[string]loadgen.StageReport{},
		}},
	}
}

func TestReportJSON(t *testing.T) {
	var got bytes.Buffer
	must.OK(t, sample().WriteJSON(&got))
	golden := filepath.Join("testdata", "report.json")
	if *update {
		must.OK(t, os.WriteFile(golden, got.Bytes(), 0o666))
	}
	want, err := os.ReadFile(golden)
	must.OK(t, err)
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the JSON is no longer %s (-update writes it):\n%s", golden, &got)
	}
}

// TestReportFields: programs read these fields, so all are
// present, even if their values are unknown.
func TestReportFields(t *testing.T) {
	var buffer bytes.Buffer
	must.OK(t, sample().WriteJSON(&buffer))
	var report struct {
		Functions []map[string]any `json:"functions"`
	}
	must.OK(t, json.Unmarshal(buffer.Bytes(), &report))
	for _, f := range report.Functions {
		for _, key := range []string{
			"name", "slo_ms", "sent", "answered", "ok", "late", "incomplete", "busy", "refused", "failed", "unanswered",
			"within_slo", "goodput_rps", "p50_ms", "p99_ms", "p999_ms", "mean_batch", "share", "swaps", "lost",
		} {
			if _, ok := f[key]; !ok {
				t.Errorf("%v lacks %q", f["name"], key)
			}
		}
	}
}

func TestWriteTable(t *testing.T) {
	report := sample()
	report.Interrupted = true
	var buffer bytes.Buffer
	must.OK(t, report.WriteTable(&buffer, 240))
	for _, want := range []string{
		"97.50", "8.50", "9.75", "25.0 → 40.0 %", "fashion: work waited 42 µs (p50), 55 µs (max) for a swap",
		"│ function │ sent │ in time │ too late │ late │ dropped │ busy │ incomplete │ refused │ failed │ lost │ unanswered │",
		"│ fashion  │ 1000 │     975 │        5 │    4 │       1 │    4 │          1 │       2 │      3 │    0 │          5 │",
		"fashion: the client gave up (2 before sending): no credit within the timeout",
		"fashion: the kernel dropped 7 datagrams",
		"fashion: checked 980 answers (with warm-up) in this process, 1 differ",
		"fashion:   picture 3: place 1",
		"interrupted after 30.0 s",
	} {
		if !strings.Contains(buffer.String(), want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if strings.Contains(buffer.String(), "behind schedule") {
		t.Error("a lag of 0.15 ms is complained of")
	}
	if t.Failed() {
		t.Logf("\n%s", &buffer)
	}
}

// TestTableWidth checks a usual report: one table of 80 columns with the p99.
func TestTableWidth(t *testing.T) {
	report := loadgen.Report{Functions: []loadgen.FunctionReport{
		{Name: "fashion", SLOMillis: 10, Sent: 60000, OK: 60000, InTime: 59990, P99Millis: 1.55, Lost: pointer(uint64(0))},
		{Name: "detect", SLOMillis: 400, Sent: 1198, OK: 577, InTime: 566, Late: 621, Dropped: 30, P99Millis: 391.9, Lost: pointer(uint64(0))},
	}}
	var buffer bytes.Buffer
	must.OK(t, report.WriteTable(&buffer, 0))
	for _, want := range []string{"│ function │  sent │ in time │ too late │ late │ dropped │ lost │ p99 ms │", "│ detect   │  1198 │     566 │       11 │  591 │      30 │    0 │ 391.90 │"} {
		if !strings.Contains(buffer.String(), want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if n := text.LongestLineLen(buffer.String()); n > 80 || strings.Count(buffer.String(), "╭") != 1 {
		t.Errorf("%d columns wide, want one table of at most 80", n)
	}
	if t.Failed() {
		t.Logf("\n%s", &buffer)
	}
}

// TestOutcomes checks that each request is counted once.
func TestOutcomes(t *testing.T) {
	for _, f := range append(sample().Functions,
		loadgen.FunctionReport{Sent: 9, OK: 1, Unanswered: 8, Lost: pointer(uint64(3))},
		loadgen.FunctionReport{Sent: 2, OK: 1, Unanswered: 1, Lost: pointer(uint64(7))}, // six of the warm-up
	) {
		o := f.Outcomes()
		sum := o.InTime + o.TooLate + o.Late + o.Dropped + o.Busy + o.Incomplete + o.Refused + o.Failed + o.Lost + o.Unanswered
		if o.Sent != f.Sent || sum != f.Sent {
			t.Errorf("%+v sums up to %d, want %d", o, sum, f.Sent)
		}
	}
}

func TestTableSendLag(t *testing.T) {
	report := sample()
	report.Functions[0].SendLagP99Millis = 3
	var buffer bytes.Buffer
	must.OK(t, report.WriteTable(&buffer, 0))
	if !strings.Contains(buffer.String(), "fashion: the load generator ran 3.00 ms behind schedule (p99)") {
		t.Errorf("\n%s", &buffer)
	}
}

// full is a writer without space.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriteErrors(t *testing.T) {
	report := sample()
	for name, write := range map[string]func() error{
		"table": func() error { return report.WriteTable(full{}, 0) },
		"JSON":  func() error { return report.WriteJSON(full{}) },
	} {
		if err := write(); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
