package aggregate

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock/penstock/client/recovery"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/ingestfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// lossyFunction is an inference function behind a lossy path.
type lossyFunction struct {
	slo       time.Duration
	fragments int
	infer     time.Duration
}

// lossyPath simulates clients, a path that loses datagrams in both directions, and
// a manager. Time is virtual, so a seed gives the same result on every machine.
type lossyPath struct {
	t        *testing.T
	function lossyFunction
	config   Config
	loss     float64
	random   *rand.Rand

	now      int64
	events   timeline
	sequence int // of the last event

	requests []*lossyRequest
	sent     int // datagrams that clients sent
	source   *ingestfake.Source
	manager  *Aggregator
}

type lossyRequest struct {
	id       int
	recovery recovery.Request
	deadline int64
	status   string // empty until an answer arrives
}

// occurrence is an event at a time.
type occurrence struct {
	at       int64
	sequence int // keeps events of the same time in order
	do       func()
}

type timeline []occurrence

func (q timeline) Len() int { return len(q) }
func (q timeline) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].sequence < q[j].sequence
}
func (q timeline) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *timeline) Push(x any)   { *q = append(*q, x.(occurrence)) }
func (q *timeline) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (p *lossyPath) in(d time.Duration, do func()) {
	p.sequence++
	heap.Push(&p.events, occurrence{p.now + int64(d), p.sequence, do})
}

// pass delivers a datagram after the path's delay, unless it is lost.
func (p *lossyPath) pass(arrive func()) {
	if p.random.Float64() >= p.loss {
		p.in(lossyDelay, arrive)
	}
}

const (
	lossyTimeout     = 2 * time.Second        // client.Options.Timeout's default
	lossyResendAfter = 100 * time.Millisecond // client.Options.ResendAfter's default
	lossyDelay       = 50 * time.Microsecond  // one way
	lossyPace        = 10 * time.Microsecond  // between two fragments
)

func (p *lossyPath) sendFragments(r *lossyRequest, indices []int, again bool) {
	for i, index := range indices {
		p.in(time.Duration(i+1)*lossyPace, func() {
			p.sent++
			datagram := p.datagram(r.id, index, again)
			p.pass(func() { p.receive(r, datagram) })
			if i == len(indices)-1 {
				r.recovery.Sent(p.now, 0)
				p.watch(r)
			}
		})
	}
}

// datagram returns a fragment whose payload does not matter.
func (p *lossyPath) datagram(id, index int, again bool) []byte {
	h := wire.FragmentHeader(wire.TypeData, uint32(id), p.config.RequestBytes, testFragment, index)
	if again {
		h.Flags |= wire.FlagRetransmitted
	}
	b := make([]byte, wire.DatagramSize(&h))
	h.Put(b)
	return b
}

// watch asks when the silence has lasted long enough.
func (p *lossyPath) watch(r *lossyRequest) {
	at := r.recovery.AskAt()
	if at == 0 || at >= r.deadline {
		return
	}
	p.in(time.Duration(at-p.now), func() {
		if r.status == "" && r.recovery.Ask(p.now) {
			p.sendFragments(r, []int{0}, true)
		}
	})
}

// receive passes a datagram to the manager.
func (p *lossyPath) receive(r *lossyRequest, datagram []byte) {
	p.source.Inject(address(1), datagram)
	var batch [1]ingest.Datagram
	n, err := p.source.Receive(batch[:], 1)
	if err != nil || n != 1 {
		p.t.Fatalf("received %d datagrams: %v", n, err)
	}
	var events Events
	p.manager.Add(p.now, batch[:n], &events)
	p.follow(&events)
}

// follow does what the manager's receive thread does after each read.
func (p *lossyPath) follow(events *Events) {
	for _, slot := range events.Complete {
		origin, _ := p.manager.Origin(slot)
		p.in(p.function.infer, func() {
			var ended Events
			result := wire.Result{Status: wire.StatusOK}
			p.manager.End(p.now, slot, &result, []byte("answer"), &ended)
			p.source.Release(ended.Release)
			p.answer(origin.RequestID, result.Status)
		})
	}
	for _, a := range append(events.Reported, events.Again...) {
		p.answer(a.RequestID, a.Status)
	}
	for _, w := range events.NACKs {
		missing := []int{}
		for i := range int(w.Count) {
			if w.Present[i/64]&(1<<(i%64)) == 0 {
				missing = append(missing, i)
			}
		}
		p.pass(func() {
			if r := p.requests[w.RequestID]; r.status == "" {
				if r.recovery.NACK(p.now, len(missing)) {
					p.sendFragments(r, missing, true)
				} else {
					p.watch(r)
				}
			}
		})
	}
	p.source.Release(events.Release)
	if at := p.manager.NextDeadline(); at != 0 {
		p.in(time.Duration(max(at-p.now, 0)), func() {
			if next := p.manager.NextDeadline(); next == 0 || next > p.now {
				return
			}
			var events Events
			p.manager.Expire(p.now, &events)
			p.follow(&events)
		})
	}
}

func (p *lossyPath) answer(id uint32, status wire.Status) {
	p.pass(func() {
		if r := p.requests[id]; r.status == "" {
			r.status = status.String()
		}
	})
}

// run begins a request per interval and returns how each ended.
func (p *lossyPath) run(requests int, interval time.Duration) []string {
	for id := range requests {
		r := &lossyRequest{id: id}
		p.requests = append(p.requests, r)
		p.in(time.Duration(id)*interval, func() {
			r.deadline = p.now + int64(lossyTimeout)
			r.recovery.Begin(p.function.fragments, lossyResendAfter)
			fragments := make([]int, p.function.fragments)
			for i := range fragments {
				fragments[i] = i
			}
			p.sendFragments(r, fragments, false)
		})
	}
	for len(p.events) > 0 {
		next := heap.Pop(&p.events).(occurrence)
		p.now = next.at
		next.do()
	}

	var ends []string
	for _, r := range p.requests {
		ends = append(ends, cmp.Or(r.status, "unanswered"))
	}
	must.OK(p.t, p.manager.Check())
	if held := p.source.Stats().HeldBytes; held != 0 {
		p.t.Errorf("%d bytes of the slab are still held", held)
	}
	return ends
}

func newLossyPath(t *testing.T, f lossyFunction, loss float64, seed uint64) *lossyPath {
	src, err := ingestfake.New(ingestfake.Options{SlabBytes: 1 << 20})
	must.OK(t, err)
	t.Cleanup(func() {
		if err := src.CloseSlab(); err != nil {
			t.Error(err)
		}
	})
	c := Config{Slots: minSlots, RequestBytes: f.fragments * testFragment, MaxFragments: 2 * f.fragments, MinFragmentBytes: testFragment, SLO: f.slo}
	return &lossyPath{
		t: t, function: f, config: c, loss: loss, random: rand.New(rand.NewPCG(seed, 0)), now: 1,
		source: src, manager: New(c, src.Slab().Bytes(), newPaper(c.Slots, c.MaxFragments)),
	}
}

// TestLoss bounds how many requests of the built-in models complete on a lossy path. Fragments,
// NACKs, questions and answers are equally likely to be lost. The limit for the model face is
// its aggregation deadline of 6.25 ms, and not the number of NACKs.
func TestLoss(t *testing.T) {
	const requests, seeds = 64, 3
	face := lossyFunction{slo: 25 * time.Millisecond, fragments: 48, infer: 3 * time.Millisecond}
	detect := lossyFunction{slo: 400 * time.Millisecond, fragments: 507, infer: 60 * time.Millisecond}
	fashion := lossyFunction{slo: 10 * time.Millisecond, fragments: 1, infer: time.Millisecond}
	for _, row := range []struct {
		name     string
		function lossyFunction
		percent  int
		min      int // completed requests of 64, on average
	}{
		{"face", face, 0, 64}, {"face", face, 5, 62}, {"face", face, 10, 59}, {"face", face, 20, 50}, {"face", face, 30, 32},
		{"detect", detect, 0, 64}, {"detect", detect, 5, 63}, {"detect", detect, 10, 62}, {"detect", detect, 20, 59}, {"detect", detect, 30, 46},
		{"fashion", fashion, 0, 64}, {"fashion", fashion, 5, 63}, {"fashion", fashion, 10, 63}, {"fashion", fashion, 20, 62}, {"fashion", fashion, 30, 58},
	} {
		t.Run(fmt.Sprintf("%s/%d%%", row.name, row.percent), func(t *testing.T) {
			sent := 0
			ends := map[string]int{}
			for seed := range uint64(seeds) {
				p := newLossyPath(t, row.function, float64(row.percent)/100, seed)
				for _, end := range p.run(requests, 50*time.Millisecond) {
					ends[end]++
				}
				sent += p.sent
			}

			completed := ends["ok"]
			load := float64(sent) / float64(seeds*requests*row.function.fragments)
			t.Logf("%d of %d requests completed, want at least %d; %v; %.2f datagrams sent per fragment",
				completed, seeds*requests, seeds*row.min, ends, load)
			if completed < seeds*row.min {
				t.Error("too few requests completed")
			}
			if row.percent == 0 && load != 1 {
				t.Error("fragments were sent again although nothing was lost")
			}
		})
	}
}
