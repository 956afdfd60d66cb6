package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/wire"
)

// Report is what a run measured. It is plain data.
type Report struct {
	Functions []FunctionReport `json:"functions"`
	// Seconds is the measured time. Interrupted means that the run was cut
	// short.
	Seconds     float64 `json:"seconds"`
	Interrupted bool    `json:"interrupted,omitempty"`
	// ManagerError is why the manager could not be asked at the end. Lost
	// requests are then unknown.
	ManagerError string `json:"manager_error,omitempty"`
}

// FunctionReport is what a run measured of one function.
//
// Always: Sent = OK + Late + Incomplete + Busy + Refused + Failed + Unanswered.
type FunctionReport struct {
	Name      string  `json:"name"`
	SLOMillis float64 `json:"slo_ms"`
	// Sent counts the requests that were meant to be sent in the measured time.
	// Answered counts those that got a reply of any status.
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	OK       uint64 `json:"ok"`
	// Late counts requests that could no longer meet the objective and were not
	// run. Dropped counts those of Late that the client never sent.
	Late       uint64 `json:"late"`
	Dropped    uint64 `json:"dropped"`
	Incomplete uint64 `json:"incomplete"`
	Busy       uint64 `json:"busy"`
	Refused    uint64 `json:"refused"`
	Failed     uint64 `json:"failed"`
	Unanswered uint64 `json:"unanswered"`
	// InTime counts those of OK that came within the objective, counted from the intended moment.
	// WithinSLO is that as a percentage of Sent, GoodputRPS per second.
	InTime     uint64  `json:"in_time"`
	WithinSLO  float64 `json:"within_slo"`
	GoodputRPS float64 `json:"goodput_rps"`
	// Percentiles of the latency of ok answers; 0 if there were none.
	P50Millis  float64 `json:"p50_ms"`
	P99Millis  float64 `json:"p99_ms"`
	P999Millis float64 `json:"p999_ms"`
	// MeanBatch is the mean size of the batches that contained the ok answers.
	MeanBatch float64 `json:"mean_batch"`
	// SharePercent is the share at the end. Lost counts requests that the
	// manager accepted and never answered. SharePercent, Swaps and Lost come
	// from the manager; they are null if it was not asked.
	SharePercent *float64 `json:"share"`
	Swaps        *uint64  `json:"swaps"`
	Lost         *uint64  `json:"lost"`

	// Checked counts the answers that were compared with the reference. Wrong
	// counts those that differ; Differences describes the first of them. All
	// include the warm-up.
	Checked     uint64   `json:"checked"`
	Wrong       uint64   `json:"wrong"`
	Differences []string `json:"differences,omitempty"`
	// OfferedRPS is Sent per second.
	OfferedRPS float64 `json:"offered_rps"`
	// Unsent counts those of Unanswered of which the client sent no byte,
	// because it had no credit or no room. GaveUp is why the client gave up the
	// first of Unanswered.
	Unsent uint64 `json:"unsent"`
	GaveUp string `json:"gave_up,omitempty"`
	// SendLagP99Millis is how late this program handed requests over (p99). The
	// latencies include this lag: if it is large, they measure this program.
	SendLagP99Millis float64 `json:"send_lag_p99_ms"`
	// Stages splits the time of the ok answers in the manager: aggregate, queue,
	// gather, infer, reply.
	Stages map[string]StageReport `json:"stages_ms"`
	// FirstSharePercent is the share at the beginning.
	FirstSharePercent *float64 `json:"first_share,omitempty"`
	// SwapIdle counts from the manager's start.
	SwapIdle *control.IdleMicros `json:"swap_idle_us,omitempty"`
	// KernelDrops counts datagrams that the kernel dropped because a buffer was
	// full.
	KernelDrops *uint64 `json:"kernel_drops,omitempty"`
	// Restarted means that the manager's counters started again from 0. Either
	// the manager died and another one started, or the function was removed and
	// added. Lost counts from then on.
	Restarted bool `json:"restarted,omitempty"`
	// Removed means that the node had the function at the beginning but not at
	// the end.
	Removed bool `json:"removed,omitempty"`

	// Answers has the first ok answer to each picture. Its payload is nil if
	// there was none.
	Answers []answer.Answer `json:"-"`
}

// StageReport is one stage of a request in the manager, in milliseconds.
type StageReport struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func (t *traffic) report(measured time.Duration, w *watch) FunctionReport {
	l := t.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &l.stats
	answered := a.answered()
	r := FunctionReport{
		Name:             t.f.Name,
		SLOMillis:        millis(t.f.SLO),
		Sent:             a.sent,
		Answered:         answered,
		OK:               a.statuses[client.StatusOK],
		Late:             a.statuses[client.StatusLate] + a.dropped,
		Dropped:          a.dropped,
		Incomplete:       a.statuses[client.StatusIncomplete],
		Busy:             a.statuses[client.StatusBusy],
		Refused:          a.statuses[client.StatusRefused],
		Failed:           a.statuses[client.StatusFailed],
		Unanswered:       a.sent - answered - a.dropped,
		InTime:           a.within,
		WithinSLO:        percent(a.within, a.sent),
		GoodputRPS:       perSecond(a.within, measured),
		OfferedRPS:       perSecond(a.sent, measured),
		P50Millis:        rounded(a.latency.millis(50)),
		P99Millis:        rounded(a.latency.millis(99)),
		P999Millis:       rounded(a.latency.millis(99.9)),
		MeanBatch:        rounded(a.meanBatch()),
		Checked:          a.checked,
		Wrong:            a.wrong,
		Differences:      a.differences,
		Unsent:           a.unsent,
		GaveUp:           errorText(a.gaveUp),
		SendLagP99Millis: rounded(a.lag.millis(99)),
		Stages:           make(map[string]StageReport, len(wire.StageNames)),
		Answers:          a.first,
	}
	for i, name := range wire.StageNames {
		r.Stages[name] = StageReport{P50: rounded(a.stages[i].millis(50)), P99: rounded(a.stages[i].millis(99))}
	}
	if status, known := w.function(t.f.Name); known {
		r.SharePercent, r.Swaps, r.Lost = &status.SharePercent, &status.Swaps, &status.Lost
		r.KernelDrops, r.SwapIdle = &status.KernelDrops, &status.SwapIdle
		r.FirstSharePercent = new(w.firstShare(t.f.Name))
	}
	r.Restarted, r.Removed = w.began(t.f.Name)
	return r
}

// check returns an error unless every request is counted once.
func (r *Report) check() error {
	for _, f := range r.Functions {
		sum := f.OK + f.Late + f.Incomplete + f.Busy + f.Refused + f.Failed + f.Unanswered
		if f.Sent != sum || f.Sent != f.Answered+f.Dropped+f.Unanswered || f.Unsent > f.Unanswered || f.Dropped > f.Late || f.InTime > f.OK {
			return fmt.Errorf("report of %s does not add up: %d sent, %d accounted for, %d answered, %d dropped, %d unsent", f.Name, f.Sent, sum, f.Answered, f.Dropped, f.Unsent)
		}
	}
	return nil
}

// Faults is the error of a run that proves the system wrong: one line per fault.
type Faults []string

func (f Faults) Error() string { return strings.Join(f, "\n") }

// Faults returns the reasons for which the run proves the system wrong, one line
// each. Faults are requests without an answer, answers that differ, and unknown losses.
// Slowness is not a fault.
func (r *Report) Faults() []string {
	var faults []string
	if r.ManagerError != "" {
		faults = append(faults, "cannot count lost requests: "+r.ManagerError)
	}
	for _, f := range r.Functions {
		switch {
		case f.Sent > 0 && f.Answered == 0 && !r.Interrupted:
			faults = append(faults, fmt.Sprintf("%s: none of %d requests was answered", f.Name, f.Sent))
		case f.Restarted && f.Unanswered > 0:
			faults = append(faults, fmt.Sprintf("%s: %d of %d requests were never answered, and the manager's counters restarted: it died, or the function was removed and added",
				f.Name, f.Unanswered, f.Sent))
		case f.Removed && f.Unanswered > 0:
			faults = append(faults, fmt.Sprintf("%s: %d of %d requests were never answered, and the node no longer has this function", f.Name, f.Unanswered, f.Sent))
		case !r.Interrupted:
			faults = append(faults, f.Missing()...)
		}
		faults = append(faults, f.Errors()...)
	}
	return faults
}

// Missing reports the requests that got no answer and are not among the lost ones.
func (f *FunctionReport) Missing() []string {
	n := f.Outcomes().Unanswered
	if n == 0 {
		return nil
	}
	text := fmt.Sprintf("%s: %d of %d requests were not answered", f.Name, n, f.Sent)
	if f.GaveUp != "" {
		text += fmt.Sprintf("; the client gave up (%d before sending): %s", f.Unsent, f.GaveUp)
	}
	return []string{text}
}

// Errors lists what the node did wrong with requests that it accepted: they were lost, or their answers
// differ from the reference.
func (f *FunctionReport) Errors() (errs []string) {
	if f.Lost != nil && *f.Lost > 0 {
		errs = append(errs, fmt.Sprintf("%s: %d accepted requests were never answered", f.Name, *f.Lost))
	}
	if f.Wrong > 0 {
		text := fmt.Sprintf("%s: %d of %d answers differ from the same model run in process", f.Name, f.Wrong, f.Checked)
		for _, difference := range f.Differences {
			text += "\n  " + difference
		}
		errs = append(errs, text)
	}
	return errs
}

// WriteJSON writes the report as one JSON object and a newline.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func percent(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	p := rounded(100 * float64(part) / float64(whole))
	if p == 100 && part < whole {
		return 99.999 // 100 % means all of them
	}
	return p
}

func perSecond(count uint64, measured time.Duration) float64 {
	if measured == 0 {
		return 0
	}
	return rounded(float64(count) / measured.Seconds())
}

// rounded rounds to a thousandth: the histograms are no more precise.
func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }
