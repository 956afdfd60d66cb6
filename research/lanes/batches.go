package lanes

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
)

// endBatches answers the requests of batches that have ended.
func (w *worker) endBatches(now int64) {
	for i := range w.lanes {
		l := &w.lanes[i]
		if l.end > now {
			continue
		}
		m := &w.models[l.model]
		for _, r := range l.requests {
			w.count(r)
			if now > r.Deadline {
				w.answered(r, &w.result.Late)
			} else {
				w.answered(r, &w.result.InTime)
			}
			if r.cold && r.first >= int64(w.Settle) {
				w.result.Cold++
				w.coldTime += time.Duration(now - r.Whole)
			}
		}
		m.state, m.used = residency.Resident, now
		l.model, l.end, l.requests = -1, never, nil
	}
}

// dispatch lets idle lanes begin a batch.
func (w *worker) dispatch(now int64) error {
	for i := range w.lanes {
		l := &w.lanes[i]
		if l.model >= 0 && len(w.models[l.model].waiting) == 0 && l.end == never && !w.models[l.model].moving() {
			l.model = -1 // all requests became late while their weights were loaded
		}
		if l.model < 0 {
			w.jobs = w.jobsOf(now, i)
			choice, ok := l.policy.Next(now, w.jobs)
			if !ok {
				continue
			}
			if choice < 0 || choice >= len(w.jobs) {
				return fmt.Errorf("lane %d: policy chose job %d of %d", i, choice, len(w.jobs))
			}
			l.model = w.jobs[choice].Model
		}
		if m := &w.models[l.model]; l.end == never && m.state == residency.Resident {
			w.begin(now, l, m)
		}
	}
	return nil
}

// jobsOf returns the members of a lane that have a batch to run.
func (w *worker) jobsOf(now int64, index int) []lane.Job {
	jobs := w.jobs[:0]
	for i := range w.models {
		m := &w.models[i]
		loading := m.moving() && !w.OnlyResident
		if m.lane != index || len(m.waiting) == 0 || m.state == residency.Evicted && !loading {
			continue
		}
		size := min(m.MaxBatch, len(m.waiting))
		j := lane.Job{Model: i, Complete: never, Deadline: never, Requests: size, Batch: m.batchTime(size), Served: m.served}
		for _, r := range m.waiting {
			j.Complete, j.Deadline = min(j.Complete, r.Whole), min(j.Deadline, r.Deadline)
		}
		if loading {
			j.Load = time.Duration(max(1, m.stepEnd-now))
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// begin runs the batch that batching.Pick chooses.
func (w *worker) begin(now int64, l *laneState, m *model) {
	w.pending = w.pending[:0]
	for k, r := range m.waiting {
		r.Slot = uint32(k)
		w.pending = append(w.pending, r.Request)
	}
	size, _ := batching.Pick(w.pending, now, m.MaxBatch, m.batchTime)
	if size == 0 {
		l.model = -1
		return
	}
	taken := map[uint32]bool{}
	for _, r := range w.pending[:size] {
		taken[r.Slot] = true
		l.requests = append(l.requests, m.waiting[r.Slot])
	}
	kept := m.waiting[:0:0]
	for k, r := range m.waiting {
		if !taken[uint32(k)] {
			kept = append(kept, r)
		}
	}
	m.waiting = kept
	took := time.Duration(float64(m.batchTime(size)) * math.Exp(batchSigma*w.noise.NormFloat64()))
	l.end = now + max(1, int64(took))
	m.state = residency.Active
	m.served += took
	w.result.Busy += time.Duration(min(l.end, int64(w.Duration)) - now).Seconds()
}
