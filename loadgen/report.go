package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/wire"
)

// Report is what a run measured. It is plain data.
type Report struct {
	Functions []FunctionReport `json:"functions"`
	// Seconds is the measured time; Interrupted says that it was cut short.
	Seconds     float64 `json:"seconds"`
	Interrupted bool    `json:"interrupted,omitempty"`
	// ManagerError says why the manager could not be asked at the end: what it
	// lost is not known then.
	ManagerError string `json:"manager_error,omitempty"`
	// Outages are when nothing came back, by functions and in the order of time.
	Outages []Outage `json:"outages,omitempty"`
	// Requirements are what Require found.
	Requirements []Verdict `json:"requirements,omitempty"`
}

// FunctionReport is what a run measured of one function.
//
// Sent = OK + Late + Incomplete + Busy + Refused + Failed + Unanswered, always.
type FunctionReport struct {
	Name      string  `json:"name"`
	SLOMillis float64 `json:"slo_ms"`
	// Sent are the requests that were meant to be sent in the measured time;
	// Answered those that got a reply of any status.
	Sent     uint64 `json:"sent"`
	Answered uint64 `json:"answered"`
	OK       uint64 `json:"ok"`
	// Late requests could not meet the objective any more and were not run. Dropped are
	// those of Late that the client never sent.
	Late       uint64 `json:"late"`
	Dropped    uint64 `json:"dropped"`
	Incomplete uint64 `json:"incomplete"`
	Busy       uint64 `json:"busy"`
	Refused    uint64 `json:"refused"`
	Failed     uint64 `json:"failed"`
	Unanswered uint64 `json:"unanswered"`
	// WithinSLO is the per cent of Sent with an ok answer within the objective,
	// counted from the intended moment; GoodputRPS those answers a second.
	WithinSLO  float64 `json:"within_slo"`
	GoodputRPS float64 `json:"goodput_rps"`
	// Percentiles of the ok answers' latency, 0 when there was none.
	P50Millis  float64 `json:"p50_ms"`
	P99Millis  float64 `json:"p99_ms"`
	P999Millis float64 `json:"p999_ms"`
	// MeanBatch is the mean size of the batches that the ok answers rode in.
	MeanBatch float64 `json:"mean_batch"`
	// SharePercent is the share at the end. It, Swaps and Lost (accepted by the
	// manager and never answered) come from the manager; null where it was not
	// asked.
	SharePercent *float64 `json:"share"`
	Swaps        *uint64  `json:"swaps"`
	Lost         *uint64  `json:"lost"`
	// Accuracy is the per cent of labelled pictures whose first ok answer has
	// their class on top, null where none is labelled; ReferenceAccuracy is the
	// reference's, on the same pictures; Labelled is how many they are.
	Accuracy          *float64 `json:"accuracy"`
	ReferenceAccuracy *float64 `json:"reference_accuracy,omitempty"`
	Labelled          int      `json:"labelled,omitempty"`

	// Checked answers were compared with the reference; Wrong ones differ, the
	// first of them as Differences tell. Both count the warm-up's as well.
	Checked     uint64   `json:"checked"`
	Wrong       uint64   `json:"wrong"`
	Differences []string `json:"differences,omitempty"`
	// OfferedRPS is Sent a second.
	OfferedRPS float64 `json:"offered_rps"`
	// Unsent are those of Unanswered of which the client sent nothing, for want
	// of credit or room; GaveUp is why it gave up the first of Unanswered.
	Unsent uint64 `json:"unsent"`
	GaveUp string `json:"gave_up,omitempty"`
	// SendLagP99Millis is how late this program was to hand requests over. The
	// latencies hold it; where it is large, they measure this program.
	SendLagP99Millis float64 `json:"send_lag_p99_ms"`
	// Stages split the ok answers' time in the manager: aggregate, queue, gather,
	// infer, reply.
	Stages map[string]StageReport `json:"stages_ms"`
	// FirstSharePercent is the share at the beginning.
	FirstSharePercent *float64 `json:"first_share,omitempty"`
	// SwapIdle is since the manager's start.
	SwapIdle *control.IdleMicros `json:"swap_idle_us,omitempty"`
	// KernelDrops are datagrams that the kernel dropped for want of buffer.
	KernelDrops *uint64 `json:"kernel_drops,omitempty"`
	// Restarted says that the manager's counters began anew: it died and another one
	// started, or the function was removed and added. Lost counts from there on.
	Restarted bool `json:"restarted,omitempty"`
	// Removed says that the node had the function at the beginning, and at the end no more.
	Removed bool `json:"removed,omitempty"`

	// Answers has the first ok answer to each picture; its payload is nil where
	// none came.
	Answers []answer.Answer `json:"-"`
}

// StageReport is one stage of the way through the manager, in milliseconds.
type StageReport struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func (t *traffic) report(measured time.Duration, w *watch) FunctionReport {
	l := t.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &l.tally
	answered := a.answered()
	r := FunctionReport{
		Name:             t.f.Name,
		SLOMillis:        millis(t.f.SLO),
		Sent:             a.sent,
		Answered:         answered,
		OK:               a.statuses[wire.StatusOK],
		Late:             a.statuses[wire.StatusLate] + a.dropped,
		Dropped:          a.dropped,
		Incomplete:       a.statuses[wire.StatusIncomplete],
		Busy:             a.statuses[wire.StatusBusy],
		Refused:          a.statuses[wire.StatusRefused],
		Failed:           a.statuses[wire.StatusFailed],
		Unanswered:       a.sent - answered - a.dropped,
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
	r.accuracy(l)
	if status, known := w.function(t.f.Name); known {
		r.SharePercent, r.Swaps, r.Lost = &status.SharePercent, &status.Swaps, &status.Lost
		r.KernelDrops, r.SwapIdle = &status.KernelDrops, &status.SwapIdle
		first := w.firstShare(t.f.Name)
		r.FirstSharePercent = &first
	}
	r.Restarted, r.Removed = w.began(t.f.Name)
	return r
}

// accuracy counts each labelled picture once, whatever the number of its
// answers: they are the same, or counted as wrong. Answers that name no classes
// have no accuracy.
func (r *FunctionReport) accuracy(l *ledger) {
	right, referenceRight := uint64(0), uint64(0)
	for i, got := range l.tally.first {
		_, label := l.pictures.Picture(i)
		if label < 0 || got.Payload == nil || got.Kind != wire.KindTopK {
			continue
		}
		r.Labelled++
		if got.Top() == label {
			right++
		}
		if l.references != nil && l.references[i].Top() == label {
			referenceRight++
		}
	}
	if r.Labelled == 0 {
		return
	}
	accuracy := percent(right, uint64(r.Labelled))
	r.Accuracy = &accuracy
	if l.references != nil {
		reference := percent(referenceRight, uint64(r.Labelled))
		r.ReferenceAccuracy = &reference
	}
}

// check asserts that every request is counted once.
func (r *Report) check() error {
	for _, f := range r.Functions {
		sum := f.OK + f.Late + f.Incomplete + f.Busy + f.Refused + f.Failed + f.Unanswered
		if f.Sent != sum || f.Sent != f.Answered+f.Dropped+f.Unanswered || f.Unsent > f.Unanswered || f.Dropped > f.Late {
			return fmt.Errorf("report of %s does not add up: %d sent, %d accounted for, %d answered, %d dropped, %d unsent", f.Name, f.Sent, sum, f.Answered, f.Dropped, f.Unsent)
		}
	}
	return nil
}

// Faults are the reasons for which the run proves the system wrong, a line
// each: requests lost, answers that differ, a system that stopped answering, or
// that nobody can tell. Slowness is none, and neither is a request or two that
// the network may have lost.
func (r *Report) Faults() []string {
	var faults []string
	if r.ManagerError != "" {
		faults = append(faults, "what was lost is not known: "+r.ManagerError)
	}
	out := map[string]bool{}
	for _, o := range r.Outages {
		faults = append(faults, o.String())
		out[o.Function] = true
	}
	for _, f := range r.Functions {
		switch {
		case f.Sent > 0 && f.Answered == 0 && !out[f.Name] && !r.Interrupted:
			faults = append(faults, fmt.Sprintf("%s: none of %d requests was answered", f.Name, f.Sent))
		case f.Restarted && f.Unanswered > 0:
			faults = append(faults, fmt.Sprintf("%s: %d of %d requests were never answered, and the manager's counters began anew: it died, or the function was taken off and added",
				f.Name, f.Unanswered, f.Sent))
		case f.Removed && f.Unanswered > 0:
			faults = append(faults, fmt.Sprintf("%s: %d of %d requests were never answered, and the node has no such function any more", f.Name, f.Unanswered, f.Sent))
		}
		if f.Lost != nil && *f.Lost > 0 {
			faults = append(faults, fmt.Sprintf("%s: %d accepted requests were never answered", f.Name, *f.Lost))
		}
		if f.Wrong > 0 {
			fault := fmt.Sprintf("%s: %d of %d answers differ from the same model run in process", f.Name, f.Wrong, f.Checked)
			for _, difference := range f.Differences {
				fault += "\n  " + difference
			}
			faults = append(faults, fault)
		}
	}
	return faults
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
		return 99.999 // all is said of all only
	}
	return p
}

func perSecond(count uint64, measured time.Duration) float64 {
	if measured == 0 {
		return 0
	}
	return rounded(float64(count) / measured.Seconds())
}

// rounded is to a thousandth: histograms hold no more.
func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }
