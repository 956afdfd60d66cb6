package history

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/control"
)

// Recorder turns the samples of a node into its history. Any goroutine may call its methods.
type Recorder struct {
	mu       sync.Mutex
	last     control.Sample
	series   map[string]*Series
	outliers map[string][]control.Outlier
	marks    []Mark // oldest first
	numbered int    // marks so far
}

// The limits of what a Recorder keeps.
const (
	maxMarks    = 512
	maxOutliers = 512 // per function
)

// NewRecorder returns an empty history.
func NewRecorder() *Recorder {
	return &Recorder{series: map[string]*Series{}, outliers: map[string][]control.Outlier{}}
}

// Update is what a sample added to the history.
type Update struct {
	Millis int64 `json:"t"`
	// Functions are their newest points.
	Functions map[string]Point `json:"functions"`
	Marks     []Mark           `json:"marks,omitempty"`
}

// Add adds a sample. The first one has no point, since counters need two.
func (r *Recorder) Add(s *control.Sample) Update {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := Update{Millis: s.At.UnixMilli(), Functions: map[string]Point{}}
	before := r.last
	r.last = *s
	if before.At.IsZero() {
		return u
	}

	for i := range s.Functions {
		f := &s.Functions[i]
		var was control.FunctionSample
		if j := slices.IndexFunc(before.Functions, func(o control.FunctionSample) bool { return o.Name == f.Name }); j >= 0 && before.Status.Started.Equal(s.Status.Started) {
			was = before.Functions[j]
		}
		p := Difference(&was, f)
		if status, ok := s.Status.Function(f.Name); ok {
			p.gauges(&status)
		}
		if r.series[f.Name] == nil {
			r.series[f.Name] = &Series{}
		}
		r.series[f.Name].Add(u.Millis, &p)
		r.noteOutliers(f)
		u.Functions[f.Name] = p
	}
	r.forget(s)

	u.Marks = Marks(&before, s)
	for i := range u.Marks {
		r.numbered++
		u.Marks[i].Number = r.numbered
	}
	r.marks = append(r.marks, u.Marks...)
	r.marks = slices.Delete(r.marks, 0, max(0, len(r.marks)-maxMarks))
	return u
}

// forget drops the functions that the node has no more.
func (r *Recorder) forget(s *control.Sample) {
	for name := range r.series {
		if _, ok := s.Status.Function(name); !ok {
			delete(r.series, name)
			delete(r.outliers, name)
		}
	}
}

// Difference is what happened between two samples of a function. Counters that fell belong to a
// function that was removed and added again; they count from zero.
func Difference(was, is *control.FunctionSample) Point {
	p := Point{Known: true}
	if len(was.Latency) != len(is.Latency) || is.Ran < was.Ran || !grew(was.Results, is.Results) {
		was = &control.FunctionSample{}
	}
	for i := range min(Buckets, len(is.Latency)) {
		p.Latency[i] = uint32(is.Latency[i] - at(was.Latency, i))
	}
	for i := range min(len(p.Results), len(is.Results)) {
		p.Results[i] = uint32(is.Results[i] - at(was.Results, i))
	}
	for i := range min(Stages, len(is.Stages)) {
		p.StageMillis[i] = float32(1000 * (is.Stages[i].Seconds - at(was.Stages, i).Seconds))
	}
	p.Ran, p.BatchSum = uint32(is.Ran-was.Ran), float32(is.BatchSum-was.BatchSum)
	return p
}

func at[T any](list []T, i int) (v T) {
	if i < len(list) {
		v = list[i]
	}
	return v
}

func grew(was, is []uint64) bool {
	for i := range was {
		if i >= len(is) || is[i] < was[i] {
			return false
		}
	}
	return true
}

func (p *Point) gauges(f *control.FunctionStatus) {
	p.InFlight = float32(f.InFlight)
	p.Guarantee = float32(f.SharePercent)
	if g := f.Guarantee; g != nil {
		p.Need, p.Use, p.Demoted = float32(g.NeedPercent), float32(g.UsePercent), float32(g.DemotedPercent)
	}
}

// sameOutlier is the largest difference of one request's time in two samples, which convert it
// from another clock.
const sameOutlier = 5 * time.Millisecond

func (r *Recorder) noteOutliers(f *control.FunctionSample) {
	list := r.outliers[f.Name]
	for _, o := range f.Outliers {
		known := slices.ContainsFunc(list, func(k control.Outlier) bool {
			return k.Request == o.Request && k.Began.Sub(o.Began).Abs() < sameOutlier
		})
		if !known {
			list = append(list, o)
		}
	}
	slices.SortStableFunc(list, func(a, b control.Outlier) int { return a.Began.Compare(b.Began) })
	r.outliers[f.Name] = slices.Delete(list, 0, max(0, len(list)-maxOutliers))
}

// Sample returns the last sample; it is zero before the first.
func (r *Recorder) Sample() control.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Points returns a function's points of a level; nil if there are none.
func (r *Recorder) Points(name string, level int) (points []Point, millis int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.series[name]; s != nil {
		return s.Points(level)
	}
	return nil, 0
}

// Marks returns the kept marks, oldest first.
func (r *Recorder) Marks() []Mark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.marks)
}

// Outliers returns the kept outliers of a function that began in an interval, slowest first.
func (r *Recorder) Outliers(name string, from, to time.Time) (list []control.Outlier) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outliers[name] {
		if !o.Began.Before(from) && o.Began.Before(to) {
			list = append(list, o)
		}
	}
	slices.SortStableFunc(list, func(a, b control.Outlier) int { return -cmp.Compare(total(&a), total(&b)) })
	return list
}

func total(o *control.Outlier) (micros float64) {
	for _, v := range o.StagesMicros {
		micros += v
	}
	return micros
}
