package loadgen

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Requirement is a bound that a run must meet.
type Requirement struct {
	// Function is the function that the bound applies to; empty means each function of the
	// run.
	Function string
	// Metric is one of metrics. Bound is the metric's min or max, in percent, milliseconds or
	// requests per second.
	Metric string
	Bound  float64
}

// functionMetrics are the metrics that a Requirement may bound, in the order of the help.
var functionMetrics = []string{"within", "answered", "ok", "accuracy", "goodput", "p50", "p99", "p99.9"}

// metric describes a figure of a report.
type metric struct {
	unit  string
	isMax bool // the bound is a max; else it is a min
	// value returns the figure, or why there is none.
	value func(f *FunctionReport) (figure float64, missing string)
}

var metrics = map[string]metric{
	"within":   {unit: "%", value: ofSent(func(f *FunctionReport) float64 { return f.WithinSLO })},
	"answered": {unit: "%", value: ofSent(func(f *FunctionReport) float64 { return percent(f.Answered, f.Sent) })},
	"ok":       {unit: "%", value: ofSent(func(f *FunctionReport) float64 { return percent(f.OK, f.Sent) })},
	"goodput":  {unit: "/s", value: ofSent(func(f *FunctionReport) float64 { return f.GoodputRPS })},
	"p50":      {unit: "ms", isMax: true, value: ofOK(func(f *FunctionReport) float64 { return f.P50Millis })},
	"p99":      {unit: "ms", isMax: true, value: ofOK(func(f *FunctionReport) float64 { return f.P99Millis })},
	"p99.9":    {unit: "ms", isMax: true, value: ofOK(func(f *FunctionReport) float64 { return f.P999Millis })},
	"accuracy": {unit: "%", value: func(f *FunctionReport) (float64, string) {
		if f.Accuracy == nil {
			return 0, "no labelled picture was answered"
		}
		return *f.Accuracy, ""
	}},
}

func ofSent(figure func(*FunctionReport) float64) func(*FunctionReport) (float64, string) {
	return func(f *FunctionReport) (float64, string) {
		if f.Sent == 0 {
			return 0, "nothing was sent"
		}
		return figure(f), ""
	}
}

func ofOK(figure func(*FunctionReport) float64) func(*FunctionReport) (float64, string) {
	return func(f *FunctionReport) (float64, string) {
		if f.OK == 0 {
			return 0, "nothing was answered ok"
		}
		return figure(f), ""
	}
}

// ParseRequirement reads [FUNCTION:]METRIC=BOUND, like within=99% or face:p99=25ms.
// Percentages need their sign and times their unit, so that 0.99 and 25 are not misread.
func ParseRequirement(text string) (Requirement, error) {
	wrong := func(format string, args ...any) (Requirement, error) {
		return Requirement{}, fmt.Errorf("%q: %s", text, fmt.Sprintf(format, args...))
	}
	left, bound, ok := strings.Cut(text, "=")
	if !ok {
		return wrong("want [FUNCTION:]METRIC=BOUND, like within=99%% or face:p99=25ms")
	}
	r := Requirement{Metric: left}
	if function, name, ok := strings.Cut(left, ":"); ok {
		if function == "" {
			return wrong("want a function before the colon; without the colon the bound is for each function")
		}
		r.Function, r.Metric = function, name
	}
	m, ok := metrics[r.Metric]
	if !ok {
		return wrong("metric %q is unknown; known are %s", r.Metric, strings.Join(functionMetrics, ", "))
	}
	switch m.unit {
	case "%":
		number, ok := strings.CutSuffix(bound, "%")
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if !ok || err != nil || !(v >= 0 && v <= 100) {
			return wrong("want 0%% to 100%%, like %s=99%%", left)
		}
		r.Bound = v
	case "ms":
		d, err := time.ParseDuration(bound)
		if err != nil || d <= 0 {
			return wrong("want a duration with its unit, more than 0, like %s=25ms", left)
		}
		r.Bound = millis(d)
	default:
		v, err := strconv.ParseFloat(strings.TrimSuffix(bound, m.unit), 64)
		if err != nil || !(v >= 0) || math.IsInf(v, 1) {
			return wrong("want requests per second, like %s=50", left)
		}
		r.Bound = v
	}
	return r, nil
}

// Verdict is the result of one Requirement for one function.
type Verdict struct {
	Function string `json:"function"`
	Metric   string `json:"metric"`
	// Required is the bound: a max of Measured if IsMax is true, else a min. Unit is "%", "ms"
	// or "/s".
	Required float64 `json:"required"`
	IsMax    bool    `json:"most"`
	Unit     string  `json:"unit"`
	// Measured is null if there was nothing to measure; Missing says why. Such a requirement
	// is not met.
	Measured *float64 `json:"measured"`
	Missing  string   `json:"missing,omitempty"`
	Met      bool     `json:"met"`
}

func (v Verdict) String() string {
	measured, bound := "unknown ("+v.Missing+")", "least"
	if v.Measured != nil {
		measured = number(*v.Measured) + " " + v.Unit
	}
	if v.IsMax {
		bound = "most"
	}
	return fmt.Sprintf("%s: %s is %s, want at %s %s", v.Function, v.Metric, measured, bound, number(v.Required)+" "+v.Unit)
}

// Require checks the report against requirements and stores the verdicts in it. A requirement
// for a function that the report does not have is an error.
func (r *Report) Require(requirements []Requirement) error {
	for _, q := range requirements {
		if q.Function != "" && !slices.ContainsFunc(r.Functions, func(f FunctionReport) bool { return f.Name == q.Function }) {
			return fmt.Errorf("require %s of %s: want a function with traffic", q.Metric, q.Function)
		}
		m := metrics[q.Metric]
		for i := range r.Functions {
			f := &r.Functions[i]
			if q.Function != "" && q.Function != f.Name {
				continue
			}
			v := Verdict{Function: f.Name, Metric: q.Metric, Required: q.Bound, IsMax: m.isMax, Unit: m.unit}
			figure, missing := m.value(f)
			if v.Missing = missing; missing == "" {
				v.Measured, v.Met = &figure, figure >= q.Bound
				if m.isMax {
					v.Met = figure <= q.Bound
				}
			}
			r.Requirements = append(r.Requirements, v)
		}
	}
	return nil
}

// Missed returns the requirements that were not met, one line each.
func (r *Report) Missed() []string {
	var missed []string
	for _, v := range r.Requirements {
		if !v.Met {
			missed = append(missed, v.String())
		}
	}
	return missed
}
