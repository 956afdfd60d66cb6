package unixsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
)

const patience = 30 * time.Second

// connect returns both ends of a connection, and fails t if a descriptor is left over at
// its end.
func connect(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	before := openfiles.Count(t)
	fa, fb, err := Pair()
	must.OK(t, err)
	ends := [2]*net.UnixConn{}
	for i, f := range []*os.File{fa, fb} {
		if ends[i], err = Conn(f); err != nil {
			t.Fatal(err)
		}
		ends[i].SetDeadline(time.Now().Add(patience))
	}
	t.Cleanup(func() {
		ends[0].Close()
		ends[1].Close()
		if after := openfiles.Count(t); after != before {
			t.Errorf("%d descriptors are open, want %d", after, before)
		}
	})
	return ends[0], ends[1]
}

// TestMain starts the runtime's poller, which opens descriptors that stay open.
func TestMain(m *testing.M) {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	r.Close()
	w.Close()
	os.Exit(m.Run())
}

// temporary returns open files with the given contents.
func temporary(t *testing.T, contents ...string) (files []*os.File) {
	t.Helper()
	for i, text := range contents {
		f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint(i)))
		must.OK(t, err)
		t.Cleanup(func() { f.Close() })
		must.Get(f.WriteString(text))(t)
		files = append(files, f)
	}
	return files
}

func TestReceive(t *testing.T) {
	a, b := connect(t)
	want := []string{"first", "second", "third"}
	sent := temporary(t, want...)
	must.OK(t, Send(a, []byte("hello"), sent...))

	message, files, err := Receive(b, make([]byte, 100), len(want))
	if err != nil || string(message) != "hello" || len(files) != len(want) {
		t.Fatalf("received %q, %d files, %v", message, len(files), err)
	}
	for i, f := range files {
		got := make([]byte, 100)
		n, _ := f.ReadAt(got, 0)
		if string(got[:n]) != want[i] {
			t.Errorf("file %d has %q, want %q", i, got[:n], want[i])
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("file %d would be inherited by children (%v)", i, err)
		}
		f.Close()
	}
	if _, err := sent[0].Stat(); err != nil {
		t.Errorf("sent file: %v, want it open", err)
	}
}

func TestReceiveErrors(t *testing.T) {
	tests := map[string]struct {
		bytes, files int // in the message; Receive accepts 10 bytes and maxFiles files
		maxFiles     int
		want         error
	}{
		"bytes":                 {11, 0, 2, ErrTooLong},
		"bytes with files":      {11, 2, 2, ErrTooLong},
		"one file more":         {1, 3, 2, ErrTooLong},
		"many files more":       {1, MaxFiles, 2, ErrTooLong},
		"most files":            {1, MaxFiles, MaxFiles, nil},
		"empty with file":       {0, 1, 1, io.EOF},
		"none wanted":           {10, 2, 0, nil},
		"none wanted and bytes": {11, 2, 0, ErrTooLong},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := connect(t)
			r, w, err := os.Pipe()
			must.OK(t, err)
			defer r.Close()
			if test.bytes == 0 {
				err = sendEmpty(a, w)
			} else {
				err = Send(a, make([]byte, test.bytes), repeat(w, test.files)...)
			}
			must.OK(t, err)
			w.Close()

			message, files, err := Receive(b, make([]byte, 10), test.maxFiles)
			if !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if err == nil && (len(message) != test.bytes || len(files) != min(test.files, test.maxFiles)) {
				t.Errorf("received %d bytes and %d files", len(message), len(files))
			}
			if err != nil && (message != nil || files != nil) {
				t.Errorf("received %q and %d files with an error", message, len(files))
			}
			for _, f := range files {
				f.Close()
			}
			// The end of the pipe shows that no copy of w is open.
			r.SetReadDeadline(time.Now().Add(patience))
			if _, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("read pipe: %v, want %v", err, io.EOF)
			}
		})
	}
}

// TestReceiveNoFiles sets RLIMIT_NOFILE so low that only some of the files can be
// opened: the message arrives without any, and the next one is complete.
func TestReceiveNoFiles(t *testing.T) {
	for opened := range 3 {
		t.Run(fmt.Sprint(opened), func(t *testing.T) {
			a, b := connect(t)
			for range 2 {
				must.OK(t, Send(a, []byte("x"), temporary(t, "a", "b", "c")...))
			}
			unlimit := limitFiles(t, opened)
			message, files, err := Receive(b, make([]byte, 10), 3)
			unlimit()
			if !errors.Is(err, ErrFilesLost) || string(message) != "x" || files != nil {
				t.Errorf("received %q, %d files, %v; want the message and %v", message, len(files), err, ErrFilesLost)
			}

			message, files, err = Receive(b, make([]byte, 10), 3)
			if err != nil || string(message) != "x" || len(files) != 3 {
				t.Errorf("then received %q, %d files, %v", message, len(files), err)
			}
			for _, f := range files {
				f.Close()
			}
		})
	}
}

// limitFiles lets the process open n more files until the returned function is called.
func limitFiles(t *testing.T, n int) func() {
	t.Helper()
	var was unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	// The kernel hands out the lowest free number.
	var free []int
	for range n + 1 {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must.OK(t, err)
		free = append(free, fd)
	}
	for _, fd := range free {
		unix.Close(fd)
	}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free[n]), Max: was.Max}))
	restore := func() {
		must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	}
	t.Cleanup(restore)
	return restore
}

func TestReceiveEnd(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		a, b := connect(t)
		a.Close()
		if _, _, err := Receive(b, make([]byte, 10), 1); err != io.EOF {
			t.Errorf("receive: %v, want %v", err, io.EOF)
		}
	})
	t.Run("closed over unread messages", func(t *testing.T) {
		a, b := connect(t)
		must.OK(t, Send(b, []byte("unread"), temporary(t, "a")...))
		a.Close()
		if _, _, err := Receive(b, make([]byte, 10), 1); err != io.EOF {
			t.Errorf("receive: %v, want %v", err, io.EOF)
		}
	})
	t.Run("our end", func(t *testing.T) {
		_, b := connect(t)
		b.Close()
		if _, _, err := Receive(b, make([]byte, 10), 1); !errors.Is(err, net.ErrClosed) {
			t.Errorf("receive: %v, want %v", err, net.ErrClosed)
		}
	})
}

func TestSendErrors(t *testing.T) {
	a, _ := connect(t)
	file := temporary(t, "a")[0]
	if err := Send(a, []byte("x"), repeat(file, MaxFiles+1)...); !errors.Is(err, ErrTooLong) {
		t.Errorf("send too many files: %v, want %v", err, ErrTooLong)
	}
	file.Close()
	if err := Send(a, []byte("x"), file); err == nil {
		t.Error("a closed file was sent")
	}
}

// repeat returns n times f.
func repeat(f *os.File, n int) []*os.File {
	files := make([]*os.File, n)
	for i := range files {
		files[i] = f
	}
	return files
}

func TestConnRefuses(t *testing.T) {
	before := openfiles.Count(t)
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	f, err := udp.File()
	must.OK(t, err)
	udp.Close()
	if c, err := Conn(f); err == nil {
		t.Errorf("%v was taken for a Unix socket", c.LocalAddr())
	}
	if c, err := Conn(temporary(t, "")[0]); err == nil {
		t.Errorf("%v was taken for a socket", c.LocalAddr())
	}
	if after := openfiles.Count(t); after != before {
		t.Errorf("%d descriptors are open, want %d", after, before)
	}
}

func TestPeer(t *testing.T) {
	a, _ := connect(t)
	peer, err := Peer(a, os.Getuid())
	if err != nil || int(peer.Pid) != os.Getpid() || int(peer.Uid) != os.Getuid() {
		t.Errorf("peer %+v, %v; want this process", peer, err)
	}
	a.Close()
	if _, err := Peer(a, os.Getuid()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("peer after close: %v, want %v", err, net.ErrClosed)
	}
}

func TestPeerOfAnotherUser(t *testing.T) {
	name := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: "@" + name})
	must.OK(t, err)
	defer l.Close()
	const other = 65534
	dialed := make(chan error, 1)
	go func() {
		if os.Getuid() == 0 {
			// The user of this thread alone; it ends with the goroutine.
			runtime.LockOSThread()
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, other, other, other); errno != 0 {
				dialed <- errno
				return
			}
		}
		c, err := net.DialUnix("unixpacket", nil, l.Addr().(*net.UnixAddr))
		if err == nil {
			defer c.Close()
		}
		dialed <- err
	}()
	must.OK(t, <-dialed)
	c, err := l.AcceptUnix()
	must.OK(t, err)
	defer c.Close()

	accepted, refused := os.Getuid(), os.Getuid()+1
	if os.Getuid() == 0 {
		accepted, refused = other, 0
	}
	if peer, err := Peer(c, accepted); err != nil || int(peer.Uid) != accepted {
		t.Errorf("peer %+v, %v; want user %d", peer, err, accepted)
	}
	want := fmt.Sprintf("process %d belongs to user %d, want user %d", os.Getpid(), accepted, refused)
	if _, err := Peer(c, refused); err == nil || err.Error() != want {
		t.Errorf("peer: %v, want %s", err, want)
	}
}
