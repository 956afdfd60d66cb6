// Package metrics serves the status of Functions and Fleets to Prometheus. The alerts of the chart use it.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const timeout = 5 * time.Second

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("penstock_cluster_"+name, help, labels, nil)
}

var (
	planned     = describe("function_planned_rate", "Rate in requests per second that the plan was made for.", "namespace", "function")
	observed    = describe("function_observed_rate", "Rate in requests per second that clients sent, with refused requests.", "namespace", "function")
	assigned    = describe("function_assigned_rate", "Rate in requests per second that the segments can serve.", "namespace", "function")
	segments    = describe("function_segments", "Segments in the plan.", "namespace", "function")
	ready       = describe("function_ready_segments", "Segments that serve.", "namespace", "function")
	ofFunction  = describe("function_condition", "1 if the condition is true, else 0.", "namespace", "function", "type", "reason")
	gpus        = describe("fleet_gpus", "GPUs that can serve.", "fleet")
	usedGPUs    = describe("fleet_used_gpus", "GPUs with segments.", "fleet")
	ofFleet     = describe("fleet_condition", "1 if the condition is true, else 0.", "fleet", "type", "reason")
	descriptors = []*prometheus.Desc{planned, observed, assigned, segments, ready, ofFunction, gpus, usedGPUs, ofFleet}
)

type collector struct {
	reader  client.Reader
	elected <-chan struct{}
}

// New returns a collector that reads from an operator's cache. It has no metrics until the operator is elected, so that each
// function has them once.
func New(reader client.Reader, elected <-chan struct{}) prometheus.Collector {
	return collector{reader, elected}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descriptors {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	rate := func(d *prometheus.Desc, q *resource.Quantity, labels ...string) {
		if q != nil {
			gauge(d, q.AsApproximateFloat64(), labels...)
		}
	}
	conditions := func(d *prometheus.Desc, all []metav1.Condition, labels ...string) {
		for _, c := range all {
			value := 0.0
			if c.Status == metav1.ConditionTrue {
				value = 1
			}
			gauge(d, value, append(labels[:len(labels):len(labels)], c.Type, c.Reason)...)
		}
	}

	var functions v1alpha1.FunctionList
	if err := c.reader.List(ctx, &functions, client.UnsafeDisableDeepCopy); err != nil {
		to <- prometheus.NewInvalidMetric(planned, err)
		return
	}
	for _, f := range functions.Items {
		rate(planned, f.Status.PlannedRate, f.Namespace, f.Name)
		rate(observed, f.Status.ObservedRate, f.Namespace, f.Name)
		rate(assigned, f.Status.AssignedRate, f.Namespace, f.Name)
		gauge(segments, float64(f.Status.Segments), f.Namespace, f.Name)
		gauge(ready, float64(f.Status.ReadySegments), f.Namespace, f.Name)
		conditions(ofFunction, f.Status.Conditions, f.Namespace, f.Name)
	}

	var fleets v1alpha1.FleetList
	if err := c.reader.List(ctx, &fleets, client.UnsafeDisableDeepCopy); err != nil {
		to <- prometheus.NewInvalidMetric(gpus, err)
		return
	}
	for _, f := range fleets.Items {
		gauge(gpus, float64(f.Status.GPUs), f.Name)
		gauge(usedGPUs, float64(f.Status.UsedGPUs), f.Name)
		conditions(ofFleet, f.Status.Conditions, f.Name)
	}
}
