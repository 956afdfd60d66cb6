package observe

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/internal/testing/must"
)

// TestStages checks in which histogram each stage of a request is counted.
func TestStages(t *testing.T) {
	x := New(func() (Snapshot, error) { return Snapshot{}, errors.New("stopped") })
	ms := int64(time.Millisecond)
	fm := x.Of("a")
	fm.Answered(&datapath.Times{
		FirstFragment: 0, Received: 1 * ms, Complete: 3 * ms, Dispatched: 7 * ms, Gathered: 15 * ms, Inferred: 31 * ms, Sent: 63 * ms, Released: 127 * ms,
		Batch: 2,
	})
	fm.Answered(&datapath.Times{FirstFragment: 0, Received: 1 * ms, Complete: 3 * ms, Sent: 5 * ms, Released: 6 * ms}) // not run

	families, err := x.Registry.Gather()
	must.OK(t, err)
	got := map[string][2]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				if label.GetName() == "stage" {
					name = label.GetValue()
				}
			}
			if h := metric.GetHistogram(); h != nil {
				got[name] = [2]float64{float64(h.GetSampleCount()), h.GetSampleSum()}
			}
		}
	}
	for name, want := range map[string][2]float64{
		"penstock_request_seconds": {2, 0.068}, "penstock_batch_requests": {1, 2},
		"socket": {2, 0.002}, "aggregate": {2, 0.004},
		"queue": {1, 0.004}, "gather": {1, 0.008}, "infer": {1, 0.016}, "reply": {1, 0.032}, "release": {1, 0.064},
	} {
		if d := got[name][1] - want[1]; got[name][0] != want[0] || d > 1e-9 || d < -1e-9 {
			t.Errorf("%s has count and sum %v, want %v", name, got[name], want)
		}
	}
}
