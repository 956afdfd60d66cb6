package control

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/unixsock"
	"golang.org/x/sys/unix"
)

// startPair returns both ends of a child link, after the handshake.
func startPair(t *testing.T) (*Parent, *Child) {
	t.Helper()
	p, f := pair(t)
	must.OK(t, p.Order(Order{Do: DoStart, Start: &Start{IF: "face", Instance: 1, Generation: 3, AttachSocket: "/run/a", CPUs: 2}}))
	c, err := NewChild(f)
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	n, err := p.ReadNotice()
	if err != nil || n.State != Starting || n.PID != os.Getpid() || n.Version != Version {
		t.Fatalf("handshake %+v, %v", n, err)
	}
	return p, c
}

func pair(t *testing.T) (*Parent, *os.File) {
	t.Helper()
	own, f, err := unixsock.Pair()
	must.OK(t, err)
	p, err := NewParent(own, false)
	must.OK(t, err)
	t.Cleanup(func() { p.Close(); f.Close() })
	return p, f
}

// The reader closes its end when the child has gone; an order at that moment finds the same cause.
func TestOrderOnClosedLink(t *testing.T) {
	p, _ := startPair(t)
	must.OK(t, p.Close())
	if err := p.Order(Order{Do: DoDrain}); !errors.Is(err, ErrHungUp) {
		t.Errorf("order: %v, want %v", err, ErrHungUp)
	}
}

func TestChildLink(t *testing.T) {
	invariants(t)
	p, c := startPair(t)
	if s := c.Start(); s.IF != "face" || s.Instance != 1 || s.Generation != 3 || s.CPUs != 2 {
		t.Errorf("started as %+v", s)
	}
	orders := []Order{
		{Do: DoWake, SharePercent: 30, Governor: true, PartialWarmUp: true, Environment: map[string]string{"A": "b"}},
		{Do: DoShare, SharePercent: 40, SMGroups: []int{0, 3}}, {Do: DoDrain},
	}
	for _, o := range orders {
		must.OK(t, p.Order(o))
	}
	for _, want := range orders {
		if got := <-c.Orders(); !reflect.DeepEqual(got, want) {
			t.Errorf("order came as %+v, want %+v", got, want)
		}
	}
	want := Notice{State: Ready, PersistentBytes: 5, EphemeralBytes: 7, WarmupMillis: 1.5, Batches: []int{1, 2}, WarmingUp: true, SMs: 24, SMGroups: []int{0, 3}}
	must.OK(t, c.Notify(want))
	if got, err := p.ReadNotice(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("notice came as %+v, %v", got, err)
	}
}

func TestOrdersClose(t *testing.T) {
	invariants(t)
	p, c := startPair(t)
	p.Close()
	if _, ok := <-c.Orders(); ok {
		t.Error("an order from nobody")
	}
}

func TestParentEOF(t *testing.T) {
	invariants(t)
	p, c := startPair(t)
	c.Close()
	if _, err := p.ReadNotice(); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
	if _, ok := <-c.Orders(); ok {
		t.Error("an order after Close")
	}
}

func TestChildClose(t *testing.T) {
	invariants(t)
	p, c := startPair(t)
	for range 10 {
		must.OK(t, p.Order(Order{Do: DoDrain}))
	}
	c.Close()
}

func TestChildVersion(t *testing.T) {
	invariants(t)
	p, f := pair(t)
	fmt.Fprintln(rawEnd(p), `{"do":"start","start":{"version":13,"later":true}}`)
	_, err := NewChild(f)
	want := fmt.Sprintf("orchestrator has control version 13, this program has %d; run one version of Penstock", Version)
	var v *VersionError
	if !errors.As(err, &v) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	n, err := p.ReadNotice()
	if err != nil || n.State != Failed || n.Reason != want {
		t.Errorf("the orchestrator is told %+v, %v", n, err)
	}
}

func TestParentVersion(t *testing.T) {
	invariants(t)
	p, f := pair(t)
	fmt.Fprintln(f, `{"version":13,"pid":1,"state":"starting","later":true}`)
	_, err := p.ReadNotice()
	if want := fmt.Sprintf("child has control version 13, this program has %d; run one version of Penstock", Version); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestParentBadNotice(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"no JSON":        {"boo\n", ErrBadMessage},
		"unknown field":  {`{"version":12,"state":"ready","mood":"good"}` + "\n", ErrBadMessage},
		"unknown state":  {`{"version":12,"state":"tired"}` + "\n", ErrBadMessage},
		"too long":       {strings.Repeat("x", maxChildBytes+1), ErrTooLong},
		"half a message": {`{"version":12`, ErrBadMessage},
	} {
		t.Run(name, func(t *testing.T) {
			invariants(t)
			p, f := pair(t)
			io.WriteString(f, c.text)
			f.Close()
			if _, err := p.ReadNotice(); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestChildBadOrder(t *testing.T) {
	for _, line := range []string{"boo", `{"do":"dance"}`, `{"do":"wake","share_percent":-1}`, `{"do":"start"}`, `{"do":"drain","x":1}`} {
		t.Run(line, func(t *testing.T) {
			invariants(t)
			p, c := startPair(t)
			fmt.Fprintln(rawEnd(p), line)
			if o, ok := <-c.Orders(); ok {
				t.Errorf("nonsense passed as %+v", o)
			}
		})
	}
}

func TestChildBadStart(t *testing.T) {
	for _, line := range []string{"boo", `{"do":"drain"}`, `{"do":"start"}`, `{"do":"drain","start":{"version":12}}`} {
		t.Run(line, func(t *testing.T) {
			invariants(t)
			p, f := pair(t)
			fmt.Fprintln(rawEnd(p), line)
			if c, err := NewChild(f); err == nil {
				c.Close()
				t.Error("started")
			}
		})
	}
}

func TestChildStartTimeout(t *testing.T) {
	invariants(t)
	_, f := pair(t)
	if _, err := NewChild(f); !errors.Is(err, ErrPeerTimeout) {
		t.Errorf("got %v, want ErrPeerTimeout", err)
	}
}

func TestOrderTimeout(t *testing.T) {
	invariants(t)
	p, _ := pair(t)
	for {
		if err := p.Order(Order{Do: DoShare, SharePercent: 1}); err != nil {
			if !errors.Is(err, ErrPeerTimeout) {
				t.Errorf("got %v, want ErrPeerTimeout", err)
			}
			return
		}
	}
}

// startWorker returns both ends of a worker's link, after the handshake.
func startWorker(t *testing.T) (*Parent, *Child) {
	t.Helper()
	p, f := pair(t)
	must.OK(t, p.Order(Order{Do: DoStart, Start: &Start{Worker: "cold", CPUs: 2}}))
	w, err := NewChild(f)
	must.OK(t, err)
	t.Cleanup(func() { w.Close() })
	notice(t, p, Notice{Version: Version, PID: os.Getpid(), State: Starting})
	return p, w
}

// startMember starts a member of a worker.
func startMember(t *testing.T, p *Parent, w *Child, name string) *Child {
	t.Helper()
	must.OK(t, p.Order(Order{Do: DoStart, Member: name, Start: &Start{IF: name, Generation: 1}}))
	m := <-w.Members()
	if m.Start().IF != name {
		t.Fatalf("member started as %+v, want %s", m.Start(), name)
	}
	notice(t, p, Notice{Version: Version, PID: os.Getpid(), State: Starting, Member: name})
	return m
}

// notice reads the next notice and compares it.
func notice(t *testing.T, p *Parent, want Notice) {
	t.Helper()
	if got, err := p.ReadNotice(); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("read notice %+v, %v, want %+v", got, err, want)
	}
}

func TestMembers(t *testing.T) {
	invariants(t)
	p, w := startWorker(t)
	face, fashion := startMember(t, p, w, "face"), startMember(t, p, w, "fashion")

	// fashion leaves its orders unread, which delays neither face nor the worker.
	for _, o := range []Order{{Do: DoShare, SharePercent: 5, Member: "fashion"}, {Do: DoWake, Member: "face"}, {Do: DoDrain}} {
		must.OK(t, p.Order(o))
	}
	if o := <-face.Orders(); o.Do != DoWake || o.Member != "face" {
		t.Errorf("face got %+v", o)
	}
	if o := <-w.Orders(); o.Do != DoDrain {
		t.Errorf("worker got %+v", o)
	}
	must.OK(t, face.Notify(Notice{State: Loaded}))
	notice(t, p, Notice{State: Loaded, Member: "face"})
	must.OK(t, face.Exit(errors.New("no such model")))
	notice(t, p, Notice{State: Failed, Reason: "no such model", Exited: true, Member: "face"})

	// An order after the exit is answered with an exit; the name may be used again.
	must.OK(t, p.Order(Order{Do: DoReport, Member: "face"}))
	notice(t, p, Notice{State: Stopped, Exited: true, Member: "face"})
	face = startMember(t, p, w, "face")
	must.OK(t, face.Exit(errors.New(strings.Repeat("\x01", maxChildBytes))))
	notice(t, p, Notice{State: Failed, Reason: strings.Repeat("\x01", maxReasonBytes), Exited: true, Member: "face"})
	face = startMember(t, p, w, "face")
	p.Close()
	if o := <-fashion.Orders(); o.SharePercent != 5 {
		t.Errorf("fashion got %+v", o)
	}
	for _, c := range []*Child{face, fashion, w} {
		if o, ok := <-c.Orders(); ok {
			t.Errorf("order %+v after the orchestrator's end", o)
		}
	}
	if _, ok := <-w.Members(); ok {
		t.Error("member after the orchestrator's end")
	}
}

// TestMembersBadOrder sends orders after which a worker must end.
func TestMembersBadOrder(t *testing.T) {
	start := Order{Do: DoStart, Member: "face", Start: &Start{IF: "face", Generation: 1}}
	for name, orders := range map[string][]Order{
		"start twice":   {start},
		"no start":      {{Do: DoStart, Member: "fashion"}},
		"unknown order": {{Do: "dance", Member: "face"}},
		"orders unread": slices.Repeat([]Order{{Do: DoShare, SharePercent: 1, Member: "face"}}, maxUnread+1),
	} {
		t.Run(name, func(t *testing.T) {
			invariants(t)
			p, w := startWorker(t)
			face := startMember(t, p, w, "face")
			for _, o := range orders {
				must.OK(t, p.Order(o))
			}
			if o, ok := <-w.Orders(); ok {
				t.Errorf("worker got %+v, want the end of its orders", o)
			}
			for range face.Orders() { // until it is closed
			}
		})
	}
	t.Run("no worker", func(t *testing.T) {
		invariants(t)
		p, c := startPair(t)
		must.OK(t, p.Order(start))
		if o, ok := <-c.Orders(); ok {
			t.Errorf("process got %+v, want the end of its orders", o)
		}
	})
}

func TestOpenChildNotStarted(t *testing.T) {
	devNull, err := os.Open(os.DevNull)
	must.OK(t, err)
	defer devNull.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must.OK(t, err)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	for what, fd := range map[string]int{"a file": int(devNull.Fd()), "a datagram socket": fds[0], "nothing": 1 << 19} {
		if err := checkInherited(fd); !errors.Is(err, ErrNotStarted) {
			t.Errorf("with %s as the descriptor: %v", what, err)
		}
	}
}

func FuzzReadNotice(f *testing.F) {
	f.Add([]byte(`{"version":12,"pid":1,"state":"starting"}`))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, c := pair(t)
		defer p.Close()
		go func() { c.Write(b); c.Close() }()
		for {
			n, err := p.ReadNotice()
			if err != nil {
				return
			}
			if !n.State.Known() {
				t.Fatalf("accepted %+v", n)
			}
		}
	})
}

// rawEnd lets a test write data that is no valid Order.
func rawEnd(p *Parent) io.Writer { return p.l }
