package loadgen_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/testing/loadfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/arrival"
	"pgregory.net/rapid"
)

// holdsBelow returns a probe of a system that holds every rate up to its
// capacity.
func holdsBelow(capacity float64) loadgen.Probe {
	return func(_ context.Context, perSecond float64) (loadgen.Trial, error) {
		return loadgen.Trial{PerSecond: perSecond, Held: perSecond <= capacity}, nil
	}
}

func TestFindMaxRatePrecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := math.Exp(rapid.Float64Range(math.Log(0.1), math.Log(1e6)).Draw(t, "log capacity"))
		search := loadgen.Search{
			Start:     math.Exp(rapid.Float64Range(math.Log(0.1), math.Log(1e6)).Draw(t, "log start")),
			Precision: rapid.Float64Range(0.001, 0.5).Draw(t, "precision"),
		}
		if rapid.Bool().Draw(t, "bounded") {
			search.Max = search.Start * rapid.Float64Range(1, 100).Draw(t, "max")
		}
		found, err := loadgen.FindMaxRate(context.Background(), search, holdsBelow(capacity))
		must.OK(t, err)
		switch {
		case found.PerSecond > capacity:
			t.Fatalf("found %v of a capacity of %v", found.PerSecond, capacity)
		case found.Failed == 0:
			if search.Max == 0 || found.PerSecond != search.Max {
				t.Fatalf("found %v, which no failure bounds; max %v", found.PerSecond, search.Max)
			}
		case found.Failed <= capacity:
			t.Fatalf("%v is said to fail with a capacity of %v", found.Failed, capacity)
		case found.PerSecond == 0 || found.Failed/found.PerSecond > 1+search.Precision:
			t.Fatalf("found %v below %v, wider than %v", found.PerSecond, found.Failed, search.Precision)
		}
		if found.Best.PerSecond != found.PerSecond {
			t.Fatalf("the best trial is at %v, not %v", found.Best.PerSecond, found.PerSecond)
		}
		for _, trial := range found.Trials {
			if search.Max > 0 && trial.PerSecond > search.Max {
				t.Fatalf("tried %v, above the maximum %v", trial.PerSecond, search.Max)
			}
		}
	})
}

func TestFindMaxRateNone(t *testing.T) {
	found, err := loadgen.FindMaxRate(context.Background(), loadgen.Search{Start: 100, Precision: 0.05}, holdsBelow(0))
	if err != nil || found.PerSecond != 0 || len(found.Trials) > 20 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestFindMaxRateConfirms(t *testing.T) {
	// Every second probe is disturbed.
	probes := 0
	found, err := loadgen.FindMaxRate(context.Background(), loadgen.Search{Start: 10, Precision: 0.05, Confirm: 2},
		func(_ context.Context, perSecond float64) (loadgen.Trial, error) {
			probes++
			return loadgen.Trial{PerSecond: perSecond, Held: perSecond <= 77 && probes%2 == 0}, nil
		})
	if err != nil || found.PerSecond < 77/1.05 || found.PerSecond > 77 {
		t.Errorf("found %v, %v; want just below 77", found.PerSecond, err)
	}
}

func TestSearchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	found, err := loadgen.FindMaxRate(ctx, loadgen.Search{Start: 10, Precision: 0.01}, func(ctx context.Context, perSecond float64) (loadgen.Trial, error) {
		if perSecond == 40 {
			cancel()
			return loadgen.Trial{}, ctx.Err()
		}
		return holdsBelow(1000)(ctx, perSecond)
	})
	if err != nil || !found.Interrupted || found.PerSecond != 20 || len(found.Trials) != 2 {
		t.Errorf("%+v, %v; want 20 so far", found, err)
	}
}

func TestFindMaxRateErrors(t *testing.T) {
	broken := errors.New("no such host")
	_, err := loadgen.FindMaxRate(context.Background(), loadgen.Search{Start: 10, Precision: 0.05}, func(context.Context, float64) (loadgen.Trial, error) {
		return loadgen.Trial{}, broken
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "try 10 requests per second") {
		t.Errorf("a broken probe: %v", err)
	}
	for _, search := range []loadgen.Search{{}, {Start: 10}, {Start: 10, Precision: -1}, {Precision: 0.1}, {Start: 10, Precision: 0.1, Max: 5}, {Start: math.NaN(), Precision: 0.1}} {
		if _, err := loadgen.FindMaxRate(context.Background(), search, holdsBelow(5)); err == nil {
			t.Errorf("%+v was searched", search)
		}
	}
}

// TestFindMaxRateQueue searches over whole runs. One server that takes 5 ms
// per request holds just under 200 equally spaced requests per second.
func TestFindMaxRateQueue(t *testing.T) {
	for _, test := range []struct {
		name      string
		arrivals  arrival.Process
		low, high float64
	}{
		{"equally spaced", arrival.Process{Shape: arrival.Constant}, 189, 206},
		// A queue with random arrivals meets 25 ms at p99 only with spare
		// capacity. The wait in M/D/1 at 60 % load has a p99 near 20 ms.
		{"random", arrival.Process{}, 80, 160},
		{"cameras", arrival.Process{Shape: arrival.Video, FramesPerSecond: 10}, 120, 206},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				system := &loadfake.System{Service: 5 * time.Millisecond}
				spec := constant(t, 0, 4*time.Second)
				spec.Functions[0].Arrivals = test.arrivals
				probe, err := loadgen.ProbeFunction(spec, "face", loadgen.Options{Dial: system.Dial, Clock: loadfake.Clock{}})
				must.OK(t, err)
				found, err := loadgen.FindMaxRate(t.Context(), loadgen.Search{Start: 20, Precision: 0.05}, probe)
				must.OK(t, err)
				if found.PerSecond < test.low || found.PerSecond > test.high || found.Best.P99Millis > 25 || found.Best.WithinSLO < 99 {
					t.Errorf("found %v, want %v to %v: %+v", found.PerSecond, test.low, test.high, found.Best)
				}
			})
		})
	}
}

func TestProbe(t *testing.T) {
	counts := map[string]int{}
	system := &loadfake.System{Behave: func(r loadfake.Request) loadfake.Outcome {
		counts[r.Function]++
		return loadfake.Outcome{}
	}}
	synctest.Test(t, func(t *testing.T) {
		spec := constant(t, 10, time.Second)
		other := spec.Functions[0]
		other.Name = "detect"
		spec.Functions = append(spec.Functions, other)
		spec.Schedule = arrival.Schedule{{Function: "detect", PerSecond: 1000}}
		probe, err := loadgen.ProbeFunction(spec, "face", loadgen.Options{Dial: system.Dial, Clock: loadfake.Clock{}})
		must.OK(t, err)
		trial, err := probe(t.Context(), 50)
		if err != nil || !trial.Held || trial.PerSecond != 50 || trial.GoodputRPS != 50 {
			t.Errorf("%+v, %v", trial, err)
		}
		if spec.Functions[0].PerSecond != 10 {
			t.Error("the probe changed its caller's spec")
		}
	})
	if counts["face"] != 50 || counts["detect"] != 10 {
		t.Errorf("sent %v, want 50 and 10", counts)
	}
	if _, err := loadgen.ProbeFunction(constant(t, 1, time.Second), "fase", loadgen.Options{}); err == nil {
		t.Error("a function that is not there was probed")
	}
}

func TestWriteSearch(t *testing.T) {
	found, err := loadgen.FindMaxRate(context.Background(), loadgen.Search{Start: 100, Precision: 0.5}, holdsBelow(150))
	must.OK(t, err)
	var table, object bytes.Buffer
	must.OK(t, errors.Join(found.WriteTable(&table), found.WriteJSON(&object)))
	for _, want := range []string{"100.0 /s", "200.0 /s", "holds", "fails", "highest rate: 141.4 requests per second; 200.0 fails (precision 50 %)"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &table)
		}
	}
	for _, want := range []string{`"max_rate_rps": 141.4`, `"failed_rate_rps": 200`, `"trials"`, `"held": true`} {
		if !strings.Contains(object.String(), want) {
			t.Errorf("the JSON lacks %q:\n%s", want, &object)
		}
	}
}
