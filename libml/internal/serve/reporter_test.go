package serve

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
)

func TestReporter(t *testing.T) {
	h := newHarness(t, functiontest.Card())
	p := h.linked(h.Fake())
	p.start.Generation = 9
	attached, _ := h.attached()
	must.OK(t, p.readAttached(attached))
	_, err := p.openLoop(attached, control.Notice{})
	must.OK(t, err)
	r := &p.reporter
	if got, want := r.report(5), (control.Report{Generation: 9, CPUNanos: 5}); got != want {
		t.Errorf("report before the first batch is %+v, want %+v", got, want)
	}
	r.account = gate.NewAccount(0, gate.Config{Level: 3, Exclusive: true, Times: []time.Duration{0, 2, 4}, Size: 1})
	for _, demoted := range []bool{false, true} {
		r.account.End(2, demoted, 0, 4)
	}
	want := control.Report{Generation: 9, CPUNanos: 6, DeviceNanos: 8, DemotedNanos: 4, EachNanos: 2}
	if got := r.report(6); got != want {
		t.Errorf("report is %+v, want %+v", got, want)
	}
}

// TestUnprotected tells why batches beyond a guarantee are not demoted.
func TestUnprotected(t *testing.T) {
	for _, c := range []struct {
		name         string
		level        budget.Level
		noPriorities bool
		order        *control.Order // after the wake
		refused      bool
		want         control.Unprotected
	}{
		{name: "no level", refused: true},
		{name: "a GPU without priorities", level: 3, noPriorities: true, want: control.UnprotectedByDevice},
		{name: "a framework with one stream per slot", level: 3, refused: true, want: control.UnprotectedByFramework},
		{name: "all are demoted", level: 3},
		{name: "guarantees are given up", level: 3, order: &control.Order{SharePercent: 50}, refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			h.GPU.NoPriorities.Store(c.noPriorities)
			h.wake = control.Order{Level: c.level, GuaranteePercent: 1}
			p := h.linked(h.Fake())
			if c.order != nil {
				p.orders.follow(*c.order)
			}
			if got := (&reporter{p: p}).unprotected(c.refused); got != c.want {
				t.Errorf("unprotected by %q, want %q", got, c.want)
			}
		})
	}
}
