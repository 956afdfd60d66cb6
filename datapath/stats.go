package datapath

import (
	"sync/atomic"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// counters are read without a lock.
type counters struct {
	accepted, replied atomic.Uint64
	results           [wire.NumStatuses]atomic.Uint64
	unsent            atomic.Uint64 // datagrams
}

// Requests adds up the counters of all aggregators.
func (p *Port) Requests() (sum aggregate.Stats) {
	p.each(func(a *aggregate.Aggregator) {
		s := a.Stats()
		sum.Add(&s)
	})
	return sum
}

// Stats are a port's counters since NewPort.
type Stats struct {
	// Accepted requests were complete, Replied are the answered ones among them. Lost ones were
	// accepted, never answered, and are no longer anywhere.
	Accepted, Replied, Lost uint64
	// Results counts requests by the status of their answer.
	Results [wire.NumStatuses]uint64
	// Unsent counts datagrams of answers that the source did not take.
	Unsent uint64
	// Rejected counts implausible replies of processes.
	Rejected uint64
	// InFlight is the number of complete requests that are not answered.
	InFlight int
	// Receivers is the number of receive threads.
	Receivers int
	// Source sums up the sources; Shedding is the highest of them.
	Source ingest.Stats
	// Requests sums up the aggregators.
	Requests aggregate.Stats
}

// Stats reads the counters.
func (p *Port) Stats() Stats {
	s := Stats{
		Replied:   p.counters.replied.Load(),
		Unsent:    p.counters.unsent.Load(),
		Receivers: len(p.receivers),
		Source:    p.sources.stats(),
		Requests:  p.Requests(),
	}
	for status := range s.Results {
		s.Results[status] = p.counters.results[status].Load()
	}
	for _, q := range p.all() {
		s.Rejected += q.channel.Rejected()
	}

	// The numbers that Lost depends on are written under mu, so it is exact at any time.
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Accepted = p.counters.accepted.Load()
	flying := uint64(0)
	for i := range p.flights {
		if p.flights[i].queue != nil {
			flying++
		}
	}
	s.Lost = s.Accepted - p.ended - flying
	for _, q := range p.all() {
		s.InFlight += q.inFlight
	}
	return s
}
