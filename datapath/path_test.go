package datapath

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

func TestAnswer(t *testing.T) {
	b := newHarness(t, 1)
	c, s := b.owner(0, 1), b.dial()
	s.Send(1)
	slot := c.Await(1)[0]

	// The process finds the picture at the places that its descriptors name.
	got := make([]byte, datapathtest.PictureBytes)
	for _, p := range c.Fragments(slot) {
		copy(got[p.Place:], b.Slab().Bytes()[p.Offset:][:p.Length])
	}
	if !bytes.Equal(got, datapathtest.Picture(1)) {
		t.Error("the descriptors do not lead to the picture that was sent")
	}

	request := c.Request(slot)
	payload := bytes.Repeat([]byte{1, 2, 3, 4}, 700) // three datagrams
	reported := shm.Result{
		Status: uint8(wire.StatusOK), Kind: uint8(wire.KindRaw), Batch: 3, ModelVersion: 9,
		Length:     uint32(copy(c.ResultBuffer(slot), payload)),
		Dispatched: request.Complete + 10_000, Gathered: request.Complete + 30_000, Inferred: request.Complete + 70_000,
	}
	for shm.Now() < reported.Inferred {
	}
	c.Start([]uint32{slot})
	c.Complete(slot, reported)
	c.Flush()

	e := s.Next()
	if e.Status != client.StatusOK || e.Kind != wire.KindRaw || e.Batch != 3 || e.ModelVersion != 9 {
		t.Errorf("answer is %+v", e.Result)
	}
	if !bytes.Equal(e.Payload, payload) {
		t.Errorf("payload of %d bytes is not the %d bytes that the process wrote", len(e.Payload), len(payload))
	}
	if e.Stages.Queue != 10*time.Microsecond || e.Stages.Gather != 20*time.Microsecond || e.Stages.Infer != 40*time.Microsecond {
		t.Errorf("queue %v, gather %v, infer %v; want 10, 20 and 40 µs", e.Stages.Queue, e.Stages.Gather, e.Stages.Infer)
	}
	if most := time.Duration(request.Complete - request.FirstFragment); e.Stages.Aggregate > most+time.Microsecond {
		t.Errorf("aggregate %v, want at most %v, of which the first fragment may have waited in the socket", e.Stages.Aggregate, most)
	}
	if e.Credit == 0 {
		t.Error("the answer gives no credit, and all slots are free")
	}
}

// recorder is an Observer that keeps what it gets.
type recorder struct{ times chan Times }

func (r recorder) Answered(t *Times) { r.times <- *t }

func TestObserver(t *testing.T) {
	observer := recorder{make(chan Times, 2)}
	b := newObservedHarness(t, open(t, loopback(), 1), testOptions(1), observer)
	c, s := b.owner(0, 1), b.dial()
	before := shm.Now()
	s.Send(1)
	c.Answer(c.Await(1), nil)
	s.Send(2)
	slot := c.Await(1)[0]
	c.Complete(slot, shm.Result{Status: uint8(wire.StatusLate)})
	c.Flush()

	ran := <-observer.times
	order := []int64{before, ran.FirstFragment, ran.Received, ran.Complete, ran.Dispatched, ran.Gathered, ran.Inferred, ran.Sent, ran.Released, shm.Now()}
	order = slices.Delete(order, 1, 2) // by the kernel's clock
	if !slices.IsSorted(order) || ran.Batch != 1 {
		t.Errorf("times %+v are not in order", ran)
	}
	if late := <-observer.times; late.Inferred != 0 || late.Dispatched != 0 || late.Sent < late.Complete {
		t.Errorf("times %+v, want none of the process", late)
	}
}

// lateSource is a source in which each datagram has waited.
type lateSource struct {
	ingest.Source
	waited int64
}

func (s lateSource) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	n, err := s.Source.Receive(batch, deadline)
	for i := range batch[:n] {
		batch[i].Arrived = shm.Now() - s.waited
	}
	return n, err
}

// A request's wait in a socket counts against its objective. The stages that its client receives
// do not include it: the client counts the rest of its time as network time, which the manager
// cannot see.
func TestSocketWait(t *testing.T) {
	const waited = time.Second
	late := wrap(open(t, loopback(), 1), func(s ingest.Source) ingest.Source { return lateSource{s, int64(waited)} })
	o := testOptions(1)
	b := newHarnessOn(t, late, o)
	within := aggregate.Within(o.Objective, o.Transit)
	c, s := b.owner(0, 1), b.dial()
	before := shm.Now()
	s.Send(1)
	slot := c.Await(1)[0]
	r := c.Request(slot)
	if sent := before - int64(waited); r.FirstFragment < sent || r.FirstFragment > shm.Now()-int64(waited) || r.Deadline != r.FirstFragment+int64(within) {
		t.Errorf("first fragment %v after it was sent, deadline %v after that; want 0 and %v", time.Duration(r.FirstFragment-sent), time.Duration(r.Deadline-r.FirstFragment), within)
	}
	c.Answer([]uint32{slot}, []byte{1, 2, 3, 4})
	e, all := s.Next(), time.Duration(0)
	for _, took := range e.Stages.Times() {
		all += took
	}
	if most := time.Duration(shm.Now() - before); all > most {
		t.Errorf("stages %+v, and all took %v", e.Stages, most)
	}
}

// The manager does not believe an impossible result.
func TestImplausibleResult(t *testing.T) {
	b := newHarness(t, 1)
	c, s := b.owner(0, 1), b.dial()
	for _, spoil := range []struct {
		name string
		do   func(r *shm.Result)
	}{
		{"unknown status", func(r *shm.Result) { r.Status = 200 }},
		{"busy, a status of the manager", func(r *shm.Result) { r.Status = uint8(wire.StatusBusy) }},
		{"unknown kind", func(r *shm.Result) { r.Kind = 77 }},
		{"no kind", func(r *shm.Result) { r.Kind = uint8(wire.KindNone) }},
		{"half an entry", func(r *shm.Result) { r.Length = 10 }},
		{"no batch", func(r *shm.Result) { r.Batch = 0 }},
		{"dispatched before it was complete", func(r *shm.Result) { r.Dispatched -= 1_001 }},
		{"gathered before it was dispatched", func(r *shm.Result) { r.Gathered = r.Dispatched - 1 }},
		{"inferred before it was gathered", func(r *shm.Result) { r.Inferred = r.Gathered - 1 }},
		{"inferred in the future", func(r *shm.Result) { r.Inferred += int64(time.Hour) }},
		{"late, and inferred all the same", func(r *shm.Result) { r.Status = uint8(wire.StatusLate) }},
		{"failed, with half its times", func(r *shm.Result) { r.Status, r.Inferred = uint8(wire.StatusFailed), 0 }},
	} {
		t.Run(spoil.name, func(t *testing.T) {
			s.Send(1)
			slot := c.Await(1)[0]
			reported := datapathtest.Honest(c.Request(slot).Complete, 8)
			for shm.Now() < reported.Inferred {
			}
			spoil.do(&reported)
			c.Start([]uint32{slot})
			c.ResultBuffer(slot)
			c.Complete(slot, reported)
			c.Flush()
			e := s.Next()
			if e.Status != client.StatusFailed || e.Kind != wire.KindNone || len(e.Payload) != 0 || e.ModelVersion != 7 {
				t.Errorf("answer is %+v with %d bytes, want failed with none and the function's version", e.Result, len(e.Payload))
			}
		})
	}
}

// An honest process may also answer late and failed.
func TestLateAndFailed(t *testing.T) {
	b := newHarness(t, 1)
	c, s := b.owner(0, 1), b.dial()
	s.Send(1)
	slot := c.Await(1)[0]
	c.Complete(slot, shm.Result{Status: uint8(wire.StatusLate), ModelVersion: 8})
	c.Flush()
	if e := s.Next(); e.Status != client.StatusLate || e.ModelVersion != 8 || e.Stages.Infer != 0 {
		t.Errorf("answer is %+v, want late, version 8, never inferred", e.Result)
	}
	s.Send(2)
	slot = c.Await(1)[0]
	reported := datapathtest.Honest(c.Request(slot).Complete, 0)
	reported.Status = uint8(wire.StatusFailed)
	for shm.Now() < reported.Inferred {
	}
	c.Start([]uint32{slot})
	c.Complete(slot, reported)
	c.Flush()
	if e := s.Next(); e.Status != client.StatusFailed || e.Stages.Infer != time.Microsecond {
		t.Errorf("answer is %+v, want failed after 1 µs of inference", e.Result)
	}
	b.eventually("both are answered", func() bool { return b.counters.replied.Load() == 2 })
	if got := b.Stats(); got.Replied != 2 || got.Results[wire.StatusFailed] != 1 {
		t.Errorf("%d answered, %d failed; want 2, 1", got.Replied, got.Results[wire.StatusFailed])
	}
}

func TestAbandon(t *testing.T) {
	b := newHarness(t, 1)
	first, s := b.owner(0, 1), b.dial()
	for tag := range uint64(6) {
		s.Send(tag)
	}
	slots := first.Await(6)
	tagOf := map[uint32]uint64{}
	for _, slot := range slots {
		p := first.Fragments(slot)[0]
		tagOf[slot] = uint64(b.Slab().Bytes()[p.Offset] - byte(p.Place*7) - byte(p.Place>>8))
	}
	// The process finishes one request, starts two, has three queued, and dies.
	first.Answer(slots[:1], []byte{1, 2, 3, 4})
	first.Start(slots[1:3])
	b.Queue(0).Abandon(1)

	want := map[uint64]client.Status{
		tagOf[slots[0]]: client.StatusOK, tagOf[slots[1]]: client.StatusFailed, tagOf[slots[2]]: client.StatusFailed,
	}
	if got := s.Statuses(3); !maps.Equal(got, want) {
		t.Fatalf("after the death: %v, want %v", got, want)
	}
	second := b.owner(0, 2)
	recovered := second.Recover(nil)
	if len(recovered) != 3 {
		t.Fatalf("the next process finds %d requests, want 3", len(recovered))
	}
	second.Answer(recovered, []byte{5, 6, 7, 8})
	for tag, status := range s.Statuses(3) {
		if status != client.StatusOK {
			t.Errorf("request %d is %v, want ok", tag, status)
		}
	}
}

// TestExpireBefore answers `failed` for old requests only.
func TestExpireBefore(t *testing.T) {
	b := newHarness(t, 1)
	q, s := b.Queue(0), b.dial()
	s.Send(1)
	b.eventually("the request is published", func() bool { return q.Oldest() != 0 })
	old := q.Oldest()
	b.eventually("time moves on", func() bool { return runclock.Now() > old })
	s.Send(2)
	b.eventually("both are published", func() bool { return b.InFlight() == 2 })

	q.ExpireBefore(old + 1)
	if e := s.Next(); e.Tag != 1 || e.Status != client.StatusFailed {
		t.Fatalf("request %d is %v, want 1 failed", e.Tag, e.Status)
	}
	// The younger request still waits for a process, which does not see the older one.
	c := b.owner(0, 1)
	c.Answer(append(c.Recover(nil), c.Await(1)...), nil)
	if e := s.Next(); e.Tag != 2 || e.Status != client.StatusOK {
		t.Fatalf("request %d is %v, want 2 ok", e.Tag, e.Status)
	}
}

// TestExtraTime checks that a request whose client lets it wait does not look forgotten by its process.
func TestExtraTime(t *testing.T) {
	b := newHarness(t, 1)
	b.SetObjective(10*time.Second, 5*time.Second)
	q, s := b.Queue(0), b.dial()
	patient, err := client.Dial(t.Context(), b.LocalAddr().String(), client.Options{Timeout: datapathtest.Patience})
	must.OK(t, err)
	defer patient.Close()
	must.Get(patient.Send(datapathtest.Picture(1), client.RequestOptions{Deadline: time.Minute}))(t)
	b.eventually("the patient request is published", func() bool { return b.InFlight() == 1 })
	if left := q.Oldest() - runclock.Now(); left < 40*time.Second || left > 50*time.Second {
		t.Errorf("the patient request begins to wait in %v, want 50 s less the transit", left)
	}

	s.Send(2)
	b.eventually("both are published", func() bool { return b.InFlight() == 2 })
	now := runclock.Now()
	if oldest := q.Oldest(); oldest > now {
		t.Errorf("the oldest request begins to wait in %v, want before now", oldest-now)
	}
	q.ExpireBefore(now + time.Second)
	if e := s.Next(); e.Tag != 2 || e.Status != client.StatusFailed {
		t.Errorf("request %d is %v, want 2 failed", e.Tag, e.Status)
	}
	if n := b.InFlight(); n != 1 {
		t.Errorf("%d requests in flight, want the patient one", n)
	}
	b.GiveUp() // answers the patient one, too
}

// The manager drops a reply that arrives after it gave up on the request.
func TestReplyAfterExpiry(t *testing.T) {
	b := newHarness(t, 1)
	c, s := b.owner(0, 1), b.dial()
	s.Send(1)
	slots := c.Await(1)
	c.Start(slots)
	b.Queue(0).ExpireBefore(runclock.Now() + time.Hour)
	if e := s.Next(); e.Status != client.StatusFailed {
		t.Fatalf("status %v, want failed", e.Status)
	}
	c.Answer(slots, nil)
	s.Send(2)
	c.Answer(c.Await(1), nil)
	if e := s.Next(); e.Tag != 2 || e.Status != client.StatusOK {
		t.Fatalf("request %d is %v, want 2 ok", e.Tag, e.Status)
	}
}

func TestDrain(t *testing.T) {
	b := newHarness(t, 1)
	c, s := b.owner(0, 1), b.dial()
	s.Send(1)
	slots := c.Await(1)
	b.Drain()
	s.Send(2)
	if e := s.Next(); e.Tag != 2 || e.Status != client.StatusBusy || e.ModelVersion != 7 {
		t.Fatalf("request %d is %+v, want 2 busy", e.Tag, e.Result)
	}
	c.Answer(slots, nil)
	if e := s.Next(); e.Tag != 1 || e.Status != client.StatusOK {
		t.Fatalf("request %d is %v, want 1 ok", e.Tag, e.Status)
	}
	if n := b.counters.results[wire.StatusBusy].Load(); n != 1 {
		t.Errorf("%d counted busy, want 1", n)
	}
}

// Until anything is known of the processes, each queue gets the same number of requests.
func TestLeastLoadedQueue(t *testing.T) {
	b := newHarness(t, 2)
	s := b.dial()
	const n = 16
	for tag := range uint64(n) {
		s.Send(tag)
	}
	b.eventually("all are published", func() bool { return b.InFlight() == n })
	for i := range b.all() {
		c := b.owner(i, 1)
		c.Answer(c.Await(n/2), nil)
	}
	for tag, status := range s.Statuses(n) {
		if status != client.StatusOK {
			t.Errorf("request %d is %v, want ok", tag, status)
		}
	}
}

// An instance whose process died gets no request that another instance can run, until it has a
// new process.
func TestServingQueue(t *testing.T) {
	b := newHarness(t, 2)
	c, s := b.owner(1, 1), b.dial()
	b.Queue(1).SetServing(true)
	const n = 8
	for tag := range uint64(n) {
		s.Send(tag)
	}
	c.Answer(c.Await(n), nil)
	for tag, status := range s.Statuses(n) {
		if status != client.StatusOK {
			t.Errorf("request %d is %v, want ok", tag, status)
		}
	}
}

func TestGiveUp(t *testing.T) {
	b := newHarness(t, 2)
	s := b.dial()
	const n = 6
	for tag := range uint64(n) {
		s.Send(tag)
	}
	b.eventually("all are published", func() bool { return b.InFlight() == n })
	b.GiveUp()
	for tag, status := range s.Statuses(n) {
		if status != client.StatusFailed {
			t.Errorf("request %d is %v, want failed", tag, status)
		}
	}
}

func TestRepeatedAnswer(t *testing.T) {
	b := newHarness(t, 1)
	c, r := b.owner(0, 1), b.dialRaw()
	r.Fragment(5, datapathtest.Picture(1), datapathtest.PictureBytes, 0, 0)
	c.Answer(c.Await(1), []byte{1, 2, 3, 4})
	h, first, payload := r.Result()
	if h.RequestID != 5 || h.Flags&wire.FlagRetransmitted != 0 || !bytes.Equal(payload, []byte{1, 2, 3, 4}) {
		t.Fatalf("answer is %+v with %v", h, payload)
	}
	b.settled()
	// The answer is repeated at most once per millisecond: ask until it is.
	wait.For(t, "the answer to be repeated", func() bool {
		r.Fragment(5, datapathtest.Picture(1), datapathtest.PictureBytes, 0, wire.FlagRetransmitted)
		return b.Requests().Again > 0
	})
	h, again, payload := r.Result()
	if h.RequestID != 5 || h.Flags&wire.FlagRetransmitted == 0 || !bytes.Equal(payload, []byte{1, 2, 3, 4}) ||
		again.Status != first.Status || again.Infer != first.Infer || again.ModelVersion != first.ModelVersion {
		t.Errorf("answer given again is %+v, %+v with %v; the first was %+v", h, again, payload, first)
	}
	if n := b.counters.accepted.Load(); n != 1 {
		t.Errorf("accepted %d requests, want 1", n)
	}
}

// TestLargeAnswerAgain checks that fragments of an answer above 4 MB can be repeated.
func TestLargeAnswerAgain(t *testing.T) {
	o := testOptions(1)
	o.ResultBytes = 5 << 20
	b := newHarnessOn(t, open(t, loopback(), 1), o)
	c, r := b.owner(0, 1), b.dialRaw()
	r.Fragment(5, datapathtest.Picture(1), datapathtest.PictureBytes, 0, 0)
	answer := make([]byte, o.ResultBytes)
	for i := range answer {
		answer[i] = byte(i / replyFragmentBytes)
	}
	c.Answer(c.Await(1), answer)
	b.settled()

	count := wire.Fragments(len(answer), replyFragmentBytes)
	present := make([]uint64, count/64)
	for i := range present {
		present[i] = ^uint64(0)
	}
	present[len(present)-1] = 1<<60 - 1
	e := wire.Extension{}
	e.Missing = wire.NameMissing(present, count, 3)
	question := datapathtest.Fragment(5, datapathtest.Picture(1), datapathtest.PictureBytes, 0, wire.FlagRetransmitted|wire.FlagExtension)
	e.Put(question[wire.HeaderSize:])
	for got := map[int]bool{}; len(got) < 3; {
		h, _, payload := r.Result()
		if h.Flags&wire.FlagRetransmitted == 0 {
			r.Write(question) // the answer has overrun this socket, and still fills it
			continue
		}
		if !e.Missing.Has(int(h.Index)) || !bytes.Equal(payload, answer[h.Offset:][:h.Length]) {
			t.Fatalf("fragment %d of %d", h.Index, count)
		}
		got[int(h.Index)] = true
	}
}

// TestMissingFragment checks that the node reports a missing fragment to the client, then the end
// of the request. The objective shrinks in between, so that a busy machine cannot end it first.
func TestMissingFragment(t *testing.T) {
	b := newHarness(t, 1)
	r := b.dialRaw()
	r.Fragment(5, datapathtest.Picture(1), 1024, 0, 0)
	r.Fragment(5, datapathtest.Picture(1), 1024, 2, 0)
	for {
		nack, err := wire.DecodeNACK(r.Receive())
		must.OK(t, err)
		missing := slices.Collect(nack.Missing)
		if nack.RequestID == 5 && slices.Equal(missing, []int{1}) {
			break
		}
		if nack.RequestID != 5 || !slices.Equal(missing, []int{1, 2}) { // the last fragment is on its way
			t.Fatalf("NACK for fragments %v of request %d, want 1 of 5", missing, nack.RequestID)
		}
	}

	b.SetObjective(time.Millisecond, time.Millisecond/4)
	r.Fragment(5, datapathtest.Picture(1), 1024, 0, 0) // wakes the receive thread
	h, result, _ := r.Result()
	if h.RequestID != 5 || result.Status != wire.StatusIncomplete || result.Missing != 1 || result.ModelVersion != 7 {
		t.Fatalf("answer is %+v, want incomplete, 1 missing", result)
	}
	if n := b.counters.results[wire.StatusIncomplete].Load(); n != 1 {
		t.Errorf("%d counted incomplete, want 1", n)
	}
}

// TestFirstFragment wakes a process that watches when the first fragment of a request arrives.
func TestFirstFragment(t *testing.T) {
	b := newHarness(t, 1)
	c := b.owner(0, 1)
	c.Watch(true)
	b.dialRaw().Fragment(5, datapathtest.Picture(1), 1024, 0, 0)
	for deadline := shm.Now() + int64(10*time.Second); !c.Arrived(); c.Wait(deadline) {
		if shm.Now() > deadline {
			t.Fatal("process is not told of the request")
		}
	}
}

// Both threads run, from publish to reply, and allocate nothing on the Go heap.
func TestPortAllocations(t *testing.T) {
	b := newHarness(t, 1)
	c, r := b.owner(0, 1), b.dialRaw()
	h := wire.FragmentHeader(wire.TypeData, 0, datapathtest.PictureBytes, datapathtest.PictureBytes, 0)
	datagram := make([]byte, wire.DatagramSize(&h))
	answer, slots, payload := make([]byte, 2048), make([]uint32, 1), make([]byte, 64)
	id, answered := uint32(0), 0
	request := func() {
		id++
		h.RequestID = id
		h.Put(datagram)
		r.Write(datagram)
		for c.Take(slots) == 0 {
			c.Wait(shm.Now() + int64(datapathtest.Patience))
		}
		c.Answer(slots, payload)
		answered = r.ReceiveTo(answer)
	}
	const n = 1000
	for range n {
		request()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		request()
	}
	runtime.ReadMemStats(&after)
	// The runtime itself may allocate an object or two meanwhile.
	if mallocs := after.Mallocs - before.Mallocs; mallocs > n/20 {
		t.Errorf("%d allocations in %d requests", mallocs, n)
	}
	if _, result, _, err := wire.DecodeResult(answer[:answered]); err != nil || result.Status != wire.StatusOK {
		t.Fatalf("the last answer is %v, %v; want ok", result.Status, err)
	}
}
