package fleet

import (
	"maps"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// loaded reports what the process that serves a function says of its model.
func (b *nodeBed) loaded(name string, r *control.Residency) {
	generation, _ := b.serves(name)
	b.instance(name, 0).report(generation, control.Report{Generation: generation, Residency: r})
}

func TestResidencyStatus(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("a", "cold", time.Second), member("b", "cold", time.Second), member("c", "warm", time.Second))
	status := func() control.Residency {
		t.Helper()
		r := b.status("a").Residency
		if r == nil {
			t.Fatal("the status has no residency")
		}
		return *r
	}
	if r := b.status("a").Residency; r != nil {
		t.Errorf("before a report: %+v", r)
	}
	b.loaded("a", &control.Residency{State: control.Resident, Bytes: 9, Loads: 2, Evictions: 1, LastLoadMillis: 4.5})
	b.loaded("a", &control.Residency{State: control.Evicted, Bytes: 9, Loads: 2, Evictions: 2, LastLoadMillis: 4.5})
	b.loaded("c", nil)
	if got := status(); got != (control.Residency{State: control.Evicted, Bytes: 9, Loads: 2, Evictions: 2, LastLoadMillis: 4.5}) {
		t.Errorf("status %+v", got)
	}
	if r := b.status("c").Residency; r != nil {
		t.Errorf("member of a worker without a limit: %+v", r)
	}

	b.replaced("a", "newer")
	if r := b.status("a").Residency; r != nil {
		t.Errorf("before the new process has reported: %+v", r)
	}
	b.loaded("a", &control.Residency{State: control.Resident, Loads: 1})
	if got := status(); got.Loads != 1 || got.Evictions != 0 || got.State != control.Resident {
		t.Errorf("status %+v, want those of the new process", got)
	}
	b.moved("a", "")
	b.loaded("a", nil)
	if r := b.status("a").Residency; r != nil {
		t.Errorf("outside of a worker: %+v", r)
	}
}

func TestWorkersStatus(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("a", "cold", time.Second), member("b", "cold", time.Second))
	want := func(thrashing bool, needed int64) {
		t.Helper()
		all := b.page().Workers
		if len(all) != 2 || all[0] != (control.WorkerStatus{Name: "cold", MemoryBytes: int64(cold.Memory), Thrashing: thrashing, NeededBytes: needed}) || all[1] != (control.WorkerStatus{Name: "warm"}) {
			t.Errorf("workers %+v, want thrashing %v with %d bytes needed in the first one", all, thrashing, needed)
		}
	}
	want(false, 0)
	b.loaded("a", &control.Residency{State: control.Loading, FixedBytes: 1 << 20})
	if got := b.page().Workers[0].FixedBytes; got != 1<<20 {
		t.Errorf("%d fixed bytes, want 1 MiB", got)
	}
	b.loaded("a", &control.Residency{State: control.Loading, Thrashing: true, NeededBytes: 3 << 20})
	want(true, 3<<20)
	b.moved("a", "")
	b.loaded("b", &control.Residency{State: control.Resident})
	want(false, 0)
}

func TestResidencyMetrics(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("a", "cold", time.Second), objective("own", time.Second))
	b.loaded("a", &control.Residency{State: control.Running, Loads: 3, Evictions: 2, LastLoadMillis: 5, Thrashing: true, NeededBytes: 1})
	for name, want := range map[string]float64{
		"penstock_model_loads_total": 3, "penstock_model_evictions_total": 2,
		"penstock_model_last_load_seconds": 0.005, "penstock_worker_thrashing": 1, "penstock_worker_memory_bytes": float64(cold.Memory),
	} {
		if got := b.series(name); len(got) != 1 || got[0].GetGauge().GetValue()+got[0].GetCounter().GetValue() != want {
			t.Errorf("%s has %v, want one series with %v", name, got, want)
		}
	}
	states := map[string]float64{}
	for _, m := range b.series("penstock_model_state") {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["function"] == "a" {
			states[labels["state"]] = m.GetGauge().GetValue()
		}
	}
	if want := map[string]float64{"evicted": 0, "loading": 0, "resident": 0, "active": 1}; !maps.Equal(states, want) {
		t.Errorf("states %v, want %v", states, want)
	}
}

// TestWarmedUp keeps the results of a warm-up for the next process with the same model on the same device.
func TestWarmedUp(t *testing.T) {
	b := workerNode(t, configs.DeviceCPU, member("a", "cold", time.Second))
	in := b.instance("a", 0)
	results := &control.Measurements{PersistentBytes: 9}
	report := func() {
		generation, _ := b.serves("a")
		in.report(generation, control.Report{Generation: generation, Measurements: results, Compared: "file"})
	}
	report()
	kept := func(what string, want bool) {
		t.Helper()
		if got := in.reported.run.Card == in.pair.Card(); got != want {
			t.Errorf("%s: kept %v, want %v", what, got, want)
		}
	}
	kept("the same model", true)
	b.replaced("a", "newer")
	kept("another model", false)
	report()
	b.moved("a", "warm")
	kept("another worker", false)
	report()
	in.forgetDevice(in.device())
	kept("another device", false)
}
