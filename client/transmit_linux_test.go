package client

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

func TestTrainSizes(t *testing.T) {
	repeat := func(n, size int, more ...int) []int {
		var sizes []int
		for range n {
			sizes = append(sizes, size)
		}
		return append(sizes, more...)
	}
	for _, c := range []struct {
		name  string
		sizes []int
		want  int
	}{
		{"one datagram", []int{100}, 1},
		{"a picture", repeat(9, 1046, 500), 10},
		{"a shorter one ends it", []int{100, 99, 99}, 2},
		{"a longer one is for the next", []int{100, 100, 101}, 2},
		{"as many as the kernel cuts", repeat(100, 100), trainSegments},
		{"as many bytes as a datagram holds", repeat(10, 16000), 4},
		{"larger than a train", []int{65000, 10}, 1},
	} {
		tr := &transmitter{}
		for i, size := range c.sizes {
			tr.datagrams[i].size = size
			tr.n++
		}
		if got := tr.trainEnd(0); got != c.want {
			t.Errorf("%s: a train of %d, want %d", c.name, got, c.want)
		}
	}
}

// The manager sheds a chain of datagrams by the request of its first.
func TestTrainsOfFragments(t *testing.T) {
	const several, alone = 3, 1
	type request struct{ id, count, fragments int }
	for _, c := range []struct {
		name     string
		requests []request
		want     []int // datagrams of each train
	}{
		{"two requests", []request{{1, several, 3}, {2, several, 3}}, []int{3, 3}},
		{"the end of one and the beginning of another", []request{{1, several, 1}, {2, several, 2}}, []int{1, 2}},
		{"requests of one fragment each", []request{{1, alone, 1}, {2, alone, 1}, {3, alone, 1}}, []int{3}},
		{"one of several after one of one", []request{{1, alone, 1}, {2, several, 3}}, []int{1, 3}},
		{"one of one after one of several", []request{{1, several, 3}, {2, alone, 1}}, []int{3, 1}},
	} {
		tr := &transmitter{segments: true}
		fragment := make([]byte, 100)
		for _, r := range c.requests {
			for i := r.count - r.fragments; i < r.count; i++ {
				h := wire.FragmentHeader(wire.TypeData, uint32(r.id), r.count*len(fragment), len(fragment), i)
				tr.add(h, wire.Extension{}, fragment)
			}
		}
		var got []int
		for i := range tr.pack(0) {
			got = append(got, tr.first[i+1]-tr.first[i])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: trains of %v datagrams, want %v", c.name, got, c.want)
		}
	}
}

// sink is a socket that only the test reads.
func sink(t testing.TB) *net.UDPConn {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	must.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func dialSink(t testing.TB, to *net.UDPConn, o Options) *Client {
	t.Helper()
	c, err := Dial(context.Background(), to.LocalAddr().String(), o)
	must.OK(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// On a socket without checksums, the kernel refuses trains but not datagrams
// (net/ipv4/udp.c, udp_send_skb). Other paths refuse them for other reasons.
func TestTrainsRefused(t *testing.T) {
	to := sink(t)
	c := dialSink(t, to, Options{})
	if !c.home.socket.(*batchSocket).segments {
		t.Log("this kernel cuts no trains: datagrams go one by one from the start")
	}
	raw, err := c.home.conn.SyscallConn()
	must.OK(t, err)
	if err := raw.Control(func(fd uintptr) {
		must.OK(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))
	}); err != nil {
		t.Fatal(err)
	}
	picture := bytes.Repeat([]byte("pixel"), 1000)
	must.Get(c.Send(picture, RequestOptions{}))(t)
	got := make([]byte, len(picture))
	room := make([]byte, 2048)
	_ = to.SetReadDeadline(time.Now().Add(30 * time.Second))
	for range wire.Fragments(len(picture), wire.DefaultFragmentBytes) {
		n, err := to.Read(room)
		must.OK(t, err)
		h, err := wire.DecodeHeader(room[:n])
		must.OK(t, err)
		copy(got[h.Offset:], room[wire.PayloadOffset(&h):][:h.Length])
	}
	if !bytes.Equal(got, picture) {
		t.Error("the picture did not arrive whole")
	}
	_ = c.Close() // afterwards the sender has counted everything
	if s := c.Stats(); s.SendErrors != 0 || s.Datagrams != 5 {
		t.Errorf("stats %+v", s)
	}
}

func TestSentSince(t *testing.T) {
	c := &Client{flying: flights{list: list{id: stageList}}}
	p := &path{}
	for _, at := range []int64{10, 20, 30, 40} {
		c.flying.pushBack(&request{sentAt: at, path: p})
		c.flying.pushBack(&request{sentAt: at, path: &path{}})
	}
	for at, want := range map[int64]int{5: 4, 10: 3, 35: 1, 40: 0} {
		if got := c.sentSinceLocked(p, at); got != want {
			t.Errorf("sent after %d: %d, want %d", at, got, want)
		}
	}
}

func TestAllocations(t *testing.T) {
	to := sink(t)
	delivered := 0
	c := dialSink(t, to, Options{Deliver: func(*Result) { delivered++ }, ResendAfter: time.Hour, Timeout: 2 * time.Hour})
	picture := make([]byte, 150*1024)
	answers, room := make([]byte, 0, 1<<10), make([]byte, 0, 1<<10)
	result := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Credit: 8}
	payload := make([]byte, 100)
	var sent uint64
	once := func() {
		id, err := c.Send(picture, RequestOptions{Deadline: time.Second})
		must.OK(t, err)
		// Every fragment is sent, then a NACK names fragment 3, which is sent again.
		// Then the answer arrives in two fragments.
		for sent += 150; c.counts.datagrams.Load() < sent; {
			time.Sleep(10 * time.Microsecond)
		}
		nack, _ := wire.AppendNACK(room, id, uint32(len(picture)), 150, []uint64{^uint64(8), ^uint64(0), ^uint64(0)}, 0)
		c.handle(c.home, nack, nanotime())
		for sent++; c.counts.datagrams.Load() < sent; {
			time.Sleep(10 * time.Microsecond)
		}
		c.handle(c.home, wire.AppendResult(answers, id, &result, payload, 60, 0, false), nanotime())
		c.handle(c.home, wire.AppendResult(answers, id, &result, payload, 60, 1, false), nanotime())
	}
	const runs = 200
	if n := testing.AllocsPerRun(runs, once); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
	// On a slow machine the client also asks, which sends fragment 0 again.
	if delivered != runs+1 || c.Stats().Resends < runs+1 {
		t.Errorf("%d delivered, %d fragments sent again, of %d requests", delivered, c.Stats().Resends, runs+1)
	}
}

// FuzzHandle passes any datagram to a client with requests queued and in
// flight. Even if the client accepts it as an answer, the client must still
// work.
func FuzzHandle(f *testing.F) {
	const id = 7
	ok := wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Credit: 3}
	nack, _ := wire.AppendNACK(nil, id, 5000, 5, nil, 0)
	unsent, _ := wire.AppendNACK(nil, id+1, 5000, 5, nil, 0)
	for _, b := range [][]byte{
		nil, nack, unsent,
		wire.AppendResult(nil, id, &ok, []byte("1234"), 1024, 0, false),
		wire.AppendResult(nil, id, &ok, []byte("12345678"), 5, 1, true),
		wire.AppendResult(nil, id, &wire.Result{Status: wire.StatusBusy}, nil, 1024, 0, false),
		wire.AppendResult(nil, id, &wire.Result{Status: wire.StatusMoved, Moved: netip.MustParseAddrPort("192.0.2.2:5001")}, nil, 1024, 0, false),
	} {
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		delivered := make(map[uint32]int)
		// A client without its goroutines: the test makes all calls.
		c := &Client{
			options:  Options{Deliver: func(r *Result) { delivered[r.ID]++ }, MaxResultBytes: 1 << 16, FragmentBytes: 1024},
			wake:     make(chan struct{}, 1),
			requests: make(map[uint32]*request),
			queued:   queue{list: list{id: stageList}},
			flying:   flights{list: list{id: stageList}, sending: list{id: sendingList}},
			nextID:   id,
		}
		c.unread.L = &c.mu
		picture := make([]byte, 5000)
		p := &path{fragmentBytes: 1024}
		for sent := 5; sent > 2; sent -= 2 { // one sent completely, one in part
			r := c.newRequestLocked()
			r.id, r.picture, r.count, r.next, r.flying, r.path = c.nextID, picture, 5, sent, true, p
			r.follows = sent == 5
			r.recovery.Begin(r.count, time.Second)
			if !r.unsent() {
				r.recovery.Sent(0, 0)
			}
			c.requests[r.id] = r
			c.flying.pushBack(r)
			p.inFlight++
			c.nextID++
		}
		c.handle(p, first, 1)
		c.handle(p, second, 2)

		inFlight := 0
		for r := c.flying.head; r != nil; r = r.links[stageList].next {
			inFlight++
			if c.requests[r.id] != r || delivered[r.id] != 0 {
				t.Fatalf("request %d is in flight and ended", r.id)
			}
			for r.resend.left > 0 {
				if index, _ := r.takeFragment(); index >= r.next {
					t.Fatalf("fragment %d sent again, %d were sent", index, r.next)
				}
			}
		}
		if inFlight != c.flying.n || inFlight != p.inFlight || inFlight+c.queued.n != len(c.requests) || len(c.requests)+len(delivered) != 2 {
			t.Fatalf("%d in flight, %d queued, %d known, %d ended of 2", inFlight, c.queued.n, len(c.requests), len(delivered))
		}
		for id, n := range delivered {
			if n != 1 {
				t.Fatalf("request %d ended %d times", id, n)
			}
		}
	})
}

func BenchmarkSendPicture(b *testing.B) {
	to := sink(b)
	go func() {
		room := make([]byte, 2048)
		for {
			if _, err := to.Read(room); err != nil {
				return
			}
		}
	}()
	c := dialSink(b, to, Options{ResendAfter: time.Hour, Timeout: 2 * time.Hour})
	picture, room := make([]byte, 147*1024), make([]byte, 0, 1<<10)
	result := wire.Result{Status: wire.StatusOK, Credit: 8}
	var sent uint64
	b.SetBytes(int64(len(picture)))
	b.ReportAllocs()
	for b.Loop() {
		id, err := c.Send(picture, RequestOptions{})
		must.OK(b, err)
		for sent += 147; c.counts.datagrams.Load() < sent; {
			time.Sleep(time.Microsecond)
		}
		c.handle(c.home, wire.AppendResult(room, id, &result, nil, 1024, 0, false), nanotime())
	}
}
