package control

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/rs/zerolog"
)

func desired(id string, seq uint64) Desired {
	return Desired{ManagerID: id, Seq: seq, AttachSocket: "/run/a", Processes: []DesiredProcess{
		{IF: "face", Generation: 1, Role: Serve, Terms: Terms{SharePercent: 30}},
	}}
}

func observed(ack uint64) Observed {
	return Observed{OrchestratorID: "o", ManagerID: "m", AckSeq: ack, Mechanism: "governor", CPUs: 1, Processes: []ObservedProcess{
		{IF: "face", Generation: 1, PID: 42, State: Active, SharePercent: 30},
	}}
}

func listen(t *testing.T, dir string, log zerolog.Logger) *ManagerLink {
	t.Helper()
	m, err := ListenManager(dir, log)
	must.OK(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func dial(t *testing.T, dir string, log zerolog.Logger) *OrchestratorLink {
	t.Helper()
	o, err := DialOrchestrator(dir, log)
	must.OK(t, err)
	t.Cleanup(func() { o.Close() })
	return o
}

func publish[T any](t *testing.T, to interface{ Publish(T) error }, state T) {
	t.Helper()
	must.OK(t, to.Publish(state))
}

// waitState waits for a state for which wanted returns true.
func waitState[T any](t *testing.T, from <-chan T, wanted func(T) bool) T {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case s, ok := <-from:
			if !ok {
				t.Fatal("the link is closed")
			}
			if wanted(s) {
				return s
			}
		case <-timeout:
			t.Fatalf("not heard after %v", patience)
		}
	}
}

func TestLinkStates(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	m, o := listen(t, dir, zerolog.Nop()), dial(t, dir, zerolog.Nop())
	publish(t, m, desired("m", 7))
	publish(t, o, observed(7))
	d := waitState(t, o.Desired(), func(d Desired) bool { return d.Seq == 7 })
	if d.Version != Version || d.Processes[0].IF != "face" || d.Processes[0].Role != Serve {
		t.Errorf("desired state came as %+v", d)
	}
	s := waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 7 })
	if s.Version != Version || s.Processes[0].PID != 42 {
		t.Errorf("observed state came as %+v", s)
	}
	if !m.PeerAlive() || !o.PeerAlive() {
		t.Error("a peer that was just heard is not alive")
	}
}

func TestLinkRepeats(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	m, o := listen(t, dir, zerolog.Nop()), dial(t, dir, zerolog.Nop())
	publish(t, m, desired("m", 1))
	for range 3 {
		waitState(t, o.Desired(), func(d Desired) bool { return d.Seq == 1 })
	}
}

func TestLinkSlowReader(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	m, o := listen(t, dir, zerolog.Nop()), dial(t, dir, zerolog.Nop())
	for seq := range uint64(5000) { // far more than any queue holds
		publish(t, m, desired("m", seq))
	}
	publish(t, m, desired("m", 9999))
	eventually(t, "the peer is heard", o.PeerAlive)
	waitState(t, o.Desired(), func(d Desired) bool { return d.Seq == 9999 })
}

func TestLinkRestart(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	m, o := listen(t, dir, zerolog.Nop()), dial(t, dir, zerolog.Nop())
	publish(t, m, desired("first", 1))
	publish(t, o, observed(1))
	waitState(t, o.Desired(), func(d Desired) bool { return d.ManagerID == "first" })

	m.Close()
	m = listen(t, dir, zerolog.Nop())
	publish(t, m, desired("second", 1))
	waitState(t, o.Desired(), func(d Desired) bool { return d.ManagerID == "second" })
	waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 1 })

	o.Close()
	o = dial(t, dir, zerolog.Nop())
	publish(t, o, observed(2))
	waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 2 })
	waitState(t, o.Desired(), func(d Desired) bool { return d.ManagerID == "second" })
}

// relay forwards between two ends. It can cut the connection, or let it hang.
type relay struct {
	listener *net.UnixListener
	target   string
	hang     chan struct{} // closed: the relay forwards nothing more
	cut      chan struct{}
}

func newRelay(t *testing.T, from, to string) *relay {
	t.Helper()
	l, err := listenFresh("unix", from)
	must.OK(t, err)
	r := &relay{listener: l, target: to, hang: make(chan struct{}), cut: make(chan struct{})}
	t.Cleanup(func() { l.Close() })
	go r.run()
	return r
}

func (r *relay) run() {
	for {
		a, err := r.listener.AcceptUnix()
		if err != nil {
			return
		}
		b, err := net.Dial("unix", r.target)
		if err != nil {
			a.Close()
			continue
		}
		stop := func() { a.Close(); b.Close() }
		pass := func(to, from net.Conn) {
			defer stop()
			buf := make([]byte, 4096)
			for {
				n, err := from.Read(buf)
				select {
				case <-r.hang:
					<-r.cut
					return
				default:
				}
				if err != nil {
					return
				}
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		go pass(a, b)
		go pass(b, a)
		go func() { <-r.cut; stop() }()
	}
}

func TestLinkPeerTimeout(t *testing.T) {
	invariants(t)
	there, here := socketDir(t), socketDir(t)
	m := listen(t, there, zerolog.Nop())
	r := newRelay(t, filepath.Join(here, linkSocketName), filepath.Join(there, linkSocketName))
	o := dial(t, here, zerolog.Nop())
	publish(t, m, desired("m", 1))
	publish(t, o, observed(1))
	waitState(t, o.Desired(), func(Desired) bool { return true })
	waitState(t, m.Observed(), func(Observed) bool { return true })

	close(r.hang) // the connection stays open, but nothing passes
	eventually(t, "both take each other for failed", func() bool { return !m.PeerAlive() && !o.PeerAlive() })
	r.listener.Close()
	close(r.cut)
	r = newRelay(t, filepath.Join(here, linkSocketName), filepath.Join(there, linkSocketName))
	t.Cleanup(func() { close(r.cut) })
	eventually(t, "both are alive again", func() bool { return m.PeerAlive() && o.PeerAlive() })
}

func TestListenStaleSocket(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	path := filepath.Join(dir, linkSocketName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	must.OK(t, err)
	l.SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	must.Get(os.Stat(path))(t)
	m, o := listen(t, dir, zerolog.Nop()), dial(t, dir, zerolog.Nop())
	publish(t, m, desired("m", 1))
	waitState(t, o.Desired(), func(d Desired) bool { return d.Seq == 1 })
}

func TestListenInUse(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	m, o := listen(t, dir, zerolog.Nop()), dial(t, dir, zerolog.Nop())
	_, err := ListenManager(dir, zerolog.Nop())
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("got %v, want ErrInUse and the process that listens", err)
	}
	publish(t, m, desired("m", 1)) // the second ListenManager has not disturbed the first
	waitState(t, o.Desired(), func(d Desired) bool { return d.Seq == 1 })
}

func TestListenOtherFile(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, linkSocketName)
	must.OK(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := ListenManager(dir, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file is gone")
	}
}

func TestListenPathTooLong(t *testing.T) {
	dir := filepath.Join(socketDir(t), strings.Repeat("x", 120))
	if _, err := ListenManager(dir, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "shorter runtime folder") {
		t.Errorf("manager's end: %v", err)
	}
	if _, err := DialOrchestrator(dir, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), "shorter runtime folder") {
		t.Errorf("orchestrator's end: %v", err)
	}
}

func TestSecondOrchestrator(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	var log logged
	m, first := listen(t, dir, log.logger()), dial(t, dir, zerolog.Nop())
	publish(t, m, desired("m", 1))
	one := observed(1)
	one.OrchestratorID = "one"
	publish(t, first, one)
	waitState(t, m.Observed(), func(s Observed) bool { return s.OrchestratorID == "one" })

	second := dial(t, dir, zerolog.Nop())
	two := observed(2)
	two.OrchestratorID = "two"
	publish(t, second, two)
	eventually(t, "the second is refused", func() bool { return log.count("one orchestrator is connected already") > 0 })
	for range 3 {
		if s := waitState(t, m.Observed(), func(Observed) bool { return true }); s.OrchestratorID != "one" {
			t.Errorf("heard %s", s.OrchestratorID)
		}
	}
	first.Close()
	waitState(t, m.Observed(), func(s Observed) bool { return s.OrchestratorID == "two" })
}

// dialStranger returns a connection that completes the ZMTP handshake and may then send
// anything.
func dialStranger(t *testing.T, dir string) (*zmq4.Conn, net.Conn) {
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(dir, linkSocketName))
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	z, err := zmq4.Open(c, null.Security(), zmq4.Pair, zmq4.SocketIdentity("x"), false, nil)
	must.OK(t, err)
	return z, c
}

func TestLinkVersion(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	var log logged
	m := listen(t, dir, log.logger())
	z, c := dialStranger(t, dir)
	must.OK(t, z.SendMsg(zmq4.NewMsgString(`{"version":12,"a_field_of_the_future":[]}`)))
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	want := fmt.Sprintf("orchestrator has control version 12, this program has %d; run one version of Penstock", Version)
	eventually(t, "the log names both versions", func() bool { return log.count(want) == 1 })

	// The peer reconnects again and again, as soon as it sees the end. The log line does
	// not repeat, and no other peer takes its place.
	for range 300 {
		z, c := dialStranger(t, dir)
		must.OK(t, z.SendMsg(zmq4.NewMsgString(`{"version":12}`)))
		io.Copy(io.Discard, c)
	}
	if n := log.count(want); n != 1 || log.count("one orchestrator is connected already") != 0 {
		t.Errorf("the refusal is logged %d times, want once; said %d times that another one is connected, want never", n, log.count("one orchestrator is connected already"))
	}
	if m.PeerAlive() {
		t.Error("a peer that was refused is alive")
	}
}

func TestLinkBadMessages(t *testing.T) {
	long := binary.BigEndian.AppendUint64([]byte{flagLong}, maxMessageBytes+1)
	huge := binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<63-1)
	frame := func(s string) []byte { return append([]byte{0, byte(len(s))}, s...) }
	for name, c := range map[string]struct {
		raw  []byte // after the handshake
		want string
	}{
		"not JSON":               {frame("hello"), "bad message"},
		"no version":             {frame("{}"), "version 0"},
		"an unknown field":       {frame(`{"version":11,"orchestrator_id":"o","bogus":1}`), "bogus"},
		"a wrong type":           {frame(`{"version":11,"processes":7}`), "bad message"},
		"a second value":         {frame(`{"version":11}{}`), "bad message"},
		"an unknown state":       {frame(`{"version":11,"orchestrator_id":"o","processes":[{"if":"f","generation":1,"state":"happy"}]}`), "happy"},
		"a name with a slash":    {frame(`{"version":11,"orchestrator_id":"o","processes":[{"if":"../f","generation":1,"state":"ready"}]}`), "letters, digits"},
		"a long message":         {long, "message too long"},
		"a length that overruns": {huge, "message too long"},
		"a message in parts":     {[]byte{flagMore, 1, 'x'}, "of several parts"},
		"a command":              {append([]byte{flagCommand, 5, 4}, "PING"...), "a command"},
		"unknown flags":          {[]byte{0xf0, 1, 'x'}, "flags"},
	} {
		t.Run(name, func(t *testing.T) {
			invariants(t)
			dir := socketDir(t)
			var log logged
			m := listen(t, dir, log.logger())
			_, conn := dialStranger(t, dir)
			must.Get(conn.Write(c.raw))(t)
			eventually(t, "the log says "+c.want, func() bool { return log.count(c.want) == 1 })
			// An honest peer can connect afterwards.
			o := dial(t, dir, zerolog.Nop())
			publish(t, o, observed(3))
			waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 3 })
		})
	}
}

// badHandshake has a property that ends before the length of its value.
func badHandshake() []byte {
	greeting := make([]byte, greetingBytes)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := append([]byte{5}, "READY"...)
	ready = append(ready, 3, 'a', 'b', 'c')
	return append(append(greeting, flagCommand, byte(len(ready))), ready...)
}

func TestLinkHandshakePanic(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	var log logged
	listen(t, dir, log.logger())
	c, err := net.Dial("unix", filepath.Join(dir, linkSocketName))
	must.OK(t, err)
	defer c.Close()
	c.Write(badHandshake())
	eventually(t, "the handshake is refused", func() bool { return log.count("bad message") == 1 })
}

// TestZMQ4 shows the faults of zmq4 that this package works around. If it fails with a newer release, ask again whether
// its sockets can replace link.go (docs/adr/0020-zeromq-without-sockets.md).
func TestZMQ4(t *testing.T) {
	open := func(c net.Conn, server bool) (*zmq4.Conn, error) {
		return zmq4.Open(c, null.Security(), zmq4.Pair, zmq4.SocketIdentity("x"), server, nil)
	}
	t.Run("handshake panics", func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		go io.Copy(io.Discard, theirs)
		go theirs.Write(badHandshake())
		defer func() {
			if recover() == nil {
				t.Error("zmq4 checks the properties of a handshake now")
			}
		}()
		_, _ = open(ours, true)
	})
	t.Run("frames have no limit", func(t *testing.T) {
		l, err := net.Listen("unix", filepath.Join(socketDir(t), "s"))
		must.OK(t, err)
		defer l.Close()
		theirs, err := net.Dial("unix", l.Addr().String())
		must.OK(t, err)
		defer theirs.Close()
		ours, err := l.Accept()
		must.OK(t, err)
		defer ours.Close()
		shaken := make(chan struct{})
		go func() {
			defer close(shaken)
			_, _ = open(theirs, false)
		}()
		z, err := open(ours, true)
		must.OK(t, err)
		<-shaken
		const claimed = 256 << 20
		theirs.Write(binary.BigEndian.AppendUint64([]byte{flagLong}, claimed))
		theirs.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = z.RecvMsg()
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc < claimed {
			t.Error("zmq4 does not allocate what a header claims any more")
		}
	})
}

func TestStrangerTimeout(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	listen(t, dir, zerolog.Nop())
	c, err := net.Dial("unix", filepath.Join(dir, linkSocketName))
	must.OK(t, err)
	defer c.Close()
	if _, err := io.Copy(io.Discard, c); err != nil { // ends when the manager closes the connection
		t.Fatal(err)
	}
}

func TestLinkStrangers(t *testing.T) {
	connect := func(t *testing.T, dir string) net.Conn {
		t.Helper()
		c, err := net.Dial("unix", filepath.Join(dir, linkSocketName))
		must.OK(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}

	t.Run("silent", func(t *testing.T) {
		invariants(t)
		dir := socketDir(t)
		m := listen(t, dir, zerolog.Nop())
		for range maxStrangers - 1 {
			connect(t, dir)
		}

		start := time.Now()
		o := dial(t, dir, zerolog.Nop())
		publish(t, o, observed(1))
		waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 1 })
		// Handshakes in sequence would take maxStrangers-1 times handshakeTimeout. The limit is just
		// below that, for busy machines.
		if waited := time.Since(start); waited > (maxStrangers-2)*handshakeTimeout {
			t.Errorf("the peer was heard after %v", waited)
		}
	})

	t.Run("failed handshakes", func(t *testing.T) {
		dir := socketDir(t)
		listen(t, dir, zerolog.Nop())
		before := descriptors(t)
		for range 50 {
			c := connect(t, dir)
			c.Write(make([]byte, greetingBytes))
			c.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the manager does not hang up")
			}
			c.Close()
		}
		eventually(t, "no descriptor is left", func() bool { return descriptors(t) <= before })
	})
}

func TestPublishInvalid(t *testing.T) {
	invariants(t)
	m := listen(t, socketDir(t), zerolog.Nop())
	for name, spoil := range map[string]func(*Desired){
		"no manager id":     func(d *Desired) { d.ManagerID = "" },
		"empty name":        func(d *Desired) { d.Processes[0].IF = "" },
		"long name":         func(d *Desired) { d.Processes[0].IF = strings.Repeat("a", maxNameBytes+1) },
		"dots":              func(d *Desired) { d.Processes[0].IF = ".." },
		"negative instance": func(d *Desired) { d.Processes[0].Instance = -1 },
		"generation 0":      func(d *Desired) { d.Processes[0].Generation = 0 },
		"role":              func(d *Desired) { d.Processes[0].Role = "boss" },
		"share":             func(d *Desired) { d.Processes[0].SharePercent = 101 },
		"relative folder":   func(d *Desired) { d.Processes[0].Dir = "models" },
		"twice":             func(d *Desired) { d.Processes = append(d.Processes, d.Processes[0]) },
		"too many": func(d *Desired) {
			for g := uint32(2); g < 20000; g++ {
				d.Processes = append(d.Processes, DesiredProcess{IF: "face", Generation: g, Role: Shadow})
			}
		},
	} {
		d := desired("m", 1)
		spoil(&d)
		if err := m.Publish(d); !errors.Is(err, ErrBadMessage) && !errors.Is(err, ErrTooLong) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func FuzzDecodeStates(f *testing.F) {
	for _, s := range []any{desired("m", 1), observed(1)} {
		b, err := json.Marshal(s)
		must.OK(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"version":11}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := decodeDesired(b); err == nil {
			if err := d.Check(); err != nil {
				t.Errorf("accepted, and then: %v", err)
			}
		}
		if o, err := decodeObserved(b); err == nil {
			if err := o.Check(); err != nil {
				t.Errorf("accepted, and then: %v", err)
			}
		}
	})
}

// FuzzFrameGuard compares the guard with a simple frame parser. However the bytes are
// split, the guard passes frames within the limits, up to the first one that exceeds
// them.
func FuzzFrameGuard(f *testing.F) {
	f.Add([]byte{0, 2, 'h', 'i', 0, 0}, uint8(1))
	f.Add(append(binary.BigEndian.AppendUint64([]byte{flagLong}, 3), "abc"...), uint8(4))
	f.Add([]byte{flagMore, 0}, uint8(9))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		g := &frameGuard{established: true}
		var got error
		for rest := b; len(rest) > 0 && got == nil; {
			n := min(int(step)+1, len(rest))
			got = g.check(rest[:n])
			rest = rest[n:]
		}
		if want := badFrame(b); want != (got != nil) {
			t.Errorf("% x in steps of %d: got %v, want an error: %v", b, int(step)+1, got, want)
		}
	})
}

func badFrame(b []byte) bool {
	for len(b) > 0 {
		if b[0] != 0 && b[0] != flagLong {
			return true
		}
		header, size := 2, uint64(0)
		if b[0] == flagLong {
			header = 9
		}
		if len(b) < header {
			return false
		}
		if header == 9 {
			size = binary.BigEndian.Uint64(b[1:])
		} else {
			size = uint64(b[1])
		}
		if size > maxMessageBytes {
			return true
		}
		b = b[header:]
		b = b[min(uint64(len(b)), size):]
	}
	return false
}
