package serve

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/unixsock"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/libml/internal/worker"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// harness plays the surroundings of a process: the manager's side of its function, the orchestrator, and what it
// shares with other processes.
type harness struct {
	*functiontest.Function
	device   string                  // as Start.Device; of a process on GPU it is the name of that
	split    []int                   // the orchestrator's groups, if they differ
	streams  int                     // Attached.Streams
	wake     control.Order           // of linked's process: level and guarantee
	grant    func(*control.Attached) // may be nil
	timing   timing                  // of the processes
	worker   *worker.Worker          // of the processes; may be nil
	opened   func(control.Start)     // called when a process opens its device; may be nil
	copies   bool                    // the argument of that call
	turns    *shm.Turns              // of the GPU; nil: processes take no turns
	busy     *shm.BusyFile           // of the GPU; nil: processes have no bit
	busyPath string                  // its file
}

func newHarness(t testing.TB, card *models.Card) *harness {
	t.Helper()
	return &harness{Function: functiontest.New(t, card), device: framework.DeviceCPU}
}

// newGPUHarness returns a harness with a GPU that serves one process.
func newGPUHarness(t testing.TB, card *models.Card) *harness {
	t.Helper()
	return &harness{Function: functiontest.NewGPU(t, card)}
}

// identity returns the Start message of a process.
func (h *harness) identity(generation uint32) control.Start {
	start := control.Start{IF: "test", Generation: generation, CPUs: 1, Device: h.device, GroupSMs: h.split}
	if h.GPU != nil {
		start.Device, start.GroupSMs = h.GPU.Name(), functiontest.Groups
		if h.split != nil {
			start.GroupSMs = h.split
		}
	}
	return start
}

// open is the opener of the processes.
func (h *harness) open(start control.Start, in models.Input, o gpu.Options) (device.Device, error) {
	h.copies = o.Copy
	if h.opened != nil {
		h.opened(start)
	}
	if h.GPU != nil && start.Device == h.GPU.Name() {
		return h.GPU, nil
	}
	return openDevice(start, in, o)
}

// attached returns the manager's grant and its files.
func (h *harness) attached() (control.Attached, []*os.File) {
	h.TB.Helper()
	card, err := json.Marshal(h.Card)
	if err != nil {
		h.TB.Fatal(err)
	}
	geometry, err := json.Marshal(h.Geometry)
	if err != nil {
		h.TB.Fatal(err)
	}
	attached := control.Attached{
		Version: control.Version, Card: card, Geometry: geometry, Setup: control.Setup{SLONanos: int64(h.SLO), Streams: h.streams},
		TensorBytes: int64(h.Tensors.Size()), SlabBytes: []int64{int64(h.Slab.Size())},
	}
	if h.grant != nil {
		h.grant(&attached)
	}
	files := []*os.File{
		h.Table.File(), h.Channel.RingFile(), h.Channel.RepliesFile(), h.Tensors.File(), h.Slab.File(),
	}
	if h.turns != nil {
		entry, err := h.turns.Join()
		if err != nil {
			h.TB.Fatal(err)
		}
		attached.Turn = &entry
		files = append(files, h.turns.File())
	}
	if h.busy != nil {
		word, locks, err := h.busy.Files()
		if err != nil {
			h.TB.Fatal(err)
		}
		h.TB.Cleanup(func() { locks.Close() })
		attached.Busy = true
		files = append(files, word, locks)
	}
	return attached, files
}

// linked returns a process that has linked its model and is warmed up. The test is its thread.
func (h *harness) linked(f *functiontest.Fake) *process {
	h.TB.Helper()
	runtime.LockOSThread()
	h.TB.Cleanup(runtime.UnlockOSThread)
	attached, files := h.attached()
	for i := range files {
		files[i] = h.Dup(files[i])
	}
	framework, err := f.Build(h.Card)
	must.OK(h.TB, err)
	p := &process{
		log: slog.New(slog.DiscardHandler), start: h.identity(1), open: h.open,
		card: h.Card, framework: framework, slo: h.SLO,
	}
	must.OK(h.TB, p.load())
	p.orders.follow(h.wake)
	_, err = p.link(h.wake, attached, files)
	must.OK(h.TB, err)
	h.TB.Cleanup(p.memory.close)
	f.Serve()
	return p
}

// child is a process of the harness's function that runs inside the test process, from the
// handshake to its end.
type child struct {
	t       testing.TB
	parent  *control.Parent
	manager *control.AttachConn
	notices chan control.Notice // closed when the link ends
	ended   <-chan error
}

// connect runs the program at the other end of a link with the orchestrator.
func connect(t testing.TB, run func(*control.Child) error) (*control.Parent, <-chan error) {
	t.Helper()
	own, end, err := unixsock.Pair()
	must.OK(t, err)
	parent, err := control.NewParent(own, false)
	must.OK(t, err)
	t.Cleanup(func() { parent.Close() })
	ended := make(chan error, 1)
	go func() {
		link, err := control.NewChild(end)
		if err != nil {
			ended <- err
			return
		}
		defer link.Close()
		ended <- run(link)
	}()
	return parent, ended
}

// listen plays the manager for a process. accept waits until it attaches, and grants it the function's memory. tamper,
// if not nil, changes the grant.
func (h *harness) listen(identity *control.Start) (accept func(tamper func(*control.Attached)) *control.AttachConn) {
	t := h.TB
	t.Helper()
	dir, err := os.MkdirTemp("", "ps") // a socket's path is short
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	identity.AttachSocket = filepath.Join(dir, "attach")
	listener, err := control.ListenAttach(identity.AttachSocket, os.Getuid(), zerolog.Nop())
	must.OK(t, err)
	t.Cleanup(func() { listener.Close() })
	return func(tamper func(*control.Attached)) *control.AttachConn {
		t.Helper()
		conn, hello, err := listener.Accept()
		must.OK(t, err)
		t.Cleanup(func() {
			if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
		if hello.IF != identity.IF || hello.Generation != identity.Generation {
			t.Errorf("a process attaches as %+v", hello)
		}
		attached, files := h.attached()
		if tamper != nil {
			tamper(&attached)
		}
		must.OK(t, conn.Grant(attached, files))
		return conn
	}
}

// start starts a process and gives it its memory over the same links as a real one.
func (h *harness) start(generation uint32, build framework.Build, tamper func(*control.Attached)) *child {
	h.TB.Helper()
	identity := h.identity(generation)
	accept := h.listen(&identity)
	c := &child{t: h.TB, notices: make(chan control.Notice, 64)}
	c.parent, c.ended = connect(h.TB, func(link *control.Child) error {
		return (&process{child: link, log: slog.New(slog.DiscardHandler), open: h.open, timing: h.timing, worker: h.worker}).run(context.Background(), build)
	})
	c.order(control.Order{Do: control.DoStart, Start: &identity})
	go func() {
		defer close(c.notices)
		for {
			n, err := c.parent.ReadNotice()
			if err != nil {
				return
			}
			c.notices <- n
		}
	}()
	c.manager = accept(tamper)
	return c
}

func (c *child) order(o control.Order) {
	c.t.Helper()
	if err := c.parent.Order(o); err != nil {
		c.t.Fatal(err)
	}
}

// await waits for a state.
func (c *child) await(state control.State) control.Notice {
	c.t.Helper()
	return c.awaitNotice(string(state), func(n control.Notice) bool { return n.State == state })
}

// awaitNotice waits for the first notice for which has returns true.
func (c *child) awaitNotice(want string, has func(control.Notice) bool) control.Notice {
	c.t.Helper()
	limit := time.After(functiontest.Patience)
	for {
		select {
		case n, ok := <-c.notices:
			if !ok {
				c.t.Fatalf("the process ended before it reported %s: %v", want, c.end())
			}
			if has(n) {
				return n
			}
		case <-limit:
			c.t.Fatalf("the process does not report %s", want)
		}
	}
}

// end waits until the process ends.
func (c *child) end() error {
	c.t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(functiontest.Patience):
		c.t.Fatal("the process does not end")
		return nil
	}
}
