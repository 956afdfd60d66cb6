package weights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/internal/unixsock"
)

// patience bounds waits for things that should happen at once.
const patience = 20 * time.Second

// memfds is a loader without a GPU: its memory is a memfd.
type memfds struct {
	loads atomic.Int32
	full  atomic.Bool // no memory while there are other files
	gate  chan struct{}
	fail  error
}

func (m *memfds) load(_ context.Context, file *os.File) (Loaded, *os.File, error) {
	m.loads.Add(1)
	if m.gate != nil {
		<-m.gate
	}
	if m.fail != nil {
		return Loaded{}, nil, m.fail
	}
	if m.full.Swap(false) {
		return Loaded{}, nil, errors.New(outOfMemory + "none")
	}
	b, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
	if err != nil {
		return Loaded{}, nil, err
	}
	fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	if err != nil {
		return Loaded{}, nil, err
	}
	f := os.NewFile(uintptr(fd), "memory")
	if _, err := f.Write(b); err != nil {
		return Loaded{}, nil, errors.Join(err, f.Close())
	}
	return Loaded{Bytes: int64(len(b)), MemoryBytes: int64(len(b)), CRC: crc32.Checksum(b, castagnoli)}, f, nil
}

// harness is a weight server that runs until the test ends.
type harness struct {
	t       *testing.T
	socket  string
	stop    func()
	log     bytes.Buffer
	mu      sync.Mutex
	now     control.WeightsHeld
	reports int
}

func hold(t *testing.T, dir string, o Options, loader *memfds) *harness {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &harness{t: t, socket: filepath.Join(dir, "w.sock")}
	o.Socket, o.Log = h.socket, zerolog.New(zerolog.SyncWriter(&h.log))
	o.Report = func(now control.WeightsHeld) {
		h.mu.Lock()
		h.now, h.reports = now, h.reports+1
		h.mu.Unlock()
	}
	done := make(chan error, 1)
	go func() {
		if loader == nil {
			done <- Serve(ctx, o)
			return
		}
		if o.Linger == 0 {
			o.Linger = time.Hour
		}
		done <- (&server{o: o, loader: loader}).run(ctx)
	}()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(h.stop)
	h.until("it listens", func() bool { return h.reports > 0 })
	return h
}

func (h *harness) until(what string, is func() bool) {
	h.t.Helper()
	if !wait.Until(func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return is()
	}) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.t.Fatalf("not in time: %s; it holds %+v", what, h.now)
	}
}

func (h *harness) files(n int) {
	h.t.Helper()
	h.until(fmt.Sprint(n, " files"), func() bool { return h.now.Files == n })
}

func fileOf(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	must.OK(t, os.WriteFile(path, content, 0o600))
	return path
}

func (h *harness) get(file string) *serverLease {
	h.t.Helper()
	l, err := getWeights(h.socket, file, patience)
	must.OK(h.t, err)
	h.t.Cleanup(func() { l.Close() })
	return l
}

func content(t *testing.T, l *serverLease) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(l.memory, 0, l.Bytes))
	must.OK(t, err)
	return string(b)
}

func TestSharedFile(t *testing.T) {
	dir, loader := t.TempDir(), &memfds{gate: make(chan struct{})}
	h := hold(t, dir, Options{}, loader)
	file := fileOf(t, dir, "a", []byte("weights"))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l, err := getWeights(h.socket, file, patience)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			if l.Bytes != 7 || l.CRC != crc32.Checksum([]byte("weights"), castagnoli) || content(t, l) != "weights" {
				t.Errorf("%+v", l.Loaded)
			}
		})
	}
	close(loader.gate)
	wg.Wait()
	if n := loader.loads.Load(); n != 1 {
		t.Errorf("it was loaded %d times", n)
	}
	h.files(1)
	// The same file under another name is the same.
	link := filepath.Join(dir, "link")
	must.OK(t, os.Link(file, link))
	// A link changes the file's times, and with them the kernel's description of it.
	h.get(link)
	h.get(file)
	if n := loader.loads.Load(); n != 2 {
		t.Errorf("it was loaded %d times", n)
	}
}

func TestRewrittenFile(t *testing.T) {
	dir, loader := t.TempDir(), new(memfds)
	h := hold(t, dir, Options{}, loader)
	file := fileOf(t, dir, "a", []byte("before"))
	before := h.get(file)
	must.OK(t, os.Remove(file))
	after := h.get(fileOf(t, dir, "a", []byte("after!")))
	if content(t, before) != "before" || content(t, after) != "after!" {
		t.Errorf("%q and %q", content(t, before), content(t, after))
	}
	h.files(2)
}

func TestLinger(t *testing.T) {
	dir := t.TempDir()
	h := hold(t, dir, Options{Linger: 20 * time.Millisecond}, new(memfds))
	one, two := h.get(fileOf(t, dir, "a", []byte("a"))), h.get(fileOf(t, dir, "b", []byte("bb")))
	h.until("both", func() bool { return h.now == control.WeightsHeld{Files: 2, Bytes: 3} })
	must.OK(t, one.Close())
	h.until("one", func() bool { return h.now == control.WeightsHeld{Files: 1, Bytes: 2} })
	must.OK(t, two.Close())
	h.files(0)
	h.stop()
	if log := h.log.String(); strings.Contains(log, "warn") || !strings.Contains(log, "freed unused weights") {
		t.Errorf("it said %s", log)
	}
}

// Unused memory is freed at once if there is none for another file.
func TestMemoryPressure(t *testing.T) {
	dir, loader := t.TempDir(), new(memfds)
	h := hold(t, dir, Options{Linger: time.Hour}, loader)
	h.get(fileOf(t, dir, "a", []byte("a"))).Close()
	kept := h.get(fileOf(t, dir, "b", []byte("b")))
	h.until("a is not used", func() bool { return h.now.Files == 2 })
	waitUnused(t, h, loader, dir)
	if content(t, kept) != "b" {
		t.Error("what is used has gone")
	}
}

// waitUnused requests files while there is no memory, until the server has noticed that a is not
// used.
func waitUnused(t *testing.T, h *harness, loader *memfds, dir string) {
	t.Helper()
	for i := 0; ; i++ {
		loader.full.Store(true)
		l, err := getWeights(h.socket, fileOf(t, dir, fmt.Sprint("c", i), []byte("c")), patience)
		if err == nil {
			defer l.Close()
			h.files(2)
			return
		}
		if !errors.Is(err, errRefused) || i > 1000 {
			t.Fatal(err)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	dir := t.TempDir()
	h := hold(t, dir, Options{}, &memfds{fail: errors.New(outOfMemory + "cuMemCreate")})
	file := fileOf(t, dir, "a", []byte("a"))
	for range 2 { // the server tries each time
		if _, err := getWeights(h.socket, file, patience); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "cuMemCreate") {
			t.Errorf("%v", err)
		}
	}
	h.files(0)
}

// Any error text of a loader becomes a reason of one line.
func TestRefusalReasons(t *testing.T) {
	dir := t.TempDir()
	for _, reason := range []string{strings.Repeat("<", 5000), strings.Repeat("\xff", 5000), strings.Repeat("\u2028", 5000), strings.Repeat("two\nlines\x00", 500)} {
		h := hold(t, t.TempDir(), Options{}, &memfds{fail: errors.New(reason)})
		_, err := getWeights(h.socket, fileOf(t, dir, "a", []byte("a")), patience)
		if !errors.Is(err, errRefused) || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%.10q...: %v", reason, err)
		}
	}
}

// Processes that have mapped memory keep it when the server ends. The next server begins with no
// files.
func TestServerEnds(t *testing.T) {
	dir := t.TempDir()
	h := hold(t, dir, Options{}, new(memfds))
	file := fileOf(t, dir, "a", []byte("weights"))
	l := h.get(file)
	h.stop()
	if content(t, l) != "weights" {
		t.Error("the memory has gone")
	}
	if _, err := getWeights(h.socket, file, patience); err == nil || errors.Is(err, errRefused) {
		t.Errorf("without a server: %v", err)
	}
	if h := hold(t, dir, Options{}, new(memfds)); content(t, h.get(file)) != "weights" {
		t.Error("the next server has other weights")
	}
}

// The first processes may be faster than the server that starts with them.
func TestServerStarts(t *testing.T) {
	dir := t.TempDir()
	file := fileOf(t, dir, "a", []byte("weights"))
	missed, got := make(chan struct{}), make(chan error)
	go func() {
		for n := 0; ; n++ {
			began := time.Now()
			l, err := getWeights(filepath.Join(dir, "w.sock"), file, patience)
			starting := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
			if starting && time.Since(began) >= startTimeout { // else it did not wait
				if n == 0 {
					close(missed)
				}
				continue // it was even slower
			}
			if err == nil {
				err = l.Close()
			}
			got <- err
			return
		}
	}()
	select {
	case <-missed:
	case err := <-got:
		t.Fatalf("before it starts: %v", err)
	}
	hold(t, dir, Options{}, new(memfds))
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A server that is killed while a process waits for a file counts as absent.
func TestServerHangsUp(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "w.sock")
	for what, received := range map[string]bool{"it has the request": true, "it has not read the question": false} {
		l, err := listen(socket)
		must.OK(t, err)
		got := make(chan error)
		go func() {
			_, err := getWeights(socket, fileOf(t, dir, "a", []byte("a")), patience)
			got <- err
		}()
		c, err := l.AcceptUnix()
		must.OK(t, err)
		if received {
			var a request
			file, err := newLink(c).receive(&a)
			must.OK(t, err)
			file.Close()
		}
		c.Close()
		l.Close()
		if err := <-got; err == nil || errors.Is(err, errRefused) || !strings.Contains(err.Error(), "without an answer") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestServerTimeout(t *testing.T) {
	dir, loader := t.TempDir(), &memfds{gate: make(chan struct{})}
	h := hold(t, dir, Options{}, loader)
	if _, err := getWeights(h.socket, fileOf(t, dir, "a", []byte("a")), 10*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("%v", err)
	}
	close(loader.gate)
	h.files(1)
}

// dial returns a connection to the server.
func (h *harness) dial() *net.UnixConn {
	h.t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: h.socket})
	must.OK(h.t, err)
	h.t.Cleanup(func() { c.Close() })
	must.OK(h.t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

func TestInvalidRequests(t *testing.T) {
	dir, loader := t.TempDir(), new(memfds)
	h := hold(t, dir, Options{}, loader)
	file := opened(t, fileOf(t, dir, "a", []byte("a")))
	empty := opened(t, fileOf(t, dir, "empty", nil))
	folder := opened(t, dir)
	sparse := fileOf(t, dir, "sparse", []byte("x"))
	if err := os.Truncate(sparse, maxFileBytes+1); err != nil {
		t.Skipf("not on this machine: no large files: %v", err)
	}
	large := opened(t, sparse)
	read, write, err := os.Pipe()
	must.OK(t, err)
	defer read.Close()
	defer write.Close()

	valid := request{Version: version}
	raw := func(b []byte, files ...*os.File) func(*net.UnixConn) error {
		return func(c *net.UnixConn) error {
			return unixsock.Send(c, b, files...)
		}
	}
	for reason, say := range map[string]func(*net.UnixConn) error{
		"no file":       func(c *net.UnixConn) error { return newLink(c).send(valid) },
		"not a regular": func(c *net.UnixConn) error { return newLink(c).send(valid, read) },
		"regular file":  func(c *net.UnixConn) error { return newLink(c).send(valid, folder) },
		"empty":         func(c *net.UnixConn) error { return newLink(c).send(valid, empty) },
		"at most":       func(c *net.UnixConn) error { return newLink(c).send(valid, large) },
		"version 7":     func(c *net.UnixConn) error { return newLink(c).send(request{Version: 7}, file) },
		"protocol":      raw([]byte("x"), file),
		"files than 1":  raw([]byte(`{"version":1}`), file, file),
		"more than":     raw(bytes.Repeat([]byte(" "), maxMessage+1), file),
		"timeout":       func(*net.UnixConn) error { return nil }, // sends nothing
	} {
		t.Run(reason, func(t *testing.T) {
			a, memory := h.response(t, say)
			if memory != nil || !strings.Contains(a.Refused, reason) {
				t.Errorf("answered %+v", a)
			}
		})
	}
	if loader.loads.Load() != 0 {
		t.Errorf("%d of them were loaded", loader.loads.Load())
	}
	if got := content(t, h.get(file.Name())); got != "a" {
		t.Errorf("after all that it answers %q", got)
	}

	t.Run("descriptors are closed", func(t *testing.T) {
		before := openfiles.Count(t)
		for range 50 {
			h.response(t, raw([]byte(`{"version":1}`), file, folder, empty))
		}
		h.until("descriptors are closed", func() bool { return openfiles.Count(t) <= before+2 })
	})
}

// opened opens a file or folder until the test ends.
func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	must.OK(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// response sends a request on a new connection, and returns the response.
func (h *harness) response(t *testing.T, say func(*net.UnixConn) error) (a response, memory *os.File) {
	t.Helper()
	c := h.dial()
	defer c.Close()
	must.OK(t, say(c))
	memory, err := newLink(c).receive(&a)
	must.OK(t, err)
	return a, memory
}

// The server closes the connection of a process that sends more than its request.
func TestUnexpectedMessage(t *testing.T) {
	dir := t.TempDir()
	h := hold(t, dir, Options{Linger: 10 * time.Millisecond}, new(memfds))
	l := h.get(fileOf(t, dir, "a", []byte("a")))
	h.files(1)
	must.Get(l.conn.Write([]byte("more")))(t)
	h.files(0)
	if n, err := l.conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d, %v", n, err)
	}
}

func TestListenErrors(t *testing.T) {
	dir := t.TempDir()
	path := fileOf(t, dir, "w.sock", []byte("somebody's"))
	if err := Serve(t.Context(), Options{Socket: path}); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("%v", err)
	}
}

func TestServeWithoutSocket(t *testing.T) {
	if err := Serve(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), "want a socket") {
		t.Errorf("%v", err)
	}
}

func TestLoaderStartFails(t *testing.T) {
	dir := t.TempDir()
	file := fileOf(t, dir, "a", []byte("a"))
	for _, command := range [][]string{{"/nowhere/loader"}, {"/bin/true"}, {"/bin/false"}} {
		h := hold(t, t.TempDir(), Options{Loader: command}, nil)
		if _, err := getWeights(h.socket, file, patience); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "loader") {
			t.Errorf("%v: %v", command, err)
		}
		h.stop()
	}
}
