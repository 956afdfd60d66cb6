package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/arrival"
)

// TestOverload offers a function more than it can answer. It must answer as many requests in
// time as without the overload, and the client drops the rest. Batches of 8 sleep for 40 ms,
// so that a busy machine has little effect.
func TestOverload(t *testing.T) {
	const (
		capacity  = 200 // per second
		objective = 400 * time.Millisecond
	)
	nd := start(t, fmt.Sprintf(`
shares: {tune: false}
functions:
  - {name: fn, model: %s, port: 0, slo: %v, environment: {%s: sleep=40ms}}
`, nodetest.Card(t, "small", small), objective, null.Variable))
	offer := func(perSecond float64) loadgen.FunctionReport {
		t.Helper()
		report, err := loadgen.Run(t.Context(), loadgen.Spec{Warmup: time.Second, Duration: 3 * time.Second, Seed: 1, Functions: []loadgen.Function{{
			Name: "fn", Addr: nodetest.Address(t, nd, "fn"), SLO: objective, PerSecond: perSecond,
			Arrivals: arrival.Process{Shape: arrival.Poisson}, Pictures: [][]byte{make([]byte, small)},
		}}}, loadgen.Options{Dial: loadgen.DialClient(client.Options{})})
		must.OK(t, err)
		f := report.Functions[0]
		t.Logf("%.0f/s: %.0f/s in time, p99 %.1f ms, batch %.1f; %d late, %d of them dropped, %d busy, %d incomplete, %d unanswered",
			perSecond, f.GoodputRPS, f.P99Millis, f.MeanBatch, f.Late, f.Dropped, f.Busy, f.Incomplete, f.Unanswered)
		return f
	}
	for _, times := range []float64{2, 5} {
		// A machine that becomes busy between the two loads says nothing.
		for attempt := 1; ; attempt++ {
			below, f := offer(0.9*capacity), offer(times*capacity)
			// On a quiet machine nearly all requests are answered in time. If requests waited for
			// credit as long as they may, none would be.
			if f.Unanswered == 0 && f.GoodputRPS >= 0.6*below.GoodputRPS {
				break
			}
			if attempt == 4 {
				t.Errorf("at %v times its capacity, %.0f requests per second are answered in time; below it, %.0f; %d end without an answer: %s; so in %d attempts",
					times, f.GoodputRPS, below.GoodputRPS, f.Unanswered, f.GaveUp, attempt)
				break
			}
		}
	}
}
