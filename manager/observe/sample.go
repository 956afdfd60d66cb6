package observe

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// NewSample returns a snapshot with what pages draw from the histograms.
func NewSample(s Snapshot) control.Sample {
	sample := control.Sample{At: time.Now(), Status: s.Status}
	for i, f := range s.Functions {
		one := control.FunctionSample{Name: s.Status.Functions[i].Name, Results: f.Stats.Results[:], Picture: f.Picture}
		sample.BoundsMillis = f.Histograms.fill(&one)
		sample.Functions = append(sample.Functions, one)
	}
	return sample
}

// fill adds what the histograms have counted, and returns the bounds of the latency's buckets.
func (fm *Histograms) fill(s *control.FunctionSample) (boundsMillis []float64) {
	request := read(fm.request)
	below := uint64(0)
	for _, b := range request.GetBucket() {
		s.Latency = append(s.Latency, b.GetCumulativeCount()-below)
		below = b.GetCumulativeCount()
		boundsMillis = append(boundsMillis, 1000*b.GetUpperBound())
	}
	s.Latency = append(s.Latency, request.GetSampleCount()-below)

	for _, stage := range fm.stages {
		h := read(stage)
		s.Stages = append(s.Stages, control.StageSample{Seconds: h.GetSampleSum(), Count: h.GetSampleCount()})
	}
	batch := read(fm.batch)
	s.Ran, s.BatchSum = batch.GetSampleCount(), batch.GetSampleSum()
	var batches dto.Metric
	if err := fm.batches.Write(&batches); err == nil {
		s.Batches = uint64(math.Round(batches.GetCounter().GetValue()))
	}
	s.Outliers = fm.outliers.list(shm.Now(), time.Now())
	return boundsMillis
}

func read(o prometheus.Observer) *dto.Histogram {
	var m dto.Metric
	if err := o.(prometheus.Metric).Write(&m); err != nil {
		return &dto.Histogram{}
	}
	return m.GetHistogram()
}

// The outliers of a window are the slowest requests that were answered ok, the first late
// ones, and the first failed ones.
const (
	outlierWindow = 10 * time.Second
	outliersKept  = 8 // of each kind
)

// outliers keeps the outliers of the current window and of the one before, without allocating.
type outliers struct {
	mu           sync.Mutex
	began        int64 // of the current window, shm.Now
	current, old outlierSet
}

type outlierSet struct {
	slow, late, failed outlierKind
}

type outlierKind struct {
	n     int
	times [outliersKept]datapath.Times
}

// note records an answered request.
func (o *outliers) note(t *datapath.Times) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.Sent-o.began > int64(outlierWindow) {
		o.old = o.current
		if t.Sent-o.began > 2*int64(outlierWindow) {
			o.old = outlierSet{}
		}
		o.current, o.began = outlierSet{}, t.Sent
	}
	switch t.Status {
	case wire.StatusOK:
		o.current.slow.replaceFastest(t)
	case wire.StatusLate:
		o.current.late.add(t)
	case wire.StatusFailed:
		o.current.failed.add(t)
	}
}

func (k *outlierKind) add(t *datapath.Times) {
	if k.n < len(k.times) {
		k.times[k.n] = *t
		k.n++
	}
}

// replaceFastest adds a request if there is room, or if it is slower than another one.
func (k *outlierKind) replaceFastest(t *datapath.Times) {
	if k.n < len(k.times) {
		k.add(t)
		return
	}
	fastest := 0
	for i := range k.times {
		if latency(&k.times[i]) < latency(&k.times[fastest]) {
			fastest = i
		}
	}
	if latency(t) > latency(&k.times[fastest]) {
		k.times[fastest] = *t
	}
}

func latency(t *datapath.Times) int64 { return t.Sent - t.FirstFragment }

// list returns the outliers of both windows. now and clock are the same moment on shm's clock
// and on the wall clock.
func (o *outliers) list(now int64, clock time.Time) (list []control.Outlier) {
	o.mu.Lock()
	sets := [2]outlierSet{o.old, o.current}
	began := o.began
	o.mu.Unlock()
	if now-began > 2*int64(outlierWindow) {
		return nil
	}
	for i := range sets {
		for _, kind := range []*outlierKind{&sets[i].slow, &sets[i].late, &sets[i].failed} {
			for j := range kind.n {
				t := &kind.times[j]
				list = append(list, control.Outlier{
					Request: t.RequestID, Status: t.Status.String(), Batch: int(t.Batch),
					Began: clock.Add(time.Duration(t.FirstFragment - now)), StagesMicros: stageMicros(t),
				})
			}
		}
	}
	return list
}

// stageMicros returns a request's time in each of control.StageNames. A request that did not
// run waited in the queue until its answer.
func stageMicros(t *datapath.Times) []float64 {
	micros := func(from, to int64) float64 { return float64(to-from) / 1000 }
	times := make([]float64, numStages)
	times[stageSocket], times[stageAggregate] = micros(t.FirstFragment, t.Received), micros(t.Received, t.Complete)
	if t.Inferred == 0 {
		times[stageQueue] = micros(t.Complete, t.Sent)
		return times
	}
	times[stageQueue], times[stageGather] = micros(t.Complete, t.Dispatched), micros(t.Dispatched, t.Gathered)
	times[stageInfer], times[stageReply] = micros(t.Gathered, t.Inferred), micros(t.Inferred, t.Sent)
	times[stageRelease] = micros(t.Sent, t.Released)
	return times
}
