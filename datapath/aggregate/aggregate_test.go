package aggregate

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

var camera = address(1)

func TestCompleteInAnyOrder(t *testing.T) {
	backwards := all(7)
	slices.Reverse(backwards)
	mixed := all(7)
	for i := range mixed {
		mixed[i] = all(7)[i*7%testCount]
	}
	for name, fragments := range map[string][]fragment{"in order": all(7), "backwards": backwards, "mixed": mixed} {
		t.Run(name, func(t *testing.T) {
			onBed(t, nil, func(b *harness) {
				if e := b.send(camera, fragments[:testCount-1]...); len(e.Complete) > 0 {
					t.Fatal("whole without its last fragment")
				}
				first := b.now
				b.now += 1e6
				e := b.send(camera, fragments[testCount-1])
				if len(e.Complete) != 1 || len(e.Reported)+len(e.Again)+len(e.NACKs) > 0 {
					t.Fatalf("events %+v", e)
				}
				slot := e.Complete[0]
				if !bytes.Equal(b.assemble(slot), picture(7, testRequest)) {
					t.Error("the descriptors do not make the picture")
				}
				address, client := b.a.source(b.a.slots[slot].client)
				want(b, "request", b.table.requests[slot], shm.Request{
					ID: 7, Fragments: testCount, Bytes: testRequest, FirstFragment: first, Complete: b.now, Deadline: first + int64(b.config.SLO),
					Address: address, Client: client, Stream: b.a.hash.stream(camera, 0),
				})
				o, ok := b.a.Origin(slot)
				want(b, "origin", o, Origin{From: camera, To: camera, RequestID: 7, FirstFragment: first, Received: first, Complete: b.now})
				want(b, "origin is known", ok, true)
			})
		})
	}
}

func TestDatagramInTwoSpans(t *testing.T) {
	extension := &wire.Extension{Priority: 9, SentAt: 77, Deadline: 30 * time.Millisecond, LowestScore: 5}
	size := len(fragment{extension: extension, padded: true}.datagram())
	for at := 1; at < size; at++ {
		onBed(t, nil, func(b *harness) {
			var batch []ingest.Datagram
			for i := range testCount {
				p := fragment{id: 3, index: i, padded: true}
				if i == 0 {
					p.extension = extension
				}
				batch = append(batch, b.land(camera, p.datagram(), at))
			}
			e := b.add(batch...)
			if len(e.Complete) != 1 {
				t.Fatalf("cut at %d: nothing is whole: %+v", at, b.a.Stats())
			}
			slot := e.Complete[0]
			if !bytes.Equal(b.assemble(slot), picture(3, testRequest)) {
				t.Errorf("cut at %d: the descriptors do not make the picture", at)
			}
			r := b.table.requests[slot]
			if r.Priority != 9 || r.LowestScore != 5 || r.Deadline != r.FirstFragment+30e6 {
				t.Errorf("cut at %d: priority %d, lowest score %d, deadline after %d", at, r.Priority, r.LowestScore, r.Deadline-r.FirstFragment)
			}
			for _, p := range b.table.fragments[slot][:r.Fragments] {
				if p.Length == 0 {
					t.Errorf("cut at %d: a descriptor of no bytes", at)
				}
			}
			if got := b.end(slot, wire.StatusOK, ""); got.SentAt != 77 {
				t.Errorf("cut at %d: the client's time comes back as %d", at, got.SentAt)
			}
		})
	}
}

func TestDropCounters(t *testing.T) {
	bare := func(b *harness) { b.send(camera, all(1, 4, 9)...) }
	done := func(b *harness) { b.end(b.whole(camera, 1), wire.StatusOK, "") }
	for _, c := range []struct {
		name     string
		before   func(b *harness)
		fragment fragment
		drop     Drop
	}{
		{"late", done, fragment{id: 1, index: 4}, dropLate},
		{"duplicate", bare, fragment{id: 1, index: 3}, dropDuplicate},
		{"duplicate of a whole one", func(b *harness) { b.whole(camera, 1) }, fragment{id: 1, index: 3}, dropDuplicate},
		{"another total", bare, fragment{id: 1, index: 4, total: 999}, dropContradictory},
		{"another total and foreign", bare, fragment{id: 1, index: 9, total: 950}, dropContradictory},
		{"another size over what is here", bare, fragment{id: 1, index: 4, size: 110}, dropOverlapping},
		{"another size, last", bare, fragment{id: 1, index: 8, size: 111}, dropOverlapping},
		{"another size, last, where nothing is", bare, fragment{id: 1, index: 6, size: 160}, dropContradictory},
		{"another size, last, shorter", bare, fragment{id: 1, index: 9, size: 110}, dropContradictory},
		{"another size of a whole one", func(b *harness) { b.whole(camera, 1) }, fragment{id: 1, index: 2, size: 110}, dropOverlapping},
		{"foreign", nil, fragment{id: 1, total: 1001}, dropForeign},
		{"too small fragments", nil, fragment{id: 1, size: 99}, dropForeign},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBed(t, nil, func(b *harness) {
				if c.before != nil {
					c.before(b)
				}
				before := b.a.Stats()
				e := b.send(camera, c.fragment)
				if len(e.Complete)+len(e.Again)+len(e.NACKs) > 0 {
					t.Errorf("events %+v", e)
				}
				var wanted [numDrops]uint64
				wanted[c.drop] = 1
				got := b.a.Stats().Dropped
				for i := range got {
					got[i] -= before.Dropped[i]
				}
				want(b, "dropped", got, wanted)
			})
		})
	}
}

func TestMalformedDatagrams(t *testing.T) {
	sound := fragment{id: 1, index: 2}.datagram()
	for reason, spoil := range map[wire.Reason]func(d []byte) []byte{
		wire.ReasonShort:   func(d []byte) []byte { return d[:21] },
		wire.ReasonMagic:   func(d []byte) []byte { d[0]++; return d },
		wire.ReasonVersion: func(d []byte) []byte { d[2] += 1 << 4; return d },
		wire.ReasonType: func(d []byte) []byte {
			d[2]++
			h := wire.Header{Type: wire.TypeResult, Count: 1, Flags: 1}
			d = make([]byte, 86)
			h.Put(d)
			return d
		},
		wire.ReasonFlags:     func(d []byte) []byte { d[3] |= 0x80; return d },
		wire.ReasonCount:     func(d []byte) []byte { d[18], d[19] = 0, 0; return d },
		wire.ReasonIndex:     func(d []byte) []byte { d[16] = 10; return d },
		wire.ReasonLength:    func(d []byte) []byte { d[20]++; return d },
		wire.ReasonTrailing:  func(d []byte) []byte { return append(d, 0) },
		wire.ReasonTotal:     func(d []byte) []byte { d[12], d[13] = 50, 0; return d },
		wire.ReasonLast:      func(d []byte) []byte { d[3] |= 1; return d },
		wire.ReasonOffset:    func(d []byte) []byte { d[8]++; return d },
		wire.ReasonFragments: func(d []byte) []byte { d[18]++; return d },
	} {
		t.Run(reason.String(), func(t *testing.T) {
			onBed(t, nil, func(b *harness) {
				b.send(camera, all(1, 2)...)
				b.add(b.land(camera, spoil(slices.Clone(sound)), 0))
				b.add(b.land(camera, spoil(slices.Clone(sound)), 9))
				var wanted [wire.NumReasons]uint64
				wanted[reason] = 2
				want(b, "malformed", b.a.Stats().Malformed, wanted)
				if e := b.add(b.land(camera, sound, 0)); len(e.Complete) != 1 {
					t.Error("the sound fragment does not fit any more")
				}
			})
		})
	}
	onBed(t, nil, func(b *harness) {
		b.add(ingest.Datagram{From: camera})
		want(b, "an empty datagram", b.a.Stats().Malformed[wire.ReasonShort], 1)
	})
}

func TestEqualRequestIDs(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		clients := []netip.AddrPort{
			camera, netip.AddrPortFrom(camera.Addr(), camera.Port()+1), address(2),
			netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1%eth0"), 9), netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1%eth1"), 9),
			netip.AddrPortFrom(netip.AddrFrom16(camera.Addr().As16()), camera.Port()),
		}
		for _, c := range clients {
			b.send(c, all(5, 0)...)
		}
		slots := map[uint32]bool{}
		for _, c := range clients {
			e := b.send(c, fragment{id: 5})
			if len(e.Complete) != 1 {
				t.Fatalf("request of %v is not whole", c)
			}
			if o, _ := b.a.Origin(e.Complete[0]); o.From != c {
				t.Errorf("request of %v is said to be of %v", c, o.From)
			}
			slots[e.Complete[0]] = true
		}
		want(b, "slots", len(slots), len(clients))
	})
}

func TestReportIncompleteOnce(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		first := b.now
		b.send(camera, append([]fragment{{id: 1, extension: &wire.Extension{SentAt: 42}}}, all(1, 0, 3, 4)...)...)
		b.pass(b.config.Deadline - 1)
		want(b, "gathering", b.a.Stats().Gathering, 1)
		e := b.pass(1)
		want(b, "told", e.Reported, []Answer{{To: camera, RequestID: 1, Result: wire.Result{
			Status: wire.StatusIncomplete, Missing: 2, Credit: alone, Aggregate: time.Duration(b.now - first), SentAt: 42,
		}}})
		want(b, "held bytes", b.a.Stats().HeldBytes, 0)
		// Fragments that follow are late, and cause nothing to run.
		e = b.send(camera, all(1)...)
		if len(e.Complete)+len(e.Reported)+len(e.Again) > 0 {
			t.Errorf("events %+v", e)
		}
		want(b, "late", b.a.Stats().Dropped[dropLate], testCount)
		// If asked, it repeats the answer.
		b.now += int64(againAfter)
		e = b.send(camera, fragment{id: 1, again: true})
		if len(e.Again) != 1 || e.Again[0].Status != wire.StatusIncomplete || e.Again[0].Missing != 2 || e.Again[0].SentAt != 42 {
			t.Errorf("again %+v", e.Again)
		}
	})
}

func TestNACKMissing(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		start := b.now
		b.send(camera, all(1, 2, 8)...)
		want(b, "next deadline", b.a.NextDeadline()-start, int64(b.config.NACKAfter))
		var after []int64
		var e Events
		for b.a.Stats().Incomplete == 0 {
			b.now = b.a.NextDeadline()
			b.events.Reset()
			b.a.Expire(b.now, &b.events)
			b.settle()
			for _, w := range b.events.NACKs {
				after = append(after, (b.now-start)/int64(b.config.NACKAfter))
				e.NACKs = append(e.NACKs, w)
				e.NACKs[len(e.NACKs)-1].Present = slices.Clone(w.Present)
			}
		}
		want(b, "wishes, in units of WishAfter", after, []int64{1, 3, 7})
		nack := NACK{To: camera, RequestID: 1, Total: testRequest, Count: testCount, Present: []uint64{1<<10 - 1 - 1<<2 - 1<<8}}
		want(b, "wishes", e.NACKs, []NACK{nack, nack, nack})
		datagram, next := wire.AppendNACK(nil, nack.RequestID, nack.Total, nack.Count, nack.Present, 0)
		w, err := wire.DecodeNACK(datagram)
		if err != nil || next != testCount {
			t.Fatalf("wish as a datagram: %v, next %d", err, next)
		}
		want(b, "missing", slices.Collect(w.Missing), []int{2, 8})
	})
}

func TestNACKWhenQuiet(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		for i := range testCount {
			if e := b.send(camera, fragment{id: 1, index: i}); i == testCount-1 {
				want(b, "whole", len(e.Complete), 1)
			}
			want(b, "wishes", len(b.pass(b.config.NACKAfter-1).NACKs), 0)
		}
	})
}

func TestNACKDisabled(t *testing.T) {
	onBed(t, func(c *Config) { c.MaxNACKs = -1 }, func(b *harness) {
		b.send(camera, all(1, 2)...)
		want(b, "next deadline", b.a.NextDeadline(), b.now+int64(b.config.Deadline))
		want(b, "wishes", len(b.pass(time.Second).NACKs), 0)
	})
}

// docs/wire.md, "Silence".
func TestRepeatAnswer(t *testing.T) {
	ask := fragment{id: 1, again: true}
	onBed(t, nil, func(b *harness) {
		// Unknown: it begins. Incomplete: a NACK, not too often.
		want(b, "asked of an unknown request", len(b.send(camera, ask).NACKs), 0)
		want(b, "gathering", b.a.Stats().Gathering, 1)
		want(b, "asked too early", len(b.send(camera, ask).NACKs), 0)
		b.now += int64(b.config.NACKAfter)
		want(b, "asked", len(b.send(camera, ask).NACKs), 1)
		want(b, "asked at once again", len(b.send(camera, ask).NACKs), 0)
		// Other retransmitted fragments do not ask.
		b.now += int64(b.config.NACKAfter)
		want(b, "fragment 1, twice", len(b.send(camera, fragment{id: 1, index: 1, again: true}, fragment{id: 1, index: 1, again: true}).NACKs), 0)
		// Complete and not ended: nothing.
		e := b.send(camera, all(1, 0, 1)...)
		slot := e.Complete[0]
		b.now += int64(b.config.NACKAfter)
		e = b.send(camera, ask)
		want(b, "asked of a whole request", len(e.NACKs)+len(e.Again)+len(e.Reported), 0)
		// Ended: the same answer, with the current credit, not too often.
		answer := b.end(slot, wire.StatusOK, "a cat")
		want(b, "credit", answer.Credit, alone)
		want(b, "asked too early after the answer", len(b.send(camera, ask).Again), 0)
		b.whole(camera, 2)
		b.now += int64(againAfter)
		e = b.send(camera, ask, ask, fragment{id: 1, index: 1, again: true}, fragment{id: 1})
		answer.Credit = alone - 1
		want(b, "again", e.Again, []Answer{{To: camera, RequestID: 1, Result: answer, Payload: []byte("a cat")}})
		b.now += int64(againAfter)
		want(b, "again", len(b.send(camera, ask).Again), 1)
	})
}

// TestRepeatFragments checks that a question gets exactly the fragments of the answer that it names, for as long as it needs.
func TestRepeatFragments(t *testing.T) {
	payload := string(picture(9, 5000))
	present := []uint64{1<<0 | 1<<2}
	named := wire.NameMissing(present, wire.Fragments(len(payload), ReplyFragmentBytes), 2) // 1 and 3
	ask := fragment{id: 1, again: true, extension: &wire.Extension{Missing: named}}
	onBed(t, nil, func(b *harness) {
		b.end(b.whole(camera, 1), wire.StatusOK, payload)
		for range 4 { // twice at the same time; and for longer than AnsweredFor
			for range 2 {
				e := b.send(camera, ask)
				if len(e.Again) != 1 {
					t.Fatalf("%d answers", len(e.Again))
				}
				a := &e.Again[0]
				want(b, "named", []any{a.Wanted, a.From, a.Total}, []any{named, 1024, 5000})
				want(b, "payload", string(a.Payload) == payload[1024:4096], true)
			}
			b.now += int64(b.config.AnsweredFor) * 3 / 4
		}
		// It does not run again when it is forgotten.
		b.now += int64(b.config.AnsweredFor)
		e := b.send(camera, ask)
		want(b, "forgotten", []int{len(e.Again), len(e.Complete), int(b.a.Stats().Begun)}, []int{0, 0, 1})
	})

	// A burst of questions repeats a bounded part of answers.
	onBed(t, nil, func(b *harness) {
		b.end(b.whole(camera, 1), wire.StatusOK, string(picture(9, 200_000)))
		named := wire.NameMissing(nil, 196, 196)
		ask := fragment{id: 1, again: true, extension: &wire.Extension{Missing: named}}
		want(b, "answers of 200 kB in a burst", len(b.send(camera, slices.Repeat([]fragment{ask}, 100)...).Again), 6)
		want(b, "answers in the next one", len(b.send(camera, ask).Again), 1)
	})

	// Without proof of its address a client gets no more than three times what it sent.
	onBed(t, nil, func(b *harness) {
		payload := string(picture(9, 200_000))
		b.end(b.whole(outsider, 1), wire.StatusOK, payload)
		b.now += int64(againAfter)
		named := wire.NameMissing(nil, 196, 196)
		ask := fragment{id: 1, again: true, extension: &wire.Extension{Missing: named}}
		e := b.send(outsider, ask)
		want(b, "answers", len(e.Again), 1)
		want(b, "status and bytes", []any{e.Again[0].Status, len(e.Again[0].Payload)}, []any{wire.StatusBusy, 0})
		ask.extension.Cookie = b.a.common.cookies.at(b.now, outsider)
		e = b.send(outsider, ask)
		want(b, "status and bytes", []any{e.Again[0].Status, len(e.Again[0].Payload)}, []any{wire.StatusOK, len(payload)})
	})
}

// A function that is asked rarely uses the memory of one answer, however many it has given.
func TestAnswersMemory(t *testing.T) {
	onBed(t, func(c *Config) { c.AnsweredBytes = 8000 }, func(b *harness) {
		for id := range 20 {
			payload := string(picture(uint32(id), 1000))
			b.end(b.whole(camera, id), wire.StatusOK, payload)
			if got := b.a.answers.next; got != 1000 {
				t.Fatalf("%d answers use %d bytes, want 1000", id+1, got)
			}
			b.now += int64(againAfter)
			e := b.send(camera, fragment{id: id, again: true})
			if len(e.Again) != 1 || string(e.Again[0].Payload) != payload {
				t.Fatalf("answer %d is not repeated", id)
			}
			b.now += int64(b.config.AnsweredFor)
		}
	})
}

func TestAggregatorRunsNothingTwice(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		for _, status := range []wire.Status{wire.StatusOK, wire.StatusLate, wire.StatusFailed} {
			b.end(b.whole(camera, int(status)), status, "")
		}
		b.now += int64(b.config.AnsweredFor) - 1
		for _, status := range []wire.Status{wire.StatusOK, wire.StatusLate, wire.StatusFailed} {
			if e := b.send(camera, all(int(status))...); len(e.Complete) > 0 {
				t.Errorf("%v: run again", status)
			}
		}
		b.now++
		b.whole(camera, int(wire.StatusOK))
	})
}

func TestDropOldestAnswer(t *testing.T) {
	change := func(c *Config) { c.AnsweredRequests, c.AnsweredBytes = 3, 20 }
	onBed(t, change, func(b *harness) {
		for id := 1; id <= 3; id++ {
			b.end(b.whole(camera, id), wire.StatusOK, "12345678")
		}
		b.now += int64(againAfter)
		for id, kept := range []int{1: 0, 2: 1, 3: 1} {
			if id > 0 {
				want(b, "answers again", len(b.send(camera, fragment{id: id, again: true}).Again), kept)
			}
		}
		want(b, "forgotten", b.a.Stats().Forgotten, 1)
		// A fourth removes the first completely.
		b.end(b.whole(camera, 4), wire.StatusOK, "an answer that is too long to be kept")
		b.now += int64(againAfter)
		want(b, "answer that is too long", len(b.send(camera, fragment{id: 4, again: true}).Again), 0)
		b.whole(camera, 1)
	})
}

func TestAggregatorEndsASlotOnce(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		slot := b.whole(camera, 1)
		b.end(slot, wire.StatusOK, "")
		for _, s := range []uint32{slot, slot + 1, 64, none} {
			if b.a.End(b.now, s, new(wire.Result), nil, &b.events) {
				t.Errorf("slot %d ended, though it held nothing", s)
			}
			if _, ok := b.a.Origin(s); ok {
				t.Errorf("slot %d has an origin, though it holds nothing", s)
			}
		}
		b.send(camera, all(2, 0)...)
		if b.a.End(b.now, b.a.last, new(wire.Result), nil, &b.events) {
			t.Error("a slot that is gathering was ended")
		}
	})
}

// fill takes all slots at once, with requests that lack fragment 0.
func (b *harness) fill() {
	for id := range b.config.Slots {
		b.send(address(10+id), all(id, 0)...)
	}
}

func TestBusyWithoutSlots(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		b.fill()
		e := b.send(camera, append([]fragment{{id: 1, extension: &wire.Extension{SentAt: 5}}}, all(1, 0)...)...)
		want(b, "told", e.Reported, []Answer{{To: camera, RequestID: 1, Result: wire.Result{Status: wire.StatusBusy, SentAt: 5}}})
		want(b, "dropped", b.a.Stats().Dropped[dropBusy], testCount)
		want(b, "credit", b.a.Credit(camera), 0)
		// One ends: the request that was turned away remains turned away for a while.
		slot := b.send(address(10), fragment{id: 0}).Complete[0]
		b.end(slot, wire.StatusOK, "")
		want(b, "told", len(b.send(camera, all(1)...).Reported), 0)
		b.now += int64(againAfter)
		e = b.send(camera, fragment{id: 1, again: true})
		want(b, "again", e.Again, []Answer{{To: camera, RequestID: 1, Result: wire.Result{Status: wire.StatusBusy, SentAt: 5}}})
		b.pass(b.config.TurnedAwayFor)
		b.whole(camera, 1)
	})
}

func TestShedRequestBusy(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		busy := []Answer{{To: camera, RequestID: 1, Result: wire.Result{Status: wire.StatusBusy, Credit: alone, SentAt: 5}}}
		e := b.send(camera, fragment{id: 1, shed: true, extension: &wire.Extension{SentAt: 5}})
		want(b, "told", e.Reported, busy)
		s := b.a.Stats()
		want(b, "busy, shed, begun, malformed", [4]uint64{s.Busy, s.Shed, s.Begun, s.Malformed[wire.ReasonLength]}, [4]uint64{1, 1, 0, 0})
		want(b, "dropped as shed", s.Dropped[dropShed], 1)
		// The rest of it arrives after all.
		e = b.send(camera, all(1, 0)...)
		want(b, "told and whole", len(e.Reported)+len(e.Complete), 0)
		b.now += int64(againAfter)
		// It asks while one of its requests is in flight: the credit is the current one.
		b.send(camera, fragment{id: 2})
		e = b.send(camera, fragment{id: 1, shed: true, again: true})
		busy[0].Credit--
		want(b, "again", e.Again, busy)
		want(b, "told", len(e.Reported), 0)
		b.pass(b.config.TurnedAwayFor)
		b.whole(camera, 1)
	})
}

func TestShedPartialRequest(t *testing.T) {
	for name, gathered := range map[string][]fragment{"without fragment 0": all(1, 0), "with fragment 0": all(1, 9)} {
		onBed(t, nil, func(b *harness) {
			b.send(camera, gathered...)
			b.now += int64(time.Millisecond)
			e := b.send(camera, fragment{id: 1, shed: true, again: true})
			want(b, name+": told", e.Reported, []Answer{{To: camera, RequestID: 1, Result: wire.Result{
				Status: wire.StatusBusy, Credit: alone, Aggregate: time.Millisecond,
			}}})
			s := b.a.Stats()
			want(b, name+": evicted, busy, gathering", [3]uint64{s.Evicted, s.Busy, uint64(s.Gathering)}, [3]uint64{1, 0, 0})
			e = b.send(camera, all(1)...)
			want(b, name+": told and whole after", len(e.Reported)+len(e.Complete), 0)
		})
	}
}

func TestShedSendTime(t *testing.T) {
	for name, c := range map[string]struct {
		first []fragment
		want  uint64
	}{
		"said by the fragment that is shed": {all(1, 0), 5},
		"said by the first fragment 0":      {[]fragment{{id: 1, extension: &wire.Extension{SentAt: 4}}}, 4},
	} {
		onBed(t, nil, func(b *harness) {
			b.send(camera, c.first...)
			e := b.send(camera, fragment{id: 1, shed: true, again: true, extension: &wire.Extension{SentAt: 5}})
			want(b, name, e.Reported[0].SentAt, c.want)
		})
	}
}

func TestShedFragmentIgnored(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		slot := b.whole(camera, 1)
		ask := fragment{id: 1, shed: true, again: true}
		e := b.send(camera, ask)
		want(b, "told and again while it is whole", len(e.Reported)+len(e.Again), 0)
		b.end(slot, wire.StatusOK, "cat")
		b.now += int64(againAfter)
		e = b.send(camera, ask)
		want(b, "told", len(e.Reported), 0)
		want(b, "again", string(e.Again[0].Payload), "cat")
	})
}

func TestShedInvalidRequest(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		e := b.send(camera, fragment{id: 1, total: 999, shed: true})
		want(b, "status", e.Reported[0].Status, wire.StatusRefused)
		want(b, "shed", b.a.Stats().Shed, 0)
	})
}

func TestEvictKeepsComplete(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		for id := range b.config.Slots {
			b.whole(address(10+id), id)
		}
		b.now += int64(time.Second)
		want(b, "evicted", b.a.EvictOldest(b.now, &b.events), false)
		want(b, "told", b.send(address(3), fragment{id: 1}).Reported[0].Status, wire.StatusBusy)
	})
}

func TestEvictOldestMemory(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		b.send(camera, all(1, 0)...)
		b.now++
		b.send(camera, all(2, 0)...)
		b.events.Reset()
		held := b.a.Stats().HeldBytes
		want(b, "evicted", b.a.EvictOldest(b.now, &b.events), true)
		told := b.events.Reported
		b.settle()
		want(b, "told", told, []Answer{{To: camera, RequestID: 1, Result: wire.Result{Status: wire.StatusBusy, Aggregate: 1}}})
		want(b, "held bytes", b.a.Stats().HeldBytes, held/2)
		b.send(camera, fragment{id: 2})
	})
}

func TestAggregatorTellsRefusedOnce(t *testing.T) {
	for name, p := range map[string]fragment{
		"another size":        {id: 1, total: 999},
		"too small fragments": {id: 1, size: 99},
		"too many fragments":  {id: 1, size: 1},
	} {
		t.Run(name, func(t *testing.T) {
			onBed(t, nil, func(b *harness) {
				e := b.send(camera, p, p)
				want(b, "told", e.Reported, []Answer{{To: camera, RequestID: 1, Result: wire.Result{Status: wire.StatusRefused, Credit: alone, PictureBytes: uint32(b.a.config.RequestBytes)}}})
				want(b, "foreign", b.a.Stats().Dropped[dropForeign], 2)
				want(b, "refused", b.a.Stats().Refused, 1)
			})
		})
	}
}

func TestARequestInOnePieceMayBeSmall(t *testing.T) {
	onBed(t, func(c *Config) { c.RequestBytes = 40 }, func(b *harness) {
		want(b, "whole", len(b.send(camera, fragment{id: 1, total: 40, size: 60000}).Complete), 1)
	})
}

func TestEvictWithoutDescriptors(t *testing.T) {
	onBed(t, func(c *Config) { c.MaxFragments = testCount }, func(b *harness) {
		for i := range testCount - 1 {
			at := 0
			if i == 4 {
				at = 60
			}
			b.add(b.land(camera, fragment{id: 1, index: i}.datagram(), at))
		}
		e := b.send(camera, fragment{id: 1, index: testCount - 1})
		want(b, "told", len(e.Reported), 1)
		want(b, "status", e.Reported[0].Status, wire.StatusBusy)
		want(b, "fragmented", b.a.Stats().Dropped[dropFragmented], 1)
		want(b, "evicted", b.a.Stats().Evicted, 1)
		want(b, "gathering", b.a.Stats().Gathering, 0)
	})
}

// The client waits longer than the node sees, because of the network.
func TestDeadlinesLeaveTimeForTheWay(t *testing.T) {
	const way = 200 * time.Microsecond
	onBed(t, func(c *Config) { c.Transit = way }, func(b *harness) {
		r := b.table.requests[b.whole(camera, 1)]
		want(b, "deadline", r.Deadline-r.FirstFragment, int64(b.config.SLO-way))
		b.send(camera, all(2, 0)...)
		slot := b.send(camera, fragment{id: 2, extension: &wire.Extension{Deadline: time.Millisecond}}).Complete[0]
		r = b.table.requests[slot]
		want(b, "deadline of one that is soon: a tenth less", r.Deadline-r.FirstFragment, int64(900*time.Microsecond))
	})
}

// A request's time begins when its first fragment reached the machine, however long it waited in
// a socket. The wait for missing fragments begins when the first fragment was received.
func TestArrivalTime(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		const waited = 60 * time.Millisecond // more than Deadline, a quarter of 100
		first := b.land(camera, fragment{id: 1}.datagram(), 0)
		first.Arrived = b.now - int64(waited)
		if e := b.add(first); len(e.Reported) > 0 {
			t.Fatalf("told %v; want it to be gathered", e.Reported)
		}
		want(b, "next deadline", b.a.NextDeadline(), b.now+int64(b.config.NACKAfter))
		began := b.now
		b.now += int64(time.Millisecond)
		rest := all(1, 0)
		slot := b.send(camera, rest...).Complete[0]
		r := b.table.requests[slot]
		want(b, "first fragment", r.FirstFragment, began-int64(waited))
		want(b, "deadline", r.Deadline, began-int64(waited)+int64(b.config.SLO))
		origin, _ := b.a.Origin(slot)
		want(b, "origin", origin, Origin{From: camera, To: camera, RequestID: 1, FirstFragment: r.FirstFragment, Received: began, Complete: b.now})
		b.end(slot, wire.StatusOK, "")
		// A time in the future is ignored.
		ahead := b.land(camera, fragment{id: 2}.datagram(), 0)
		ahead.Arrived = b.now + 1
		b.add(ahead)
		slot = b.send(camera, all(2, 0)...).Complete[0]
		want(b, "first fragment of one that is yet to come", b.table.requests[slot].FirstFragment, b.now)
	})
}

// Clients attribute time that is missing in a result to the network, which may hold requests
// that the manager has not seen (docs/wire.md, Credit). Therefore the result's times do not
// include the wait in a socket.
func TestReportedTime(t *testing.T) {
	for _, test := range []struct {
		what string
		end  func(b *harness) *Events
	}{
		{"incomplete", func(b *harness) *Events { return b.pass(b.config.Deadline) }},
		{"evicted", func(b *harness) *Events {
			b.now += int64(b.config.Deadline)
			b.events.Reset()
			b.a.EvictOldest(b.now, &b.events)
			b.settle()
			return &b.events
		}},
	} {
		onBed(t, nil, func(b *harness) {
			first := b.land(camera, fragment{id: 1}.datagram(), 0)
			first.Arrived = b.now - int64(20*time.Millisecond)
			b.add(first)
			told := test.end(b).Reported
			if len(told) != 1 || told[0].Aggregate != b.config.Deadline {
				t.Errorf("%s: told %+v, want one answer with an aggregate of %v", test.what, told, b.config.Deadline)
			}
		})
	}
}

func TestExtensionOnFirstFragment(t *testing.T) {
	early := &wire.Extension{Deadline: time.Millisecond, Priority: 1, SentAt: 1}
	long := &wire.Extension{Deadline: 5 * time.Second, Priority: 2, SentAt: 2}
	onBed(t, nil, func(b *harness) {
		first := b.now
		b.send(camera, all(1, 0, 5)...)
		b.send(camera, fragment{id: 1, index: 5, extension: early})
		b.now += 1000
		slot := b.send(camera, fragment{id: 1, extension: long}).Complete[0]
		r := b.table.requests[slot]
		want(b, "priority", r.Priority, 2)
		want(b, "deadline: the client's, although it is longer", r.Deadline-first, int64(5*time.Second))
		b.end(slot, wire.StatusOK, "")
		b.send(camera, all(2, 0)...)
		slot = b.send(camera, fragment{id: 2, extension: early}).Complete[0]
		r = b.table.requests[slot]
		want(b, "deadline: the client's", r.Deadline-r.FirstFragment, int64(time.Millisecond))
		b.end(slot, wire.StatusOK, "")
		// The slot's next request inherits nothing.
		r = b.table.requests[b.whole(camera, 3)]
		want(b, "priority", r.Priority, 0)
		want(b, "deadline", r.Deadline-r.FirstFragment, int64(b.config.SLO))
		// A request holds a slot for a minute at most.
		slot = b.send(camera, append(all(4, 0), fragment{id: 4, extension: &wire.Extension{Deadline: time.Hour}})...).Complete[0]
		r = b.table.requests[slot]
		want(b, "deadline: a minute", r.Deadline-r.FirstFragment, int64(time.Minute))
	})
}

// TestSources checks which requests are those of one address, and of one client.
func TestSources(t *testing.T) {
	from := func(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
	change := func(c *Config) { c.Trusted = []netip.Prefix{netip.MustParsePrefix("127.7.0.0/16")} }
	onBed(t, change, func(b *harness) {
		source := func(at string, id int) [2]uint32 {
			r := b.table.requests[b.whole(from(at), id)]
			return [2]uint32{r.Address, r.Client}
		}
		first, again, port, other := source("127.0.0.1:1", 1), source("127.0.0.1:1", 2), source("127.0.0.1:2", 3), source("127.0.0.2:1", 4)
		gateway, gatewayPort := source("127.7.0.1:1", 5), source("127.7.0.1:2", 6)
		stranger, strange := source("192.0.2.1:5000", 7), source("192.0.2.2:5000", 8)
		if first != again || first[0] != port[0] || first[1] == port[1] || first[0] == other[0] {
			t.Errorf("client %v, again %v, another port %v, another address %v", first, again, port, other)
		}
		if gateway[0] == gatewayPort[0] {
			t.Errorf("a trusted address: %v, another port %v", gateway, gatewayPort)
		}
		if stranger[0] != 0 || strange[0] != 0 || stranger[1] == strange[1] {
			t.Errorf("without proof: %v, %v", stranger, strange)
		}
	})
}

// alone is how many of 64 slots a single client may hold. A sixteenth is kept for other
// addresses, and a sixteenth of the rest for other ports.
const alone = 57

// ofTwo is how many each of two clients can hold: of 57 slots outside the reserve 16/17, a half each, and a sixteenth of it is for
// other ports.
const ofTwo = 25

func TestCreditIsAFairPartOfTheSlots(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		want(b, "of an unknown client", b.a.Credit(camera), 60)
		b.whole(camera, 1)
		want(b, "alone, one in flight", b.a.Credit(camera), alone-1)
		want(b, "of another that is unknown", b.a.Credit(address(2)), 26)
		for id := range 40 {
			b.whole(address(2), id)
		}
		want(b, "of two, one in flight, bounded by what is free", b.a.Credit(camera), 16)
		want(b, "of two, over its part", b.a.Credit(address(2)), 0)
		b.now += int64(activeFor) + 1
		want(b, "those in flight still count", b.a.Credit(camera), 16)
		for slot := range uint32(b.config.Slots) {
			if o, ok := b.a.Origin(slot); ok && o.From == address(2) {
				b.end(slot, wire.StatusOK, "")
			}
		}
		want(b, "of two, one in flight", b.a.Credit(camera), ofTwo-1)
		b.now += int64(activeFor) + 1
		b.add()
		want(b, "alone again", b.a.Credit(camera), alone-1)
	})
}

func TestMinCredit(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		b.whole(address(5000), 1)
		for n := range 5000 { // more than the table has room for
			b.send(address(n), fragment{id: n, total: 1})
		}
		want(b, "clients", b.a.Stats().Clients, minClients)
		want(b, "credit of one that has a request in flight, and is not forgotten", b.a.Credit(address(5000)), 0)
		want(b, "credit", b.a.Credit(address(4999)), 1)
	})
}

func TestDrainRefusesNew(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		b.send(camera, all(1, 0)...)
		b.a.Drain()
		want(b, "told", b.send(camera, fragment{id: 2}).Reported[0].Status, wire.StatusBusy)
		want(b, "whole", len(b.send(camera, fragment{id: 1}).Complete), 1)
		want(b, "credit", b.a.Credit(camera), 0)
		b.a.Resume()
		want(b, "whole", len(b.send(camera, all(3, 0)...).Complete)+len(b.send(camera, fragment{id: 3}).Complete), 1)
	})
}

func TestBusyAnswersNotKept(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		result := b.end(b.whole(camera, 1), wire.StatusBusy, "")
		want(b, "credit", result.Credit, 0)
		b.pass(b.config.TurnedAwayFor)
		b.whole(camera, 1)
	})
}

func TestAClockThatGoesBackIsHeld(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		b.send(camera, all(1, 0)...)
		b.now -= 1000
		b.send(camera, all(2, 0)...)
		r := b.table.requests[b.send(camera, fragment{id: 2}).Complete[0]]
		want(b, "first fragment", r.FirstFragment, b.now+1000)
		b.now += 1000
	})
}

func TestSpansOfOneReadAreJoined(t *testing.T) {
	b := newHarness(t, nil)
	slot := b.whole(camera, 1)
	b.events.Reset()
	b.a.End(b.now, slot, new(wire.Result), nil, &b.events)
	if len(b.events.Release) != 1 {
		t.Errorf("%d spans of datagrams that lie back to back", len(b.events.Release))
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	sound := newHarness(t, nil).config
	must.OK(t, sound.Validate())
	for name, spoil := range map[string]func(c *Config){
		"few slots":        func(c *Config) { c.Slots = 32 },
		"odd slots":        func(c *Config) { c.Slots = 65 },
		"many slots":       func(c *Config) { c.Slots = 1 << 17 },
		"no bytes":         func(c *Config) { c.RequestBytes = 0 },
		"too many bytes":   func(c *Config) { c.RequestBytes = 1 << 32 },
		"no fragment size": func(c *Config) { c.MinFragmentBytes = 0 },
		"no descriptors":   func(c *Config) { c.MaxFragments = 0 },
		"no objective":     func(c *Config) { c.SLO, c.Deadline = 0, 0 },
		"wishes":           func(c *Config) { c.MaxNACKs = 9 },
		"negative memory":  func(c *Config) { c.AnsweredFor = -1 },
		"no memory":        func(c *Config) { c.AnsweredBytes = -1 },
	} {
		c := sound
		spoil(&c)
		if err := c.Validate(); !errors.Is(err, errConfig) {
			t.Errorf("%s: %v", name, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: NewSeveral does not panic", name)
				}
			}()
			New(c, nil, newPaper(max(c.Slots, 0), max(c.MaxFragments, 0)))
		}()
	}
}

func TestDropsHaveWords(t *testing.T) {
	seen := map[string]bool{}
	for d := range numDrops {
		if w := d.String(); w == "" || w == "unknown" || seen[w] {
			t.Errorf("drop %d is %q", d, w)
		} else {
			seen[w] = true
		}
	}
}
