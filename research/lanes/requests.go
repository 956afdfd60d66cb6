package lanes

import (
	"slices"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
)

type request struct {
	batching.Request
	first  int64
	proven bool
	cold   bool
}

func (w *worker) count(r request) { w.answered(r, &w.result.Requests) }

// answered adds a request to a counter, if it is measured.
func (w *worker) answered(r request, counter *int) {
	if r.first >= int64(w.Settle) {
		*counter++
	}
}

// interval returns a random time between two requests.
func (m *model) interval() int64 {
	return 1 + int64(m.arrivals.ExpFloat64()/m.Rate*float64(time.Second))
}

// receive takes first packets and last packets.
func (w *worker) receive(now int64) {
	for i := range w.models {
		m := &w.models[i]
		for m.next <= now {
			r := request{first: m.next, proven: m.arrivals.Float64() >= w.Unproven, cold: m.state == residency.Evicted}
			r.Whole = m.next + int64(w.Transfer)
			r.Deadline = m.next + int64(m.Objective)
			m.arriving = append(m.arriving, r)
			m.rate = m.rate.Observe(m.next)
			m.schedule()
		}
		for len(m.arriving) > 0 && m.arriving[0].Whole <= now {
			if len(m.waiting) == 0 {
				w.startServed(m)
			}
			m.waiting = append(m.waiting, m.arriving[0])
			m.arriving = m.arriving[1:]
		}
	}
}

// schedule sets the next first packet. That of a periodic stream has a jitter of a hundredth
// of its period.
func (m *model) schedule() {
	if m.Period == 0 {
		m.next += m.interval()
		return
	}
	m.nominal += int64(m.Period)
	m.next = m.nominal + int64((m.arrivals.Float64()-0.5)/100*float64(m.Period))
}

// startServed lets a model join those of its lane that have work.
func (w *worker) startServed(m *model) {
	var others []lane.Job
	for i := range w.models {
		if o := &w.models[i]; o.lane == m.lane && (len(o.waiting) > 0 || o.state == residency.Active) {
			others = append(others, lane.Job{Served: o.served})
		}
	}
	m.served = max(m.served, lane.StartServed(others))
}

// answerLate answers requests that even a batch of one would miss.
func (w *worker) answerLate(now int64) {
	for i := range w.models {
		m := &w.models[i]
		m.waiting = slices.DeleteFunc(m.waiting, func(r request) bool {
			late := now+int64(m.batchTime(1)) > r.Deadline
			if late {
				w.count(r)
				w.answered(r, &w.result.Late)
			}
			return late
		})
	}
}
