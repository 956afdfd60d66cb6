package libml

import (
	"time"

	"github.com/penstock/penstock/batching"
)

// firstLead is the estimate until a lead has been measured.
const firstLead = 100 * time.Microsecond

// overlap decides when a second batch begins next to the first (batching.NearEnd, batching.HalfFull).
type overlap struct {
	streams   int              // maximum in flight, as configured; 0: measured chooses
	measured  batching.Overlap // the choice by measurement
	lead      time.Duration    // from dispatch to gathered, also with other batches in flight
	answering time.Duration    // from the end on the device until all requests are answered
}

// allows reports whether a batch of waiting requests may begin next to one that takes typical and
// still has left to run. size is the maximum number of requests in a batch.
func (o *overlap) allows(waiting, size int, left, typical time.Duration) bool {
	if o.streams > 1 || o.measured.HalfFull() {
		return batching.HalfFull(waiting, size)
	}
	return batching.NearEnd(waiting, left, min(o.lead, typical/2))
}

// learnLead updates the lead after a batch.
func (o *overlap) learnLead(took time.Duration) { o.lead += (took - o.lead) / 8 }

// onDevice is the part of a typical batch before its requests are answered. Answers count at most
// as a quarter of a batch: a process that lost its CPU answers late.
func (o *overlap) onDevice(typical time.Duration) time.Duration {
	return typical - min(o.answering, typical/4)
}

// learnAnswering updates the time of the answers after a batch.
func (o *overlap) learnAnswering(took time.Duration) { o.answering += (took - o.answering) / 8 }

// observe learns from a batch of a device that runs several at once.
func (o *overlap) observe(batch batching.Observation) {
	if o.streams == 0 {
		o.measured = o.measured.Next(batch)
	}
}
