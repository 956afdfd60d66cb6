package lanes

import (
	"slices"
	"time"

	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
)

// retryEvery is how often a model is offered again that waits for room.
const retryEvery = 10 * time.Millisecond

// changeMembers adds and removes models. A removed model leaves when its batch and its step
// have ended. A new one enters when the weights of the others leave room for its lane.
func (w *worker) changeMembers(now int64) {
	for i := range w.models {
		m := &w.models[i]
		if m.Until > 0 && now >= int64(m.Until) && m.admitted && !m.removed {
			m.removed, m.next = true, never
			for _, r := range slices.Concat(m.arriving, m.waiting) {
				w.count(r)
				w.answered(r, &w.result.Failed)
			}
			m.arriving, m.waiting = nil, nil
		}
		if m.removed && m.lane >= 0 && m.state != residency.Active && !m.moving() && !w.reserved(i) {
			m.lane, m.state = -1, residency.Evicted
		}
	}
	w.resources.MemoryBytes = lane.TermsOf(w.Capacity, w.members()).RoomBytes()
	for i := range w.models {
		if m := &w.models[i]; !m.admitted && now >= int64(m.From) && !w.admit(now, i) {
			return
		}
	}
}

// reserved reports whether a lane waits for the model's load.
func (w *worker) reserved(index int) bool {
	return slices.ContainsFunc(w.lanes, func(l laneState) bool { return l.model == index })
}

// members returns the lanes as lane.Assign takes them.
func (w *worker) members() []lane.Lane {
	lanes := make([]lane.Lane, len(w.lanes))
	for i := range w.models {
		if m := &w.models[i]; m.lane >= 0 {
			lanes[m.lane].Members = append(lanes[m.lane].Members, m.Model.Model)
		}
	}
	return lanes
}

// admit adds a model. It returns false if the model must wait until others are evicted.
func (w *worker) admit(now int64, index int) bool {
	m := &w.models[index]
	lanes := w.members()
	chosen, _, err := lane.Assign(w.Capacity, lanes, m.Model.Model)
	if err != nil {
		w.result.Refused++
		m.admitted, m.removed = true, true
		return true
	}
	lanes[chosen].Members = append(lanes[chosen].Members, m.Model.Model)
	// Plan makes room within the new limit. The lane grows when there is enough.
	w.resources.MemoryBytes = lane.TermsOf(w.Capacity, lanes).RoomBytes()
	if w.residentBytes() > w.resources.MemoryBytes {
		return false
	}
	m.lane, m.admitted = chosen, true
	switch {
	case m.Period > 0:
		m.nominal = now + int64(m.arrivals.Float64()*float64(m.Period))
		m.next = m.nominal
	case m.Rate > 0:
		m.next = now + m.interval()
	}
	return true
}

func (w *worker) residentBytes() (sum int64) {
	for i := range w.models {
		m := &w.models[i]
		if m.state != residency.Evicted || m.moving() {
			sum += m.WeightsBytes
		}
	}
	return sum
}
