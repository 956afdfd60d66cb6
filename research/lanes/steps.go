package lanes

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/libml/residency"
)

// prepareTime is what a load takes on an H200 before its copy: orders to threads, one eviction, and mapping
// (docs/adr/0030-evicting-weights.md).
const prepareTime = 800 * time.Microsecond

// A late load takes this many times as long as expected.
const lateFactor = 8

func (w *worker) endSteps(now int64) {
	for i := range w.models {
		if m := &w.models[i]; m.stepEnd <= now {
			m.state, m.stepEnd = residency.Resident, never
		}
	}
}

// plan begins the steps of a plan.
func (w *worker) plan(now int64) error {
	for i := range w.models {
		w.snapshot[i] = w.observe(now, i)
	}
	steps := w.resources.Plan(now, w.snapshot)
	touched := map[int]bool{}
	for _, s := range steps {
		m := &w.models[s.Model]
		switch {
		case touched[s.Model]:
			return fmt.Errorf("plan has two steps of %s: %v", m.Name, steps)
		case !s.Op.From(m.state) || m.moving() || m.lane < 0:
			return fmt.Errorf("plan has %v of %s, which is %v", s.Op, m.Name, m.state)
		}
		touched[s.Model] = true
		if s.Op == residency.Evict {
			if len(m.waiting) > 0 || w.expects(m) || w.reserved(s.Model) {
				return fmt.Errorf("plan evicts %s, which has work", m.Name)
			}
			m.state = residency.Evicted
			w.result.Evictions++
			continue
		}
		load := w.snapshot[s.Model].Load
		m.stepEnd, m.stepDue = now+w.stepTime(m, load), now+int64(load)
		w.beginCopy(m, now)
	}
	if len(steps) > 0 {
		for i := range w.models {
			w.snapshot[i] = w.observe(now, i) // for Wake
		}
	}
	return nil
}

// beginCopy takes the bus for the copy of a load that begins now. If another load has it, the copy waits.
func (w *worker) beginCopy(m *model, now int64) {
	began := max(now, w.busFree-int64(prepareTime))
	m.stepEnd, m.stepDue = m.stepEnd+began-now, m.stepDue+began-now
	w.result.Loads++
	w.result.Loading += time.Duration(min(m.stepEnd, int64(w.Duration)) - max(now, w.busFree)).Seconds()
	w.busFree = m.stepEnd
}

// expects reports whether a request of a client that can receive has begun to arrive.
func (w *worker) expects(m *model) bool {
	return slices.ContainsFunc(m.arriving, func(r request) bool { return r.proven && !w.LoadLast })
}

// observe returns what Plan sees of a model.
func (w *worker) observe(now int64, index int) residency.Model {
	m := &w.models[index]
	o := residency.Model{
		State: m.state, Moving: m.moving(), Ends: m.stepDue, WeightsBytes: m.WeightsBytes, Batch: m.batchTime(1), Load: w.loadTime(m.WeightsBytes),
		Waiting: len(m.waiting), Rate: m.rate.At(now), Used: m.used,
	}
	if m.Period > 0 && !m.removed && m.admitted {
		o.Period, o.Expected = m.Period, m.nominal
	}
	kept := now + int64(o.Load+o.Batch)
	earliest, deadline := int64(never), int64(never)
	note := func(r request) {
		earliest = min(earliest, r.Deadline)
		if r.Deadline >= kept {
			deadline = min(deadline, r.Deadline)
		}
	}
	for _, r := range m.arriving {
		if r.proven && !w.LoadLast {
			o.Arriving++
			note(r)
		}
	}
	for _, r := range m.waiting {
		note(r)
	}
	if o.Deadline = deadline; deadline == never {
		o.Deadline = earliest
	}
	// A lane that waits for a model counts as its work, even if its requests became late.
	if w.reserved(index) && m.state == residency.Resident {
		o.State = residency.Active
	}
	return o
}

func (w *worker) loadTime(bytes int64) time.Duration {
	return prepareTime + time.Duration(float64(bytes)/w.CopyRate*float64(time.Second))
}

// stepTime returns how long a load really takes.
func (w *worker) stepTime(m *model, expected time.Duration) int64 {
	took := float64(expected) * math.Exp(loadSigma*m.noise.NormFloat64())
	if m.noise.Float64() < w.LateLoads {
		took *= lateFactor
	}
	return 1 + int64(took)
}

// LRU orders victims by the end of their last batch, for comparison.
func LRU(a, b *residency.Model) int { return cmp.Compare(a.Used, b.Used) }
