package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/zmtptest"
)

func desired(id string, seq uint64) Desired {
	return Desired{ManagerID: id, Seq: seq, AttachSocket: "/run/a", Devices: []string{"cpu"}, Processes: []DesiredProcess{
		{IF: "face", Generation: 1, Role: Serve, Device: "cpu", Terms: Terms{SharePercent: 30}},
	}}
}

func observed(ack uint64) Observed {
	return Observed{OrchestratorID: "o", ManagerID: "m", AckSeq: ack, Devices: []ObservedDevice{{Device: "cpu", Mechanism: "governor"}}, CPUs: 1, Processes: []ObservedProcess{
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
	eventually(t, "the second is refused", func() bool { return log.Count("one orchestrator is connected already") > 0 })
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
	return zmtptest.Shake(t, c, zmq4.Pair), c
}

func TestLinkVersion(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	var log logged
	m := listen(t, dir, log.logger())
	z, c := dialStranger(t, dir)
	must.OK(t, z.SendMsg(zmq4.NewMsgString(`{"version":13,"a_field_of_the_future":[]}`)))
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	want := fmt.Sprintf("orchestrator has control version 13, this program has %d; run one version of Penstock", Version)
	eventually(t, "the log names both versions", func() bool { return log.Count(want) == 1 })

	// The peer reconnects again and again, as soon as it sees the end. The log line does
	// not repeat, and no other peer takes its place.
	for range 300 {
		z, c := dialStranger(t, dir)
		must.OK(t, z.SendMsg(zmq4.NewMsgString(`{"version":13}`)))
		io.Copy(io.Discard, c)
	}
	if n := log.Count(want); n != 1 || log.Count("one orchestrator is connected already") != 0 {
		t.Errorf("the refusal is logged %d times, want once; said %d times that another one is connected, want never", n, log.Count("one orchestrator is connected already"))
	}
	if m.PeerAlive() {
		t.Error("a peer that was refused is alive")
	}
}

func TestLinkBadMessages(t *testing.T) {
	peers := zmtptest.HostilePeers(linkLimits)
	for name, c := range map[string]struct{ text, want string }{
		"not JSON":            {"hello", "bad message"},
		"no version":          {"{}", "version 0"},
		"an unknown field":    {`{"version":12,"orchestrator_id":"o","bogus":1}`, "bogus"},
		"a wrong type":        {`{"version":12,"processes":7}`, "bad message"},
		"a second value":      {`{"version":12}{}`, "bad message"},
		"an unknown state":    {`{"version":12,"orchestrator_id":"o","processes":[{"if":"f","generation":1,"state":"happy"}]}`, "happy"},
		"a name with a slash": {`{"version":12,"orchestrator_id":"o","processes":[{"if":"../f","generation":1,"state":"ready"}]}`, "letters, digits"},
	} {
		peers = append(peers, zmtptest.Hostile{Name: name, Bytes: zmtptest.Frame(0, c.text), Want: c.want})
	}
	for _, peer := range peers {
		t.Run(peer.Name, func(t *testing.T) {
			invariants(t)
			dir := socketDir(t)
			var log logged
			m := listen(t, dir, log.logger())
			peer.Send(t, m.listener.Addr(), zmq4.Pair)
			eventually(t, "the log says "+peer.Want, func() bool { return log.Count(peer.Want) == 1 })
			// An honest peer can connect afterwards.
			o := dial(t, dir, zerolog.Nop())
			publish(t, o, observed(3))
			waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 3 })
		})
	}
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
		for range maxConnections - 1 {
			connect(t, dir)
		}

		start := time.Now()
		o := dial(t, dir, zerolog.Nop())
		publish(t, o, observed(1))
		waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 1 })
		// Handshakes in sequence would take maxConnections-1 times zmtp.HandshakeTimeout. The limit is just
		// below that, for busy machines.
		if waited := time.Since(start); waited > (maxConnections-2)*zmtp.HandshakeTimeout {
			t.Errorf("the peer was heard after %v", waited)
		}
	})

	t.Run("failed handshakes", func(t *testing.T) {
		dir := socketDir(t)
		listen(t, dir, zerolog.Nop())
		before := descriptors(t)
		for range 50 {
			c := connect(t, dir)
			c.Write(make([]byte, zmtptest.GreetingBytes))
			zmtptest.WaitEnd(t, c)
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
	f.Add([]byte(`{"version":12}`))
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
