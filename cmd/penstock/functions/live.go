package functions

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway/history"
	"github.com/penstock/penstock/loadgen/tabular"
	"github.com/penstock/penstock/wire"
)

// Live is what a node did between two samples.
type Live struct {
	At time.Time `json:"at"`
	// Seconds is the time between the samples. If it is 0, nothing is measured yet.
	Seconds   float64        `json:"seconds"`
	Functions []LiveFunction `json:"functions"`

	status *control.Status
}

// LiveFunction is what a function did between two samples. Percentages are of the device's time.
type LiveFunction struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Serving bool   `json:"serving"`
	// Problem is empty, or says why the function needs attention.
	Problem   string  `json:"problem,omitempty"`
	SLOMillis float64 `json:"slo_ms"`
	// P50Millis and P99Millis are quantiles of the time from a request's first packet to its
	// answer; nil without answers.
	P50Millis *float64 `json:"p50_ms"`
	P99Millis *float64 `json:"p99_ms"`
	// RequestsPerSecond is the rate of requests that ended, with any result. Results counts them
	// by result.
	RequestsPerSecond float64           `json:"requests_per_second"`
	Results           map[string]uint32 `json:"results"`
	// Lost counts since the function was added; it must be 0.
	Lost             uint64  `json:"lost"`
	GuaranteePercent float64 `json:"guarantee_percent"`
	UsePercent       float64 `json:"use_percent"`
	DemotedPercent   float64 `json:"demoted_percent"`
	// QueueMillis is the mean wait of a request for its batch, Batch the mean size of batches.
	QueueMillis float64 `json:"queue_ms"`
	InFlight    int     `json:"in_flight"`
	Batch       float64 `json:"batch"`
	// Devices are those of its instances, each once.
	Devices []string `json:"devices"`
	// Worker and Residency are those of control.FunctionStatus.
	Worker    string             `json:"worker,omitempty"`
	Residency *control.Residency `json:"residency,omitempty"`

	notOKPercent float64
	host         string
	group        int // the index of its first device
}

// queueStage is the wait for a batch.
var queueStage = slices.Index(control.StageNames, "queue")

// NewLive compares two samples of one manager.
func NewLive(before, after *control.Sample) *Live {
	l := &Live{At: after.At, Seconds: after.At.Sub(before.At).Seconds(), status: &after.Status, Functions: []LiveFunction{}}
	for i := range after.Functions {
		is := &after.Functions[i]
		status, ok := after.Status.Function(is.Name)
		if !ok {
			continue
		}
		was := control.FunctionSample{}
		if j := slices.IndexFunc(before.Functions, func(f control.FunctionSample) bool { return f.Name == is.Name }); j >= 0 {
			was = before.Functions[j]
		}
		f := liveFunction(&was, is, &status, after.BoundsMillis, l.Seconds)
		f.group = deviceIndex(&after.Status, &status)
		l.Functions = append(l.Functions, f)
	}
	return l
}

func liveFunction(was, is *control.FunctionSample, status *control.FunctionStatus, boundsMillis []float64, seconds float64) LiveFunction {
	f := LiveFunction{
		Name: is.Name, State: State(status), Serving: status.Serves(), SLOMillis: status.SLOMillis, Results: map[string]uint32{},
		Lost: status.Lost, GuaranteePercent: status.SharePercent, InFlight: status.InFlight,
		Devices: devicesOf(status), Worker: status.Worker, Residency: status.Residency, host: hostText(status),
	}
	if g := status.Guarantee; g != nil {
		f.GuaranteePercent, f.UsePercent, f.DemotedPercent = g.Percent, g.UsePercent, g.DemotedPercent
	}

	p := history.Difference(was, is)
	ended := uint32(0)
	for result, n := range p.Results {
		f.Results[wire.Status(result).String()] = n
		ended += n
	}
	if seconds > 0 {
		f.RequestsPerSecond = float64(ended) / seconds
	}
	if ended > 0 {
		f.notOKPercent = 100 * float64(ended-p.Results[wire.StatusOK]) / float64(ended)
	}
	f.P50Millis, f.P99Millis = quantile(&p, boundsMillis, 0.5), quantile(&p, boundsMillis, 0.99)
	if p.Ran > 0 {
		f.QueueMillis, f.Batch = float64(p.StageMillis[queueStage])/float64(p.Ran), float64(p.BatchSum)/float64(p.Ran)
	}
	f.Problem = f.problem()
	return f
}

func quantile(p *history.Point, boundsMillis []float64, q float64) *float64 {
	millis, ok := p.Quantile(boundsMillis, q)
	if !ok {
		return nil
	}
	return &millis
}

// maxNotOKPercent is the part of the requests that may be answered otherwise than ok before it is
// a problem. The page uses the same one.
const maxNotOKPercent = 1

func (f *LiveFunction) problem() string {
	switch {
	case !f.Serving:
		return "not all of its instances serve"
	case f.Lost > 0:
		return fmt.Sprintf("%d requests lost", f.Lost)
	case f.P99Millis != nil && *f.P99Millis > f.SLOMillis:
		return fmt.Sprintf("p99 is %s ms, the objective %s ms", millisText(*f.P99Millis), millisText(f.SLOMillis))
	case f.notOKPercent > maxNotOKPercent:
		var counts []string
		for status := range wire.Status(wire.NumStatuses) {
			if n := f.Results[status.String()]; n > 0 && status != wire.StatusOK {
				counts = append(counts, fmt.Sprintf("%d %s", n, status))
			}
		}
		return "requests not answered ok: " + strings.Join(counts, ", ")
	}
	return ""
}

// Window keeps the samples of the last seconds.
type Window struct {
	Length  time.Duration
	samples []control.Sample
}

// Add adds a sample and returns what the node did in the window. Samples of an earlier manager are
// dropped.
func (w *Window) Add(s control.Sample) *Live {
	if n := len(w.samples); n > 0 && !w.samples[n-1].Status.Started.Equal(s.Status.Started) {
		w.samples = nil
	}
	w.samples = append(w.samples, s)
	from := s.At.Add(-w.Length)
	for len(w.samples) > 2 && !w.samples[1].At.After(from) {
		w.samples = w.samples[1:]
	}
	return NewLive(&w.samples[0], &s)
}

// Lines returns a title, a table with the functions that have a problem first, and below it what is
// wrong. The table has as many columns as fit in width, all if width is 0. Longer lines are cut.
func (l *Live) Lines(width int) (lines []string) {
	add := func(line string) { lines = append(lines, cut(line, width)) }
	measured := "; measuring"
	if l.Seconds > 0 {
		measured = fmt.Sprintf("; last %.1f s", l.Seconds)
	}
	devices, several := deviceLines(l.status), len(l.status.Devices) > 1
	if several {
		devices = append([]string{fmt.Sprintf("%d devices", len(devices))}, devices...)
	}
	add(l.At.Local().Format(time.TimeOnly) + "  " + devices[0] + measured)
	for _, line := range devices[1:] {
		add(line)
	}

	functions := slices.Clone(l.Functions)
	slices.SortStableFunc(functions, func(a, b LiveFunction) int { return cmp.Or(a.group-b.group, problemRank(&a)-problemRank(&b)) })
	guarantees := slices.ContainsFunc(l.status.Functions, func(f control.FunctionStatus) bool { return f.Guarantee != nil })
	columns := liveColumns(guarantees)
	members := hasMembers(l.status)
	if several {
		columns = slices.Insert(columns, 1, deviceColumn)
	}
	if members {
		columns = append(columns, workerColumn)
	}
	var rows [][]string
	for i := range functions {
		row := l.row(&functions[i], guarantees)
		if several {
			row = slices.Insert(row, 1, strings.Join(functions[i].Devices, ", "))
		}
		if members {
			row = append(row, functions[i].host)
		}
		rows = append(rows, row)
	}
	for line := range strings.Lines(tabular.RenderOne(cmp.Or(width, math.MaxInt32), columns, rows)) {
		add(line)
	}

	for _, line := range nodeLines(l.status) {
		add(line)
	}
	for i := range functions {
		f := &functions[i]
		if f.Problem != "" {
			add(f.Name + ": " + f.Problem)
		}
		if status, ok := l.status.Function(f.Name); ok {
			for _, why := range reasons(&status) {
				add(f.Name + ": " + why)
			}
		}
	}
	return lines
}

func problemRank(f *LiveFunction) int {
	if f.Problem != "" {
		return 0
	}
	return 1
}

// liveColumns are in the order of their importance.
func liveColumns(guarantees bool) []tabular.Column {
	columns := []tabular.Column{{Name: "function", Left: true}, {Name: "p99 ms"}, {Name: "objective"}, {Name: "per second"}, {Name: "not ok"}, {Name: "lost"}}
	if guarantees {
		columns = append(columns, tabular.Column{Name: "guarantee"}, tabular.Column{Name: "use"}, tabular.Column{Name: "demoted"})
	} else {
		columns = append(columns, tabular.Column{Name: "share"})
	}
	return append(columns, tabular.Column{Name: "queue ms"}, tabular.Column{Name: "in flight"}, tabular.Column{Name: "batch"}, tabular.Column{Name: "state", Left: true})
}

func (l *Live) row(f *LiveFunction, guarantees bool) []string {
	name, p99, rate, notOK, queue, batch := f.Name, "-", "-", "-", "-", "-"
	if f.Problem != "" {
		name = "! " + name
	}
	if f.P99Millis != nil {
		p99, queue, batch = millisText(*f.P99Millis), millisText(f.QueueMillis), strconv.FormatFloat(f.Batch, 'f', 1, 64)
	}
	if l.Seconds > 0 {
		rate, notOK = strconv.FormatFloat(f.RequestsPerSecond, 'f', 1, 64), percentText(f.notOKPercent)
	}
	row := []string{name, p99, millisText(f.SLOMillis), rate, notOK, fmt.Sprint(f.Lost), percentText(f.GuaranteePercent)}
	if guarantees {
		row = append(row, percentText(f.UsePercent), percentText(f.DemotedPercent))
	}
	return append(row, queue, fmt.Sprint(f.InFlight), batch, f.State)
}

// millisText has three digits.
func millisText(millis float64) string {
	decimals := 0
	switch {
	case millis < 10:
		decimals = 2
	case millis < 100:
		decimals = 1
	}
	return strconv.FormatFloat(millis, 'f', decimals, 64)
}

// cut shortens a line to width, if that is not 0, and removes control characters, which a reason
// from a process could contain.
func cut(line string, width int) string {
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, line)
	line = strings.TrimRight(line, " ")
	if width <= 0 {
		return line
	}
	return text.Trim(line, width)
}
