// Package observe shows what a node does: metrics, samples for pages, and counts for the status.
// It gets snapshots of the node, and changes nothing.
package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
)

// Metrics are the node's Prometheus metrics, in base units. The reply threads
// record into histograms without allocation. Counters that exist elsewhere are
// read when Prometheus scrapes.
type Metrics struct {
	Registry  *prometheus.Registry
	request   *prometheus.HistogramVec
	stage     *prometheus.HistogramVec
	batch     *prometheus.HistogramVec
	swapIdle  *prometheus.HistogramVec
	functions map[string]*Histograms // by name; the control loop owns it
}

// Stages of a request, in order (docs/architecture.md, "the way of a request").
const (
	stageSocket    = iota // first fragment at the machine -> received
	stageAggregate        // first fragment received -> complete
	stageQueue            // complete -> dispatched
	stageGather           // dispatched -> batch tensor ready
	stageInfer            // gathered -> outputs ready
	stageReply            // outputs ready -> reply handed to the socket
	stageRelease          // reply handed over -> packets released
	numStages
)

// stageNames has one name for each of them.
var stageNames = control.StageNames

// New returns metrics without functions. snapshot describes the node; it fails when the node has stopped.
func New(snapshot func() (Snapshot, error)) *Metrics {
	// 50 µs to 13 s in steps of 1.5, so that 7, 10 and 15 ms fall into different
	// buckets.
	latency := prometheus.ExponentialBuckets(50e-6, 1.5, 32)
	x := &Metrics{
		Registry:  prometheus.NewRegistry(),
		functions: map[string]*Histograms{},
		request: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_request_seconds", Buckets: latency,
			Help: "Time from the arrival of a request's first fragment at the machine to its reply.",
		}, []string{"function"}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_stage_seconds", Buckets: prometheus.ExponentialBuckets(5e-6, 2, 22),
			Help: "Time that a request spent in each stage.",
		}, []string{"function", "stage"}),
		batch: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_batch_requests", Buckets: []float64{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256},
			Help: "Size of each request's batch.",
		}, []string{"function"}),
		swapIdle: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_swap_idle_seconds", Buckets: prometheus.ExponentialBuckets(5e-6, 1.6, 24),
			Help: "Time in a hand-over during which requests waited and no batch ran, by how the share changed.",
		}, []string{"function", "mechanism"}),
	}
	x.Registry.MustRegister(x.request, x.stage, x.batch, x.swapIdle, collector{snapshot},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return x
}

// Of returns the histograms of one function. They are looked up once, so that a
// reply needs no lookup.
func (x *Metrics) Of(name string) *Histograms {
	if fm := x.functions[name]; fm != nil {
		return fm
	}
	fm := &Histograms{
		request:  x.request.WithLabelValues(name),
		batch:    x.batch.WithLabelValues(name),
		batches:  prometheus.NewCounter(prometheus.CounterOpts{}),
		outliers: &outliers{},
	}
	x.functions[name] = fm
	for i, stage := range stageNames {
		fm.stages[i] = x.stage.WithLabelValues(name, stage)
	}
	return fm
}

// Forget drops the series of a removed function.
func (x *Metrics) Forget(name string) {
	delete(x.functions, name)
	label := prometheus.Labels{"function": name}
	x.request.DeletePartialMatch(label)
	x.stage.DeletePartialMatch(label)
	x.batch.DeletePartialMatch(label)
	x.swapIdle.DeletePartialMatch(label)
}

// Histograms are those of a function's requests.
type Histograms struct {
	request prometheus.Observer
	batch   prometheus.Observer
	// batches gets from each request its part of one batch.
	batches prometheus.Counter
	stages  [numStages]prometheus.Observer
	// outliers are kept for the page.
	outliers *outliers
}

// Answered makes Histograms a datapath.Observer.
func (fm *Histograms) Answered(t *datapath.Times) {
	fm.outliers.note(t)
	fm.request.Observe(seconds(t.Sent - t.FirstFragment))
	fm.stages[stageSocket].Observe(seconds(t.Received - t.FirstFragment))
	fm.stages[stageAggregate].Observe(seconds(t.Complete - t.Received))
	if t.Inferred == 0 {
		return
	}
	fm.stages[stageQueue].Observe(seconds(t.Dispatched - t.Complete))
	fm.stages[stageGather].Observe(seconds(t.Gathered - t.Dispatched))
	fm.stages[stageInfer].Observe(seconds(t.Inferred - t.Gathered))
	fm.stages[stageReply].Observe(seconds(t.Sent - t.Inferred))
	fm.stages[stageRelease].Observe(seconds(t.Released - t.Sent))
	fm.batch.Observe(float64(t.Batch))
	fm.batches.Add(1 / float64(t.Batch))
}

func seconds(nanos int64) float64 { return float64(nanos) / 1e9 }

// HandedOver counts a hand-over, by how the share changed.
func (x *Metrics) HandedOver(function, mechanism string, idle time.Duration) {
	x.swapIdle.WithLabelValues(function, mechanism).Observe(idle.Seconds())
}
