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
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/unixsock"
)

var testIdentity = Attach{IF: "face", Generation: 3}

func listenAttach(t *testing.T, log zerolog.Logger) (*AttachListener, string) {
	t.Helper()
	path := AttachSocketPath(socketDir(t))
	l, err := ListenAttach(path, os.Getuid(), log)
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
	return l, path
}

// serveGrants answers the next process with grant.
func serveGrants(t *testing.T, l *AttachListener, grant func(*AttachConn, Attach) error) <-chan *AttachConn {
	conns := make(chan *AttachConn, 1)
	go func() {
		conn, a, err := l.Accept()
		if err == nil {
			err = grant(conn, a)
		}
		if err != nil {
			t.Error(err)
		}
		conns <- conn
	}()
	return conns
}

func attached(t *testing.T) (*AttachConn, *Attachment) {
	t.Helper()
	l, path := listenAttach(t, zerolog.Nop())
	conns := serveGrants(t, l, func(c *AttachConn, _ Attach) error { return c.Grant(Attached{}, nil) })
	_, _, mine, err := DialAttach(path, testIdentity)
	must.OK(t, err)
	theirs := <-conns
	t.Cleanup(func() { mine.Close(); theirs.Close() })
	return theirs, mine
}

func TestAttachDescriptors(t *testing.T) {
	invariants(t)
	l, path := listenAttach(t, zerolog.Nop())
	var files []*os.File
	for i := range 5 {
		f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint(i)))
		must.OK(t, err)
		defer f.Close()
		fmt.Fprint(f, "memory ", i)
		files = append(files, f)
	}
	granted := Attached{Setup: Setup{SLONanos: 25e6, Batching: Batching{Rule: BatchFixed, Size: 8, Delay: 5e6}}, Card: json.RawMessage(`{"name":"face"}`), SlabBytes: []int64{1 << 20}}
	conns := serveGrants(t, l, func(c *AttachConn, a Attach) error {
		if a.IF != "face" || a.Generation != 3 || a.PID != os.Getpid() {
			t.Errorf("attached as %+v", a)
		}
		return c.Grant(granted, files)
	})
	got, fds, mine, err := DialAttach(path, testIdentity)
	must.OK(t, err)
	defer func() { (<-conns).Close() }()
	defer mine.Close()
	if got.SLONanos != granted.SLONanos || string(got.Card) != string(granted.Card) || got.SlabBytes[0] != 1<<20 {
		t.Errorf("granted %+v", got)
	}
	if len(fds) != len(files) {
		t.Fatalf("%d descriptors came, want %d", len(fds), len(files))
	}
	for i, f := range fds {
		b := make([]byte, 20)
		n, _ := f.ReadAt(b, 0)
		if want := fmt.Sprint("memory ", i); string(b[:n]) != want {
			t.Errorf("descriptor %d reads %q, want %q", i, b[:n], want)
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would be inherited by children (%v)", i, err)
		}
		f.Close()
	}
}

func TestAttachLargeCard(t *testing.T) {
	invariants(t)
	l, path := listenAttach(t, zerolog.Nop())
	card, err := json.Marshal(strings.Repeat("label ", 100<<10/6))
	must.OK(t, err)
	conns := serveGrants(t, l, func(c *AttachConn, _ Attach) error { return c.Grant(Attached{Card: card}, nil) })
	got, _, mine, err := DialAttach(path, testIdentity)
	must.OK(t, err)
	if string(got.Card) != string(card) {
		t.Error("the card came in another shape")
	}
	mine.Close()
	(<-conns).Close()
}

func TestAttachRefused(t *testing.T) {
	invariants(t)
	l, path := listenAttach(t, zerolog.Nop())
	conns := serveGrants(t, l, func(c *AttachConn, _ Attach) error { return c.Refuse("generation 3 is not expected") })
	_, _, _, err := DialAttach(path, testIdentity)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "generation 3 is not expected") {
		t.Errorf("got %v", err)
	}
	<-conns
}

func TestReport(t *testing.T) {
	invariants(t)
	theirs, mine := attached(t)
	want := Report{Generation: 3, Limit: 4.5, TailNanos: 7, Fit: FitUnder, IdleNanos: -1, Handovers: 2}
	must.OK(t, mine.Report(want))
	if got, err := theirs.ReadReport(); err != nil || got != want {
		t.Errorf("report came as %+v, %v", got, err)
	}
}

func TestReportBehind(t *testing.T) {
	invariants(t)
	_, mine := attached(t)
	for {
		if err := mine.Report(Report{}); err != nil {
			if !errors.Is(err, ErrBehind) {
				t.Errorf("got %v, want ErrBehind", err)
			}
			return
		}
	}
}

func TestAttachEnd(t *testing.T) {
	invariants(t)
	theirs, mine := attached(t)
	mine.Close()
	if _, err := theirs.ReadReport(); err != io.EOF {
		t.Errorf("the manager got %v, want io.EOF", err)
	}
	theirs, mine = attached(t)
	theirs.Close()
	<-mine.Gone()
}

func TestAcceptClosed(t *testing.T) {
	invariants(t)
	l, path := listenAttach(t, zerolog.Nop())
	c, err := net.Dial("unixpacket", path) // a silent peer must not delay Close
	must.OK(t, err)
	defer c.Close()
	done := make(chan error)
	go func() {
		_, _, err := l.Accept()
		done <- err
	}()
	l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

func TestAttachStaleSocket(t *testing.T) {
	invariants(t)
	path := AttachSocketPath(socketDir(t))
	stale, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	must.OK(t, err)
	stale.SetUnlinkOnClose(false)
	stale.Close()
	l, err := ListenAttach(path, os.Getuid(), zerolog.Nop())
	must.OK(t, err)
	defer l.Close()
	if _, err := ListenAttach(path, os.Getuid(), zerolog.Nop()); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
}

func TestAttachStrangers(t *testing.T) {
	self := os.Getpid()
	for name, c := range map[string]struct{ packet, want string }{
		"says nothing":      {"", "peer is silent"},
		"no JSON":           {"hello", "bad message"},
		"another version":   {`{"version":13,"later":1}`, "process has control version 13, this program has 12; run one version of Penstock"},
		"another process":   {fmt.Sprintf(`{"version":12,"if":"face","generation":1,"pid":%d}`, self+1), "reports process id"},
		"a name with slash": {fmt.Sprintf(`{"version":12,"if":"a/b","generation":1,"pid":%d}`, self), "letters, digits"},
		"generation 0":      {fmt.Sprintf(`{"version":12,"if":"face","pid":%d}`, self), "generation 0"},
		"an unknown field":  {fmt.Sprintf(`{"version":12,"if":"face","generation":1,"pid":%d,"root":1}`, self), "root"},
		"too long":          {strings.Repeat("x", maxAttachBytes+1), "message too long"},
	} {
		t.Run(name, func(t *testing.T) {
			invariants(t)
			var log logged
			l, path := listenAttach(t, log.logger())
			conn, err := net.Dial("unixpacket", path)
			must.OK(t, err)
			defer conn.Close()
			if c.packet != "" {
				must.Get(conn.Write([]byte(c.packet)))(t)
			}
			answer := make([]byte, maxAttachedBytes)
			n, err := conn.Read(answer) // waits for the refusal
			if err != nil || !strings.Contains(string(answer[:n]), c.want) {
				t.Errorf("answered %q, %v; want %q in it", answer[:n], err, c.want)
			}
			eventually(t, "it is counted", func() bool { return l.Rejected() == 1 })
			if log.Count(c.want) != 1 {
				t.Errorf("not logged: %s", log.String())
			}
			// An honest process can attach afterwards.
			conns := serveGrants(t, l, func(c *AttachConn, _ Attach) error { return c.Grant(Attached{}, nil) })
			_, _, mine, err := DialAttach(path, testIdentity)
			must.OK(t, err)
			mine.Close()
			(<-conns).Close()
		})
	}
}

func TestAttachDropsDescriptors(t *testing.T) {
	invariants(t)
	theirs, mine := attached(t)
	r, w, err := os.Pipe()
	must.OK(t, err)
	must.OK(t, mine.link.Send(Report{}, w))
	w.Close()
	must.Get(theirs.ReadReport())(t)
	if _, err := r.Read(make([]byte, 1)); err != io.EOF { // otherwise a copy of w is still open
		t.Errorf("got %v, want io.EOF", err)
	}
	r.Close()
}

func TestReadReportErrors(t *testing.T) {
	for _, packet := range []string{"boo", `{"fit":"happy"}`, `{"x":1}`, `{}{}`, strings.Repeat("x", maxAttachBytes+1)} {
		t.Run(packet[:3], func(t *testing.T) {
			invariants(t)
			theirs, mine := attached(t)
			must.Get(mine.link.Write([]byte(packet)))(t)
			if _, err := theirs.ReadReport(); !errors.Is(err, ErrBadMessage) && !errors.Is(err, ErrTooLong) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestDialAttachBadAnswer(t *testing.T) {
	invariants(t)
	path := AttachSocketPath(socketDir(t))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	must.OK(t, err)
	defer l.Close()
	r, w, err := os.Pipe()
	must.OK(t, err)
	defer r.Close()
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		c.Read(make([]byte, 1024))
		unixsock.Send(c, []byte(`{"version":13}`), w)
		w.Close()
	}()
	_, _, _, err = DialAttach(path, testIdentity)
	if want := "manager has control version 13, this program has 12; run one version of Penstock"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want io.EOF", err)
	}
}
