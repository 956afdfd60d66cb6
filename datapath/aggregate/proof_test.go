package aggregate

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// ledger counts the bytes that go to and come from each address.
type ledger map[netip.AddrPort]*struct{ in, out int64 }

func (l ledger) of(addr netip.AddrPort) *struct{ in, out int64 } {
	if l[addr] == nil {
		l[addr] = new(struct{ in, out int64 })
	}
	return l[addr]
}

func headers(addr netip.AddrPort) int64 {
	if addr.Addr().Is4() {
		return 28
	}
	return 48
}

// took adds the datagrams for the events, in the form in which the manager
// sends them.
func (l ledger) took(e *Events) {
	for _, answers := range [][]Answer{e.Reported, e.Again} {
		for i := range answers {
			a := &answers[i]
			l.answered(a.To, &a.Result, a.Payload)
		}
	}
	for _, w := range e.NACKs {
		for from := 0; from < int(w.Count); {
			var d []byte
			if d, from = wire.AppendNACK(nil, w.RequestID, w.Total, w.Count, w.Present, from); d != nil {
				l.of(w.To).out += headers(w.To) + int64(len(d))
			}
		}
	}
}

func (l ledger) answered(to netip.AddrPort, r *wire.Result, payload []byte) {
	if r.Status != wire.StatusOK {
		payload = nil
	}
	for i := range wire.Fragments(len(payload), ReplyFragmentBytes) {
		l.of(to).out += headers(to) + int64(len(wire.AppendResult(nil, 1, r, payload, ReplyFragmentBytes, i, false)))
	}
}

// TestAmplification lets clients without proof do anything, and counts the
// bytes that are sent to their addresses.
func TestAmplification(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fragments := rapid.SampledFrom([]int{1, 10, 1000, 20_000}).Draw(t, "fragments")
		size := rapid.SampledFrom([]int{1, 6, 100}).Draw(t, "fragment bytes")
		b := newHarness(t, func(c *Config) {
			c.RequestBytes, c.MinFragmentBytes, c.MaxFragments = fragments*size, 1, 2*fragments
			c.Deadline, c.NACKAfter = 20*time.Millisecond, time.Millisecond
			c.AnsweredFor, c.TurnedAwayFor = 40*time.Millisecond, 15*time.Millisecond
			c.AnsweredBytes = 16 << 10
		})
		addresses := []netip.AddrPort{
			netip.MustParseAddrPort("192.0.2.1:5000"), netip.MustParseAddrPort("[2001:db8::1]:5000"), netip.MustParseAddrPort("192.0.2.1:5001"),
		}
		forged := b.a.common.cookies.at(b.now, netip.MustParseAddrPort("192.0.2.9:5000"))
		sums := ledger{}
		whole := []uint32{}
		took := func() {
			sums.took(&b.events)
			whole = append(whole, b.events.Complete...)
			for addr, sum := range sums {
				if sum.out > 3*sum.in {
					t.Fatalf("%v: %d bytes received, %d sent: %.2f times", addr, sum.in, sum.out, float64(sum.out)/float64(sum.in))
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"datagrams": func(t *rapid.T) {
				var batch []ingest.Datagram
				for range rapid.IntRange(1, 6).Draw(t, "datagrams") {
					p := fragment{
						id: rapid.IntRange(1, 2).Draw(t, "id"), total: fragments * size, size: size,
						index: rapid.SampledFrom([]int{0, 0, fragments / 2, fragments - 1}).Draw(t, "index"),
						again: rapid.Bool().Draw(t, "asks"),
					}
					if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
						p.total = 1
						p.size, p.index = 1, 0
					}
					if rapid.Bool().Draw(t, "extended") {
						p.extension = &wire.Extension{Cookie: rapid.SampledFrom([]uint64{0, 1, forged}).Draw(t, "cookie")}
					}
					p.shed = p.index == 0 && rapid.IntRange(0, 9).Draw(t, "shed") == 0
					from, d := rapid.SampledFrom(addresses).Draw(t, "from"), p.datagram()
					landed := b.land(from, d, 0)
					landed.Shed = p.shed
					sums.of(from).in += headers(from) + int64(len(d))
					batch = append(batch, landed)
				}
				b.add(batch...)
				took()
			},
			"answer": func(t *rapid.T) {
				if len(whole) == 0 {
					t.Skip("no request is complete")
				}
				slot := whole[0]
				whole = whole[1:]
				o, _ := b.a.Origin(slot)
				r := wire.Result{Status: rapid.SampledFrom([]wire.Status{wire.StatusOK, wire.StatusLate}).Draw(t, "status"), Kind: wire.KindRaw}
				payload := make([]byte, rapid.SampledFrom([]int{0, 4, 1024, 6000, 20_000}).Draw(t, "payload"))
				if r.Status != wire.StatusOK {
					r.Kind, payload = wire.KindNone, nil
				}
				b.events.Reset()
				b.a.End(b.now, slot, &r, payload, &b.events)
				b.settle()
				sums.answered(o.From, &r, payload)
				took()
			},
			"time": func(t *rapid.T) {
				b.pass(time.Duration(rapid.IntRange(1, 12).Draw(t, "half milliseconds")) * time.Millisecond / 2)
				took()
			},
			"pressure": func(*rapid.T) {
				b.events.Reset()
				b.a.EvictOldest(b.now, &b.events)
				b.settle()
				took()
			},
		})
	})
}

func TestCookie(t *testing.T) {
	c, from := newCookies(), netip.MustParseAddrPort("192.0.2.1:5000")
	const epoch = int64(cookieEpoch)
	cookie := c.at(10*epoch+epoch/2, from)
	for _, row := range []struct {
		name   string
		now    int64
		from   string
		cookie uint64
		want   bool
	}{
		{"at once", 10*epoch + epoch/2, "192.0.2.1:5000", cookie, true},
		{"in the next epoch", 12*epoch - 1, "192.0.2.1:5000", cookie, true},
		{"two epochs later", 12 * epoch, "192.0.2.1:5000", cookie, false},
		{"of another port", 10 * epoch, "192.0.2.1:5001", cookie, false},
		{"of another address", 10 * epoch, "192.0.2.2:5000", cookie, false},
		{"none", 10 * epoch, "192.0.2.1:5000", 0, false},
		{"another", 10 * epoch, "192.0.2.1:5000", cookie ^ 1, false},
	} {
		if got := c.proves(row.now, netip.MustParseAddrPort(row.from), row.cookie); got != row.want {
			t.Errorf("%s: proves = %v, want %v", row.name, got, row.want)
		}
	}
	if another := newCookies(); another.proves(10*epoch, from, cookie) {
		t.Error("the cookie of one manager proves an address to another")
	}
	for _, loopback := range []string{"127.0.0.1:5000", "127.1.2.3:5000", "[::1]:5000"} {
		if got := c.at(0, netip.MustParseAddrPort(loopback)); got != 0 {
			t.Errorf("%s gets cookie %x, want none", loopback, got)
		}
	}
	for _, other := range []string{"192.0.2.1:5000", "10.1.2.3:5000", "169.254.1.2:5000", "[fd00::1]:5000", "[fe80::1]:5000"} {
		if c.at(0, netip.MustParseAddrPort(other)) == 0 {
			t.Errorf("%s gets no cookie", other)
		}
	}
	if n := testing.AllocsPerRun(100, func() { c.proves(0, from, c.at(0, from)) }); n != 0 {
		t.Errorf("%v allocations per cookie", n)
	}
}

// TestPrice compares the bytes that the budget counts with the datagrams that
// are sent.
func TestPrice(t *testing.T) {
	for _, from := range []string{"192.0.2.1:5000", "[::ffff:192.0.2.1]:5000", "[2001:db8::1]:5000"} {
		addr := netip.MustParseAddrPort(from)
		prefix := headerBytes(addr)
		to := netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
		if want := uint32(headers(to)); prefix != want {
			t.Errorf("%s: %d bytes of headers, want %d", from, prefix, want)
		}

		var b budget
		if b.receive(prefix, 25); b != budget(3*(prefix+25)) {
			t.Errorf("%s: a datagram of 25 bytes gives a budget of %d, want %d", from, b, 3*(prefix+25))
		}

		for _, payloadBytes := range []int{0, 1, ReplyFragmentBytes, ReplyFragmentBytes + 1, 20_000} {
			sums := ledger{}
			sums.answered(to, &wire.Result{Kind: wire.KindRaw}, make([]byte, payloadBytes))
			if got, want := answerBytes(prefix, payloadBytes), sums.of(to).out; got != want {
				t.Errorf("%s: an answer of %d bytes costs %d, want %d", from, payloadBytes, got, want)
			}
		}

		for _, count := range []int{2, 100, 5000, 40_000} {
			sums := ledger{}
			sums.took(&Events{NACKs: []NACK{{To: to, RequestID: 1, Total: uint32(count), Count: uint16(count)}}})
			if got, want := nackBytes(prefix, uint16(count)), sums.of(to).out; got < want {
				t.Errorf("%s: NACKs for %d fragments cost %d, but %d bytes are sent", from, count, got, want)
			}
		}
	}
}

// TestProof asks for an answer of 6,000 bytes to a request of one byte.
func TestProof(t *testing.T) {
	single := func(c *Config) { c.RequestBytes, c.MinFragmentBytes, c.MaxFragments = 1, 1, 2 }
	const answer = "an answer"
	payload := make([]byte, 6000)
	copy(payload, answer)
	request := func(id int, e *wire.Extension, again bool) fragment {
		return fragment{id: id, total: 1, size: 1, extension: e, again: again}
	}
	end := func(b *harness, slot uint32) wire.Result {
		b.t.Helper()
		b.events.Reset()
		r := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, ModelVersion: 7}
		if !b.a.End(b.now, slot, &r, payload, &b.events) {
			b.t.Fatalf("End(%d) = false", slot)
		}
		b.settle()
		return r
	}
	t.Run("a repeat of fragment 0 with the cookie gets the answer", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			busy := end(b, b.send(outsider, request(1, &wire.Extension{SentAt: 5}, false)).Complete[0])
			if busy != (wire.Result{Status: wire.StatusBusy, ModelVersion: 7, SentAt: 5, Cookie: busy.Cookie, Objective: b.config.SLO}) || busy.Cookie == 0 {
				t.Fatalf("client is told %+v, want busy with a cookie", busy)
			}
			if e := b.send(outsider, request(1, nil, true)); len(e.Again) != 0 {
				t.Errorf("a question at once without the cookie gets %+v, want nothing", e.Again)
			}
			// In the same millisecond: a round trip may be shorter.
			e := b.send(outsider, request(1, &wire.Extension{Cookie: busy.Cookie}, true))
			if len(e.Again) != 1 || e.Again[0].Status != wire.StatusOK || string(e.Again[0].Payload[:len(answer)]) != answer || len(e.Again[0].Payload) != len(payload) {
				t.Fatalf("the repeat gets %+v", e.Again)
			}
			if len(e.Complete) != 0 {
				t.Error("the request is run again")
			}
			if e := b.send(outsider, request(1, &wire.Extension{Cookie: busy.Cookie}, true)); len(e.Again) != 0 {
				t.Errorf("a second question at once gets %+v, want nothing", e.Again)
			}
			// A later question without the cookie lacks budget again.
			b.now += int64(2 * againAfter)
			e = b.send(outsider, request(1, nil, true))
			if len(e.Again) != 1 || e.Again[0].Status != wire.StatusBusy || len(e.Again[0].Payload) != 0 {
				t.Errorf("a question without the cookie gets %+v, want busy", e.Again)
			}
			want(b, "withheld", b.a.Stats().Withheld, 2)
		})
	})
	t.Run("a later request with the cookie is answered at once", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			busy := end(b, b.send(outsider, request(1, nil, false)).Complete[0])
			if r := end(b, b.send(outsider, request(2, &wire.Extension{Cookie: busy.Cookie}, false)).Complete[0]); r.Status != wire.StatusOK {
				t.Errorf("answer is %+v, want ok", r)
			}
		})
	})
	t.Run("a request that changes a stream needs the cookie first", func(t *testing.T) {
		streams := func(c *Config) { single(c); c.Streams = true }
		onBed(t, streams, func(b *harness) {
			e := b.send(outsider, request(1, &wire.Extension{Stream: 5}, false))
			if len(e.Complete) != 0 || len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusBusy {
				t.Fatalf("a client without proof: %+v", e)
			}
			e = b.send(outsider, request(1, &wire.Extension{Stream: 5, Cookie: b.a.common.cookies.at(b.now, outsider)}, true))
			if len(e.Complete) != 1 {
				t.Fatalf("the repeat with the cookie: %+v", e)
			}
			first := b.table.requests[e.Complete[0]].Stream
			end(b, e.Complete[0])
			local := b.send(netip.MustParseAddrPort("127.0.0.1:5000"), request(1, &wire.Extension{Stream: 5}, false))
			if len(local.Complete) != 1 || b.table.requests[local.Complete[0]].Stream == first {
				t.Errorf("the same stream id of another client: %+v", local)
			}
			end(b, local.Complete[0])
		})
	})
	t.Run("the cookie counts while the request runs", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			cookie := b.a.common.cookies.at(b.now, outsider)
			slot := b.send(outsider, request(1, nil, false)).Complete[0]
			b.send(outsider, request(1, &wire.Extension{Cookie: cookie}, true))
			if r := end(b, slot); r.Status != wire.StatusOK {
				t.Errorf("answer is %+v, want ok", r)
			}
		})
	})
	t.Run("a wrong cookie does not", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			if r := end(b, b.send(outsider, request(1, &wire.Extension{Cookie: 7}, false)).Complete[0]); r.Status != wire.StatusBusy {
				t.Errorf("answer is %+v, want busy", r)
			}
		})
	})
	t.Run("loopback needs none", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			if r := end(b, b.send(netip.MustParseAddrPort("127.0.0.1:5000"), request(1, nil, false)).Complete[0]); r.Status != wire.StatusOK || r.Cookie != 0 {
				t.Errorf("answer is %+v, want ok without a cookie", r)
			}
			b.now += int64(2 * againAfter)
			e := b.send(netip.MustParseAddrPort("127.0.0.1:5000"), request(1, nil, true))
			if len(e.Again) != 1 || len(e.Again[0].Payload) != len(payload) {
				t.Errorf("a question gets %+v, want the answer", e.Again)
			}
		})
	})
	t.Run("an answer that could not be kept ends failed", func(t *testing.T) {
		onBed(t, func(c *Config) { single(c); c.AnsweredBytes = 100 }, func(b *harness) {
			busy := end(b, b.send(outsider, request(1, nil, false)).Complete[0])
			e := b.send(outsider, request(1, &wire.Extension{Cookie: busy.Cookie}, true))
			if len(e.Again) != 1 || e.Again[0].Status != wire.StatusFailed || len(e.Again[0].Payload) != 0 {
				t.Errorf("the repeat gets %+v, want failed", e.Again)
			}
		})
	})
	t.Run("a request of one byte pays for a small answer", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			slot := b.send(outsider, request(1, nil, false)).Complete[0]
			if r := b.end(slot, wire.StatusOK, answer); r.Status != wire.StatusOK {
				t.Errorf("answer is %+v, want ok", r)
			}
		})
	})
	t.Run("each block counts", func(t *testing.T) {
		onBed(t, single, func(b *harness) {
			// A datagram pays for a block and a third of one, so a payload as large as
			// 1.2 blocks takes four datagrams.
			payload := string(make([]byte, 136))
			got := []wire.Status{b.end(b.send(outsider, request(1, nil, false)).Complete[0], wire.StatusOK, payload).Status}
			for range 3 {
				b.now += int64(2 * againAfter)
				for _, again := range b.send(outsider, request(1, nil, true)).Again {
					got = append(got, again.Status)
				}
			}
			want(b, "answers", got, []wire.Status{wire.StatusBusy, wire.StatusBusy, wire.StatusBusy, wire.StatusOK})
		})
	})
	t.Run("a request turned away begins again with the cookie", func(t *testing.T) {
		onBed(t, nil, func(b *harness) {
			for id := range 8 { // the class's share of the slots
				b.send(outsider, fragment{id: id + 1, size: testRequest})
			}
			for id := range 56 {
				b.send(address(1), fragment{id: id + 1, index: 1})
			}
			if e := b.send(outsider, fragment{id: 100}); len(e.Reported) != 1 || e.Reported[0].Status != wire.StatusBusy {
				t.Fatalf("client is told %+v, want busy", e.Reported)
			}
			begun := b.a.Stats().Begun
			cookie := b.a.common.cookies.at(b.now, outsider)
			b.send(outsider, fragment{id: 100, extension: &wire.Extension{Cookie: cookie}, again: true})
			want(b, "begun", b.a.Stats().Begun, begun+1)
		})
	})
	t.Run("a large picture pays for its answer", func(t *testing.T) {
		onBed(t, func(c *Config) { c.RequestBytes, c.MinFragmentBytes, c.MaxFragments = 3000, 100, 100 }, func(b *harness) {
			e := b.send(outsider, fragment{id: 1, total: 3000, size: 3000})
			if r := end(b, e.Complete[0]); r.Status != wire.StatusOK {
				t.Errorf("answer is %+v, want ok", r)
			}
		})
	})
}

// TestBegun counts the requests that are worth preparing for: a forged packet must not cause work.
func TestBegun(t *testing.T) {
	onBed(t, func(c *Config) { c.RequestBytes, c.MinFragmentBytes, c.MaxFragments = 2, 1, 4 }, func(b *harness) {
		cookie := b.a.common.cookies.at(b.now, outsider)
		first := func(id int, e *wire.Extension) fragment { return fragment{id: id, total: 2, size: 1, extension: e} }
		if e := b.send(outsider, first(1, nil)); e.Begun != 0 {
			t.Errorf("%d requests of a client without proof count, want 0", e.Begun)
		}
		if e := b.send(outsider, fragment{id: 1, total: 2, size: 1, extension: &wire.Extension{Cookie: cookie}, again: true}); e.Begun != 1 {
			t.Errorf("%d requests count when the client proves its address, want 1", e.Begun)
		}
		if e := b.send(outsider, first(2, &wire.Extension{Cookie: cookie})); e.Begun != 1 {
			t.Errorf("%d requests of a client with proof count, want 1", e.Begun)
		}
		if e := b.send(outsider, fragment{id: 2, total: 2, size: 1, index: 1}); e.Begun != 0 || len(e.Complete) != 1 {
			t.Errorf("%d requests count at the last fragment, want 0", e.Begun)
		}
	})
}
