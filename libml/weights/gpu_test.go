//go:build cgo

package weights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// TestMain runs a loader if a weight server starts it as one.
func TestMain(m *testing.M) {
	syscall.Umask(0o022) // runtime folders of tests must be private
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "load":
			if Load() != nil {
				os.Exit(1)
			}
			os.Exit(0)
		case "hold": // SOCKET LOADER...
			if Serve(context.Background(), Options{Socket: os.Args[2], Loader: os.Args[3:]}) != nil {
				os.Exit(1)
			}
			os.Exit(0)
		case "ask": // SOCKET FILE
			_, err := getWeights(os.Args[2], os.Args[3], patience)
			fmt.Println(err)
			os.Exit(0)
		case "shorten": // FILE
			shorten(os.Args[2])
			os.Exit(0)
		}
	}
	cudafake.Main(m)
}

func loading() Options {
	return Options{Loader: []string{os.Args[0], "load"}, Linger: 20 * time.Millisecond}
}

// noise returns random bytes, more than two of the loader's chunks.
func noise(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 2*chunkBytes+12345)
	r := rand.NewChaCha8([32]byte{1})
	must.Get(r.Read(b))(t)
	return b
}

func TestMap(t *testing.T) {
	cudafake.Check(t)
	dir, want := t.TempDir(), noise(t)
	file := fileOf(t, dir, "weights", want)
	h := hold(t, dir, loading(), nil)
	m := NewMappings(h.socket)
	at, loaded, err := m.Map(file)
	must.OK(t, err)
	if loaded.Bytes != int64(len(want)) || !bytes.Equal(cuda.Bytes(at, len(want)), want) {
		t.Errorf("other weights: %+v", loaded)
	}
	if again, _, err := m.Map(file); err != nil || again != at {
		t.Errorf("again at %#x and not %#x: %v", again, at, err)
	}
	other := NewMappings(h.socket)
	elsewhere, _, err := other.Map(file)
	if err != nil || elsewhere == at {
		t.Errorf("another maps it at %#x: %v", elsewhere, err)
	}
	h.files(1)
	// The memory stays without the server, and is freed with its last user.
	h.stop()
	if !bytes.Equal(cuda.Bytes(elsewhere, len(want)), want) {
		t.Error("the memory changes when the server ends")
	}
	for _, m := range []*Mappings{m, other, m} {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := m.Map(file); err == nil {
		t.Error("it is mapped after Close")
	}
}

func TestUnmapFreesMemory(t *testing.T) {
	cudafake.Check(t)
	dir := t.TempDir()
	h := hold(t, dir, loading(), nil)
	m := NewMappings(h.socket)
	if _, _, err := m.Map(fileOf(t, dir, "weights", []byte("weights"))); err != nil {
		t.Fatal(err)
	}
	must.OK(t, m.Close())
	h.files(0)
}

func TestLoaderErrors(t *testing.T) {
	dir := t.TempDir()
	file := fileOf(t, dir, "weights", noise(t))
	t.Setenv("PENSTOCK_FAKE", string(cudafake.Memory(4<<20)))
	h := hold(t, dir, loading(), nil)
	if _, err := getWeights(h.socket, file, patience); !errors.Is(err, errRefused) || !bytes.Contains([]byte(err.Error()), []byte("OUT_OF_MEMORY")) {
		t.Errorf("%v", err)
	}
	t.Setenv("PENSTOCK_LIBCUDA", filepath.Join(dir, "no.so"))
	if _, err := getWeights(h.socket, file, patience); !errors.Is(err, errRefused) || !bytes.Contains([]byte(err.Error()), []byte("no.so")) {
		t.Errorf("%v", err)
	}
}

// Another user is refused even if the socket's file lets it connect.
func TestOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "w")
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := hold(t, dir, Options{}, new(memfds))
	file := fileOf(t, dir, "weights", []byte("weights"))
	program, err := os.ReadFile("/proc/self/exe")
	must.OK(t, err)
	asks := filepath.Join(dir, "asks")
	must.OK(t, errors.Join(os.WriteFile(asks, program, 0o755), os.Chmod(asks, 0o755), os.Chmod(dir, 0o755), os.Chmod(h.socket, 0o666), os.Chmod(file, 0o644)))
	cmd := exec.Command(asks, "ask", h.socket, file)
	cmd.Dir = dir
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	said, err := cmd.Output()
	if err != nil || !bytes.Contains(said, []byte("belongs to user 65534")) {
		t.Errorf("it was told %q, %v", said, err)
	}
	h.get(file) // root may
}

// If the server is killed while a file is loaded, its loader ends too, and the next server can
// start.
func TestKilledServer(t *testing.T) {
	dir := t.TempDir()
	file, socket, pidFile := fileOf(t, dir, "weights", []byte("weights")), filepath.Join(dir, "w.sock"), filepath.Join(dir, "loader")
	must.OK(t, unix.Mkfifo(pidFile, 0o600))
	server := exec.Command(os.Args[0], "hold", socket, "/bin/sh", "-c", `echo $$ >"$0" && exec sleep 1000`, pidFile)
	must.OK(t, server.Start())
	got := make(chan error, 1)
	go func() {
		for {
			_, err := getWeights(socket, file, patience)
			if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) { // it does not listen yet
				got <- err
				return
			}
		}
	}()
	defer server.Process.Kill()
	written := make(chan []byte, 1)
	go func() {
		output, _ := os.ReadFile(pidFile) // when there is a loader
		written <- output
	}()
	var output []byte
	select {
	case output = <-written:
	case err := <-got:
		t.Fatalf("no loader was started: %v", err)
	case <-time.After(patience):
		t.Fatalf("no loader was started within %v", patience)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(output)))
	must.OK(t, err)
	loader, err := unix.PidfdOpen(pid, 0)
	must.OK(t, err)
	defer unix.Close(loader)
	must.OK(t, server.Process.Kill())
	if err := <-got; err == nil || !strings.Contains(err.Error(), "without an answer") {
		t.Errorf("the process gets %v", err)
	}
	server.Wait()
	ended := []unix.PollFd{{Fd: int32(loader), Events: unix.POLLIN}}
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Poll(ended, int(patience.Milliseconds()))
	}
	if n != 1 || err != nil {
		t.Errorf("the loader is left: %v", err)
		unix.Kill(pid, unix.SIGKILL)
	}
	h := hold(t, dir, loading(), nil)
	h.get(file)
}

// A process that cannot map the memory does not stay its user.
func TestMapFails(t *testing.T) {
	dir := t.TempDir()
	h := hold(t, dir, loading(), nil)
	cudafake.Apply(t, cudafake.Refuse("cuMemImportFromShareableHandle", 0, cuda.OutOfMemory))
	m := NewMappings(h.socket)
	if _, _, err := m.Map(fileOf(t, dir, "weights", []byte("weights"))); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("%v", err)
	}
	h.files(0)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// A file is truncated while a chunk of it is copied to memory that is freed then. A child process
// loads it, because a loader's context stays open until its process ends.
func TestTruncatedFile(t *testing.T) {
	file := fileOf(t, t.TempDir(), "weights", noise(t))
	child := exec.Command(os.Args[0], "shorten", file)
	child.Env = append(os.Environ(), cudafake.Env(cudafake.Hold, cudafake.Late(50*time.Millisecond)))
	output, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "fewer than its") || !strings.HasSuffix(string(output), "\nlosses 0\n") {
		t.Errorf("%v: %s", err, output)
	}
}

// shorten loads a file and truncates it to one chunk. The copy of that chunk cannot end before, and
// the third chunk is read after that.
func shorten(file string) {
	runtime.LockOSThread()
	f, err := os.Open(file)
	if err == nil {
		go func() {
			wait.Until(func() bool { return cudafake.Now().Events >= 2 }) // the file's size is known then
			os.Truncate(file, chunkBytes)
			if err := cudafake.Change(cudafake.Release); err != nil {
				fmt.Println(err)
			}
		}()
		_, _, err = load(f)
	}
	fmt.Println(err)
	time.Sleep(200 * time.Millisecond) // for late work
	fmt.Println("losses", cudafake.Now().Lost)
}

// bound returns a context that is bound to the test's thread. At the end of the test nothing may be left.
func bound(t *testing.T) *cuda.Context {
	t.Helper()
	cudafake.Check(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	c, err := openFirst()
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	must.OK(t, c.Bind())
	return c
}

// TestHostMemory loads and evicts files in turn, with room to pin two of three.
func TestHostMemory(t *testing.T) {
	c := bound(t)
	dir, pins := t.TempDir(), NewHostMemory(2<<20, slog.New(slog.DiscardHandler))
	var files []*Resident
	for i, size := range []int{1 << 20, 1 << 20, 1 << 20, 3 << 20} {
		r, err := OpenResident(c, fileOf(t, dir, strconv.Itoa(i), bytes.Repeat([]byte{byte(i + 1)}, size)), pins)
		must.OK(t, err)
		defer r.Close()
		files = append(files, r)
	}
	pinned := func() (list []int) {
		for i, r := range files {
			if r.host != nil {
				list = append(list, i)
			}
			if r.unpinnable {
				t.Errorf("file %d counts as one that the driver cannot pin", i)
			}
		}
		return list
	}
	evict, load := (*Resident).Evict, (*Resident).Load
	for _, step := range []struct {
		file int
		do   func(*Resident) error
		want []int
	}{
		{0, evict, []int{0, 1}}, // the first two were pinned when they were opened
		{2, evict, []int{0, 1}},
		{2, load, []int{0, 2}}, // 1 is on the GPU, so it gives way
		{2, evict, []int{0, 2}},
		{1, evict, []int{0, 2}},
		{1, load, []int{1, 2}}, // 0 and 2 are evicted; 0 was loaded first
		{3, evict, []int{1, 2}},
		{3, load, []int{1, 2}}, // larger than the limit
		{0, load, []int{0, 2}},
	} {
		r := files[step.file]
		must.OK(t, step.do(r))
		if got := pinned(); !slices.Equal(got, step.want) {
			t.Fatalf("file %d: pinned are %v, want %v", step.file, got, step.want)
		}
		if r.onGPU && !bytes.Equal(cuda.Bytes(r.Pointer(), 10), bytes.Repeat([]byte{byte(step.file + 1)}, 10)) {
			t.Errorf("file %d: other bytes", step.file)
		}
	}
	if n := cudafake.Now().Registrations; n != 2 {
		t.Errorf("%d files are registered, want 2", n)
	}

	// Files that are being copied stay pinned.
	for _, i := range []int{0, 1} {
		must.Get(pins.pin(files[i], true))(t)
	}
	if host, err := pins.pin(files[2], true); err != nil || host != nil {
		t.Errorf("next to two copies: got %d bytes, %v; want no room", len(host), err)
	}
	pins.done(files[0], true)
	if host, err := pins.pin(files[2], true); err != nil || host == nil || files[0].host != nil {
		t.Errorf("after a copy: got %d bytes, %v", len(host), err)
	}
}

// TestNoPinnedMemory refuses to pin files, and memory to copy them with, after the first file was pinned.
// Loads read the others, and the log says so once.
func TestNoPinnedMemory(t *testing.T) {
	c, dir := bound(t), t.TempDir()
	var log bytes.Buffer
	const size = 2*chunkBytes + 12345
	pins := NewHostMemory(2*size, slog.New(zerolog.NewSlogHandler(zerolog.New(&log))))
	var files []*Resident
	want := noise(t)
	for i := range 3 {
		if i == 1 {
			cudafake.Apply(t, cudafake.Refuse("cuMemHostRegister_v2", 0, cuda.NotSupported), cudafake.Refuse("cuMemHostAlloc", 0, cuda.OutOfMemory))
		}
		r, err := OpenResident(c, fileOf(t, dir, strconv.Itoa(i), want), pins)
		must.OK(t, err)
		defer r.Close()
		files = append(files, r)
	}
	for range 2 {
		for i, r := range files {
			must.OK(t, errors.Join(r.Evict(), r.Load()))
			if !bytes.Equal(cuda.Bytes(r.Pointer(), len(want)), want) || (r.host != nil) != (i == 0) {
				t.Errorf("file %d: other bytes, or pinned: %v", i, r.host != nil)
			}
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "NOT_SUPPORTED") {
		t.Errorf("log has %d lines, want one: %s", n, &log)
	}
}
