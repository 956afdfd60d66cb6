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

// Report is what was measured of one figure so far: OUT/FIGURE.json. It is written anew
// after every measurement, and the next call goes on from it.
type Report struct {
	Version int    `json:"version"`
	Figure  string `json:"figure"`
	Title   string `json:"title"`
	// Paper names the figures and tables of GSLICE that it stands beside.
	Paper   string          `json:"paper"`
	Machine testbed.Machine `json:"machine"`
	// Device is the GPU's name, or cpu; SMs are its multiprocessors, 0 on a CPU.
	Device string `json:"device"`
	SMs    int    `json:"sms,omitempty"`
	// Quick says that small models and short times stand in for the figure's: it shows
	// that the machinery works, and nothing else.
	Quick bool   `json:"quick,omitempty"`
	Seed  uint64 `json:"seed"`
	Runs  int    `json:"runs"` // wished for, of each case and variant
	// Settings fingerprint all that the measurements rest on; a report of others is not
	// gone on with.
	Settings string           `json:"settings"`
	Cases    []CaseSetting    `json:"cases"`
	Variants []VariantSetting `json:"variants"`
	// Capacity is what each model answers alone on the whole device: offered rates are
	// parts of it, the same for all variants.
	Capacity []Capacity `json:"capacity,omitempty"`
	Results  []Result   `json:"results"`
	// Left is how many measurements are still to be made.
	Left int `json:"left"`
	// Tried is how many this call began, those that failed among them.
	Tried int `json:"-"`
}

// version of the report's format.
const version = 1

// CaseSetting is what variants are compared on: a model, a mix of models, an objective.
type CaseSetting struct {
	Name      string            `json:"name"`
	Kind      Kind              `json:"kind"`
	Functions []FunctionSetting `json:"functions"`
	// Variants are the names of those that it is measured with, in order.
	Variants []string `json:"variants"`
	// Events are what happens in a time line, in order.
	Events []EventSetting `json:"events,omitempty"`
	Note   string         `json:"note,omitempty"`
}

// Kind is how a case is measured.
type Kind string

// The kinds. kindLoads is an open loop at several levels, kindClosed a closed loop that
// always has requests waiting, kindTimeline an open loop during which something happens,
// kindBare a framework alone, with ready batches and nothing of Penstock around it.
const (
	kindLoads    Kind = "loads"
	kindClosed   Kind = "closed"
	kindTimeline Kind = "timeline"
	kindBare     Kind = "bare"
)

// FunctionSetting is one function of a case.
type FunctionSetting struct {
	Name      string  `json:"name"`
	Model     string  `json:"model"`
	SLOMillis float64 `json:"slo_ms,omitempty"`
	Batches   []int   `json:"batches"`
	// Weight is the part of its model's capacity that level 1 offers: 1 alone, less in a
	// mix.
	Weight float64 `json:"weight,omitempty"`
	// PerSecond is how many requests per second level 1 offers, if that is not a part of the
	// capacity.
	PerSecond float64 `json:"per_second,omitempty"`
}

// VariantSetting is one way of doing it.
type VariantSetting struct {
	Name string `json:"name"`
	// Label is for a legend, What a sentence that says what is set.
	Label string `json:"label"`
	What  string `json:"what"`
	// Baseline says that it is what Penstock is compared with.
	Baseline bool `json:"baseline"`
}

// EventSetting is something that happens in a time line.
type EventSetting struct {
	AtSeconds float64 `json:"at_s"`
	// What is "begin" (the function is added and gets its traffic), "end" (it is taken
	// off), "rate" (Level times its capacity and weight from now on).
	What     string  `json:"what"`
	Function string  `json:"function"`
	Level    float64 `json:"level,omitempty"`
}

// Capacity is what a model answers in a closed loop, alone on the whole device through a
// whole node, in batches as large as its ladder has.
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
	// Penstock is the version that measured it: a figure that was gone on with may have
	// several. Empty where it was not noted.
	Penstock string `json:"penstock,omitempty"`
	// TookSeconds is all of it, the node's start included.
	TookSeconds float64 `json:"took_s"`
	// Error is why there is not all of it: the node did not come up, say. It is tried
	// again when the figure is gone on with.
	Error string `json:"error,omitempty"`
	// Mechanism is what held the processes to their shares.
	Mechanism string    `json:"mechanism,omitempty"`
	Loads     []Load    `json:"loads,omitempty"`
	Timeline  *Timeline `json:"timeline,omitempty"`
	Points    []Point   `json:"points,omitempty"`
	// Lost were accepted by the node and never answered, of all functions.
	Lost uint64 `json:"lost"`
}

// Load is one window of traffic.
type Load struct {
	// Level is the offered rate as a part of each function's capacity and weight; 0 for
	// a closed loop.
	Level   float64 `json:"level,omitempty"`
	Seconds float64 `json:"seconds"`
	// GoodputRPS are ok answers within the objective, of all functions; GUE is the
	// paper's efficacy (2.1.4) of all: ok answers a second over their mean latency in
	// milliseconds.
	OfferedRPS    float64        `json:"offered_rps"`
	AnsweredRPS   float64        `json:"answered_rps"`
	GoodputRPS    float64        `json:"goodput_rps"`
	WithinPercent float64        `json:"within_percent"` // of what was offered
	GUE           float64        `json:"gue"`
	Functions     []FunctionLoad `json:"functions"`
	// SenderBusyPercent is how busy the sending program kept the CPUs that it has.
	SenderBusyPercent float64 `json:"sender_busy_percent"`
	// SenderBehind says that the sender did not keep up: what is missing then is not the
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
	// Latency of ok answers, from the intended send to the reply; 0 where there was none.
	MeanMillis float64 `json:"mean_ms"`
	P50Millis  float64 `json:"p50_ms"`
	P95Millis  float64 `json:"p95_ms"`
	P99Millis  float64 `json:"p99_ms"`
	// BatchMillis is the median time of a batch, gather and infer; InferMillis without
	// the gather.
	BatchMillis float64 `json:"batch_ms"`
	InferMillis float64 `json:"infer_ms"`
	// Stages split the ok answers' time, as loadgen.FunctionReport does; "way" is what the
	// node does not see: from the intended send to the first piece that it reads, and from
	// where the answer leaves to the client.
	Stages    map[string]loadgen.StageReport `json:"stages_ms,omitempty"`
	MeanBatch float64                        `json:"mean_batch"`
	GUE       float64                        `json:"gue"`
	// SharePercent and SMs are at the end of the window.
	SharePercent float64 `json:"share_percent"`
	SMs          int     `json:"sms,omitempty"`
	// Guarantee is the node's view at the end of the window, if the node has guarantees.
	Guarantee *control.GuaranteeStatus `json:"guarantee,omitempty"`
	// Receivers is how many sockets and threads of the node received for it.
	Receivers int `json:"receivers,omitempty"`
	// Sent is the counts' sum: requests that were meant to leave in the window.
	Sent       uint64 `json:"sent"`
	OK         uint64 `json:"ok"`
	Late       uint64 `json:"late"`
	Incomplete uint64 `json:"incomplete"`
	Busy       uint64 `json:"busy"`
	Refused    uint64 `json:"refused"`
	Failed     uint64 `json:"failed"`
	Unanswered uint64 `json:"unanswered"`
	// Unsent are those of Unanswered of which nothing left, for want of credit.
	Unsent uint64 `json:"unsent"`
	// SendLagP99Millis is how late the sender was to hand a request over.
	SendLagP99Millis float64 `json:"send_lag_p99_ms"`
}

// Timeline is a load during which something happened, in bins of equal length.
type Timeline struct {
	BinSeconds float64 `json:"bin_s"`
	Seconds    float64 `json:"seconds"`
	// Events are when what was wished for was ordered, and when it was so: "begin",
	// "serves", "end", "rate", "share".
	Events    []Event            `json:"events"`
	Functions []FunctionTimeline `json:"functions"`
}

// Event is something that happened.
type Event struct {
	AtSeconds float64 `json:"at_s"`
	What      string  `json:"what"`
	Function  string  `json:"function"`
	// Value is the level or the share that it was about.
	Value float64 `json:"value,omitempty"`
}

// FunctionTimeline is one function's bins, over all of the time line.
type FunctionTimeline struct {
	Name      string  `json:"name"`
	SLOMillis float64 `json:"slo_ms"`
	Bins      []Bin   `json:"bins"`
	// T90Seconds is how long after its first request the mean batch of a bin first came
	// to 90 % of what it was over the last third; 0 where that cannot be said.
	T90Seconds float64 `json:"t90_s,omitempty"`
	// Total is all of the function's requests.
	Total FunctionLoad `json:"total"`
	// SwapIdleMillis is the longest time that its ring stood still for a change of share
	// with work waiting.
	SwapIdleMillis float64 `json:"swap_idle_ms,omitempty"`
	Swaps          uint64  `json:"swaps,omitempty"`
	// Lost were accepted by the node and never answered, as it last said of the function.
	Lost uint64 `json:"lost"`
}

// Bin is the requests that were meant to leave within a bin, whenever they were
// answered.
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

// Point is a framework alone with ready batches, or one row of another benchmark.
type Point struct {
	Model   string `json:"model"`
	Batch   int    `json:"batch"`
	Streams int    `json:"streams"`
	// By is what bounds the multiprocessors: "percentage" (MPS), "groups", or nothing.
	By      string  `json:"by,omitempty"`
	Percent float64 `json:"percent"`
	SMs     int     `json:"sms,omitempty"`
	// ImagesPerSecond is what all streams do together, BatchTime the time of one batch.
	ImagesPerSecond float64      `json:"images_per_s"`
	BatchTime       bench.Micros `json:"batch_us"`
	// Error is why there is no figure: wrong answers at this percentage, say.
	Error string `json:"error,omitempty"`
}

// errDamaged is returned for a file that is no report, or of another version.
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

// Write writes the report into a file, whole or not at all.
func (r *Report) Write(file string) error { return bench.WriteReport(file, r) }

// readIf is read of a file that may not be there: nil then.
func readIf(file string) (*Report, error) {
	r, err := read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return r, err
}

// result finds a run that was measured whole.
func (r *Report) result(name, variant string, run int) *Result {
	for i := range r.Results {
		if x := &r.Results[i]; x.Case == name && x.Variant == variant && x.Run == run && x.Error == "" {
			return x
		}
	}
	return nil
}

// put adds a result, in place of an older one of the same run.
func (r *Report) put(x Result) {
	for i := range r.Results {
		if o := &r.Results[i]; o.Case == x.Case && o.Variant == x.Variant && o.Run == x.Run {
			*o = x
			return
		}
	}
	r.Results = append(r.Results, x)
}

// capacity is a model's, 0 where it was not measured.
func (r *Report) capacity(model string) float64 {
	for _, c := range r.Capacity {
		if c.Model == model {
			return c.PerSecond
		}
	}
	return 0
}
