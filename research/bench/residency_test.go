package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/shm"
)

func TestResidencyNames(t *testing.T) {
	o := ResidencyOptions{ModelNames: []string{"a", "b", "a"}, Functions: 5}
	if got, want := o.names(), []string{"a", "b", "a", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	o.Variants = true
	if got, want := o.names(), []string{"a", "b", "a-2", "a-3", "b-2"}; !slices.Equal(got, want) {
		t.Errorf("variants: %v, want %v", got, want)
	}
	if got, want := o.architectures(), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("architectures: %v, want %v", got, want)
	}
}

func TestResidencyRates(t *testing.T) {
	o := ResidencyOptions{Functions: 2, PerSecond: 3}
	got := o.rates(1)
	if rates := []string{got["fn0"], got["fn1"]}; !slices.Contains(rates, "2.0000") || !slices.Contains(rates, "1.0000") {
		t.Errorf("by Zipf's law: %v, want 2 and 1", got)
	}
	o.Equal = true
	if got := o.rates(1); got["fn0"] != "1.5000" || got["fn1"] != "1.5000" {
		t.Errorf("equal: %v, want 1.5 each", got)
	}
}

func TestAdded(t *testing.T) {
	const ms = time.Millisecond
	var alone, way ResidencyWay
	alone.addModels(map[string][]time.Duration{"a": {2 * ms, 4 * ms}, "b": {ms}})
	way.addModels(map[string][]time.Duration{"a": {4 * ms, 6 * ms}, "b": {2 * ms}, "c": {}})
	if way.compare(&alone); way.AddedMean != 1.5 || way.AddedP99 != 2 {
		t.Errorf("added %v and %v ms, want a mean of 1.5 and a p99 of 2", way.AddedMean, way.AddedP99)
	}
}

func TestDifferent(t *testing.T) {
	reference := singleAnswers{"a": {{1}, {2}}, "b": {{3}}}
	if n := (singleAnswers{"a": {{1}, {2}}, "b": {{3}}}).different(reference); n != 0 {
		t.Errorf("equal answers: %v differ", n)
	}
	if n := (singleAnswers{"a": {{1}, {3}}, "b": {{3, 0}}}).different(reference); n != 2 {
		t.Errorf("%v differ, want 2", n)
	}
}

// deaf is a sender that delivers nothing.
type deaf struct{}

func (deaf) Send([]byte, int64, uint64) error { return nil }
func (deaf) Close() error                     { return nil }

func TestLatencies(t *testing.T) {
	l := latencies{byFunction: map[string][]time.Duration{}}
	var deliver func(*client.Result)
	dial := l.dialer(func(_ context.Context, _ loadgen.Function, _ int, d func(*client.Result)) (loadgen.Sender, error) {
		deliver = d
		return deaf{}, nil
	}, time.Hour)
	s, err := dial(t.Context(), loadgen.Function{Name: "f"}, 0, func(*client.Result) {})
	must.OK(t, err)

	now, after := shm.Now(), shm.Now()+int64(2*time.Hour)
	for tag, c := range []struct {
		intended int64
		status   client.Status
	}{{now, client.StatusOK}, {after, client.StatusLate}, {after, client.StatusOK}} {
		must.OK(t, s.Send(nil, c.intended, uint64(tag)))
		deliver(&client.Result{Tag: uint64(tag), Status: c.status, Received: shm.Time(c.intended + 5)})
	}
	if got := l.byFunction["f"]; !slices.Equal(got, []time.Duration{5}) {
		t.Errorf("%v, want the one ok answer after the warm-up", got)
	}
}
