package evaluate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/research/bench"
)

// Report holds the measurements of one figure so far: OUT/FIGURE.json. It is rewritten after
// every measurement, and the next call continues it.
type Report struct {
	Version int    `json:"version"`
	Figure  string `json:"figure"`
	Title   string `json:"title"`
	// Paper names the figures and tables of GSLICE that it is compared with.
	Paper   string          `json:"paper"`
	Machine testbed.Machine `json:"machine"`
	// Device is the GPU's name, or cpu; SMs are its multiprocessors, 0 on a CPU.
	Device string `json:"device"`
	SMs    int    `json:"sms,omitempty"`
	// Quick says that small models and short times replace the figure's. Such a report only
	// shows that the measurement works.
	Quick bool   `json:"quick,omitempty"`
	Seed  uint64 `json:"seed"`
	Runs  int    `json:"runs"` // desired, for each case and variant
	// Settings is a fingerprint of everything that the measurements depend on. A call with
	// another fingerprint does not continue the report.
	Settings string           `json:"settings"`
	Cases    []CaseSetting    `json:"cases"`
	Variants []VariantSetting `json:"variants"`
	// Capacity is the rate of each model alone on the whole device. Offered rates are parts
	// of it, the same for all variants.
	Capacity []Capacity `json:"capacity,omitempty"`
	Results  []Result   `json:"results"`
	// Left is the number of measurements that remain.
	Left int `json:"left"`
	// Tried is the number of measurements that this call began, including failed ones.
	Tried int `json:"-"`
}

// version is the version of the report's format.
const version = 1

// CaseSetting describes what variants are compared on: a model, a mix of models, an
// objective.
type CaseSetting struct {
	Name      string            `json:"name"`
	Kind      Kind              `json:"kind"`
	Functions []FunctionSetting `json:"functions"`
	// Variants are the names of the variants that the case is measured with, in order.
	Variants []string `json:"variants"`
	// Events are the events of a time line, in order.
	Events []EventSetting `json:"events,omitempty"`
	Note   string         `json:"note,omitempty"`
}

// Kind is how a case is measured.
type Kind string

// The kinds. kindLoads is an open loop at several levels. kindClosed is a closed loop that
// always has requests waiting. kindTimeline is an open loop during which events happen.
// kindBare is a framework alone, with ready batches and without a node.
const (
	kindLoads    Kind = "loads"
	kindClosed   Kind = "closed"
	kindTimeline Kind = "timeline"
	kindBare     Kind = "bare"
)

// FunctionSetting describes one function of a case.
type FunctionSetting struct {
	Name      string  `json:"name"`
	Model     string  `json:"model"`
	SLOMillis float64 `json:"slo_ms,omitempty"`
	Batches   []int   `json:"batches"`
	// Weight is the part of its model's capacity that level 1 offers: 1 alone, less in a
	// mix.
	Weight float64 `json:"weight,omitempty"`
	// PerSecond is the number of requests per second that level 1 offers, if it does not
	// depend on the capacity.
	PerSecond float64 `json:"per_second,omitempty"`
}

// VariantSetting describes one variant.
type VariantSetting struct {
	Name string `json:"name"`
	// Label is the text for a legend, What a sentence that describes the setting.
	Label string `json:"label"`
	What  string `json:"what"`
	// Baseline marks a variant that Penstock is compared with.
	Baseline bool `json:"baseline"`
}

// EventSetting describes an event of a time line.
type EventSetting struct {
	AtSeconds float64 `json:"at_s"`
	// What is one of "begin" (the function is added and gets its traffic), "end" (it is removed),
	// or "rate" (its rate becomes Level times its capacity and weight).
	What     string  `json:"what"`
	Function string  `json:"function"`
	Level    float64 `json:"level,omitempty"`
}

// Capacity is a model's rate in a closed loop, alone on the whole device and through a whole
// node. Batches are as large as its ladder allows.
type Capacity struct {
	Model     string  `json:"model"`
	PerSecond float64 `json:"per_s"`
	MeanBatch float64 `json:"mean_batch"`
	P50Millis float64 `json:"p50_ms"`
}

// Result is one run of one variant on one case.
type Result struct {
	Case    string `json:"case"`
	Variant string `json:"variant"`
	Run     int    `json:"run"` // from 1
	Date    string `json:"date"`
	// Penstock is the version that measured the result. Results of a continued figure may
	// have different versions. Empty if it was not recorded.
	Penstock string `json:"penstock,omitempty"`
	// TookSeconds is the duration of the step, including the node's start.
	TookSeconds float64 `json:"took_s"`
	// Error is why the result is incomplete, for example a node that did not start. The step
	// is repeated when the figure is continued.
	Error string `json:"error,omitempty"`
	// Mechanism is what enforced the processes' shares.
	Mechanism string    `json:"mechanism,omitempty"`
	Loads     []Load    `json:"loads,omitempty"`
	Timeline  *Timeline `json:"timeline,omitempty"`
	Points    []Point   `json:"points,omitempty"`
	// Lost is how many requests of all functions the node accepted and never answered.
	Lost uint64 `json:"lost"`
}

// Load has the results of one window of traffic.
type Load struct {
	// Level is the offered rate as a part of each function's capacity and weight; 0 for
	// a closed loop.
	Level   float64 `json:"level,omitempty"`
	Seconds float64 `json:"seconds"`
	// GoodputRPS counts ok answers within the objective, of all functions. GUE is the
	// paper's efficacy (2.1.4) of all functions: ok answers per second divided by their mean
	// latency in milliseconds.
	OfferedRPS    float64        `json:"offered_rps"`
	AnsweredRPS   float64        `json:"answered_rps"`
	GoodputRPS    float64        `json:"goodput_rps"`
	WithinPercent float64        `json:"within_percent"` // of the offered requests
	GUE           float64        `json:"gue"`
	Functions     []FunctionLoad `json:"functions"`
	// SenderBusyPercent is the CPU use of the sending program, as a percentage of its CPUs.
	SenderBusyPercent float64 `json:"sender_busy_percent"`
	// SenderBehind says that the sender did not keep up. Missing requests are then not the
	// node's fault.
	SenderBehind bool `json:"sender_behind,omitempty"`
}

// FunctionLoad is one function's part of a Load.
//
// Sent = OK + Late + Incomplete + Busy + Refused + Failed + Unanswered.
type FunctionLoad struct {
	Name          string  `json:"name"`
	SLOMillis     float64 `json:"slo_ms"`
	OfferedRPS    float64 `json:"offered_rps"`
	AnsweredRPS   float64 `json:"answered_rps"` // ok answers, in time or not
	GoodputRPS    float64 `json:"goodput_rps"`
	WithinPercent float64 `json:"within_percent"`
	// Latency of ok answers, from the intended send to the reply; 0 if there were none.
	MeanMillis float64 `json:"mean_ms"`
	P50Millis  float64 `json:"p50_ms"`
	P95Millis  float64 `json:"p95_ms"`
	P99Millis  float64 `json:"p99_ms"`
	// BatchMillis is the median time of a batch, gather and infer. InferMillis is the same
	// without the gather.
	BatchMillis float64 `json:"batch_ms"`
	InferMillis float64 `json:"infer_ms"`
	// Stages split the time of ok answers, as loadgen.FunctionReport does. "way" is the part
	// that the node does not see: from the intended send to the first fragment that it
	// reads, and from sending the answer to the client's receipt.
	Stages    map[string]loadgen.StageReport `json:"stages_ms,omitempty"`
	MeanBatch float64                        `json:"mean_batch"`
	GUE       float64                        `json:"gue"`
	// SharePercent and SMs are values at the end of the window.
	SharePercent float64 `json:"share_percent"`
	SMs          int     `json:"sms,omitempty"`
	// Guarantee is the guarantee in the node's status at the end of the window, if the node
	// has guarantees. Its use is the mean of the warm-up and the window.
	Guarantee *control.GuaranteeStatus `json:"guarantee,omitempty"`
	// Receivers is how many sockets, each with one thread of the node, received for the
	// function.
	Receivers int `json:"receivers,omitempty"`
	// Sent is the sum of the counts: all requests that were to be sent in the window.
	Sent       uint64 `json:"sent"`
	OK         uint64 `json:"ok"`
	Late       uint64 `json:"late"`
	Incomplete uint64 `json:"incomplete"`
	Busy       uint64 `json:"busy"`
	Refused    uint64 `json:"refused"`
	Failed     uint64 `json:"failed"`
	Unanswered uint64 `json:"unanswered"`
	// Unsent is the part of Unanswered that was not sent at all, for lack of credit.
	Unsent uint64 `json:"unsent"`
	// SendLagP99Millis is how late the sender handed requests over, at the 99th percentile.
	SendLagP99Millis float64 `json:"send_lag_p99_ms"`
}

// Timeline has the results of a load with events, in bins of equal length.
type Timeline struct {
	BinSeconds float64 `json:"bin_s"`
	Seconds    float64 `json:"seconds"`
	// Events have two times: when the event was ordered and when it had taken effect. They
	// are "begin", "serves", "end", "rate" and "share".
	Events    []Event            `json:"events"`
	Functions []FunctionTimeline `json:"functions"`
}

// Event is an event of a time line.
type Event struct {
	AtSeconds float64 `json:"at_s"`
	What      string  `json:"what"`
	Function  string  `json:"function"`
	// Value is the new level or share.
	Value float64 `json:"value,omitempty"`
}

// FunctionTimeline has one function's bins, for the whole time line.
type FunctionTimeline struct {
	Name      string  `json:"name"`
	SLOMillis float64 `json:"slo_ms"`
	Bins      []Bin   `json:"bins"`
	// T90Seconds is when the mean batch of a bin first reached 90 % of its value over the
	// last third, counted from the function's first request. 0 if that is unknown.
	T90Seconds float64 `json:"t90_s,omitempty"`
	// Total covers all of the function's requests.
	Total FunctionLoad `json:"total"`
	// SwapIdleMillis is the longest time that a change of share stopped its ring while work
	// was waiting.
	SwapIdleMillis float64 `json:"swap_idle_ms,omitempty"`
	Swaps          uint64  `json:"swaps,omitempty"`
	// Lost is how many requests the node accepted and never answered, from its last status
	// of the function.
	Lost uint64 `json:"lost"`
}

// Bin covers the requests that were to be sent within a bin, whenever they were answered.
type Bin struct {
	Offered      int     `json:"offered"`
	OK           int     `json:"ok"`
	Within       int     `json:"within"`
	P50Millis    float64 `json:"p50_ms"`
	P99Millis    float64 `json:"p99_ms"`
	MeanBatch    float64 `json:"mean_batch"`
	SharePercent float64 `json:"share_percent"`
	// LimitBatch is the batching rule's limit at the end of the bin.
	LimitBatch float64 `json:"limit_batch,omitempty"`
}

// Point is the result of a framework alone with ready batches, or one row of another
// benchmark.
type Point struct {
	Model   string `json:"model"`
	Batch   int    `json:"batch"`
	Streams int    `json:"streams"`
	// By is what limits the multiprocessors: "percentage" (MPS), "groups", or empty for no
	// limit.
	By      string  `json:"by,omitempty"`
	Percent float64 `json:"percent"`
	SMs     int     `json:"sms,omitempty"`
	// ImagesPerSecond is the rate of all streams together, BatchTime the time of one batch.
	ImagesPerSecond float64      `json:"images_per_s"`
	BatchTime       bench.Micros `json:"batch_us"`
	// Error is why there is no result, for example wrong answers at this percentage.
	Error string `json:"error,omitempty"`
}

// errDamaged is returned for a file that is not a report, or has another version.
var errDamaged = errors.New("no whole report")

// read reads the report in a file.
func read(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("read report: %s is a folder, want a file or nothing: take another folder, or move it away", file)
	} else if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read report %s: %w: %w", file, errDamaged, err)
	}
	if r.Version != version {
		return nil, fmt.Errorf("read report %s: %w: version %d, this penstock writes %d", file, errDamaged, r.Version, version)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("read report %s: %w: %w", file, errDamaged, err)
	}
	return r, nil
}

// Write writes the report into a file, completely or not at all.
func (r *Report) Write(file string) error { return bench.WriteReport(file, r) }

// readIf is read, but returns nil if the file does not exist.
func readIf(file string) (*Report, error) {
	r, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return r, err
}

// result finds the complete result of a run.
func (r *Report) result(name, variant string, run int) *Result {
	for i := range r.Results {
		if x := &r.Results[i]; x.Case == name && x.Variant == variant && x.Run == run && x.Error == "" {
			return x
		}
	}
	return nil
}

// put adds a result and replaces an older one of the same run.
func (r *Report) put(x Result) {
	for i := range r.Results {
		if o := &r.Results[i]; o.Case == x.Case && o.Variant == x.Variant && o.Run == x.Run {
			*o = x
			return
		}
	}
	r.Results = append(r.Results, x)
}

// capacity returns a model's capacity, or 0 if it was not measured.
func (r *Report) capacity(model string) float64 {
	for _, c := range r.Capacity {
		if c.Model == model {
			return c.PerSecond
		}
	}
	return 0
}
