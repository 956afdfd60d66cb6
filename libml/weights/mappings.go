package weights

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/penstock/penstock/cuda"
)

// requestTimeout is how long a process waits for the weight server before it loads private
// weights: somewhat longer than a loader may take.
const requestTimeout = loadTimeout + 2*time.Second

// Mappings are the files that this process has mapped. Any goroutine may use them.
type Mappings struct {
	socket string

	mu      sync.Mutex
	context *cuda.Context
	files   map[string]*mapping
	closed  bool
}

type mapping struct {
	lease *serverLease
	arena *cuda.Arena
}

// NewMappings returns mappings of the weight server at a socket. It does not connect.
func NewMappings(socket string) *Mappings {
	return &Mappings{socket: socket, files: make(map[string]*mapping)}
}

// Map returns a file's address in the memory of the GPU that this process sees, and the
// weight server's description of it. Both hold until Close. Kernels can read the memory; a
// kernel that writes to it faults. Map makes or joins the primary context.
func (m *Mappings) Map(file string) (cuda.Pointer, Loaded, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, Loaded{}, errors.New("mappings of weights are closed")
	}
	if k := m.files[file]; k != nil {
		return k.arena.Pointer(), k.lease.Loaded, nil
	}
	lease, err := getWeights(m.socket, file, requestTimeout)
	if err != nil {
		return 0, Loaded{}, err
	}
	arena, err := m.mapLeased(lease)
	if err != nil {
		return 0, Loaded{}, errors.Join(fmt.Errorf("map weights %s: %w", file, err), lease.Close())
	}
	m.files[file] = &mapping{lease, arena}
	return arena.Pointer(), lease.Loaded, nil
}

// mapLeased maps the memory of a lease, read-only.
func (m *Mappings) mapLeased(lease *serverLease) (arena *cuda.Arena, err error) {
	err = onThread(func() (err error) {
		if m.context == nil {
			if m.context, err = openFirst(); err != nil {
				return err
			}
		}
		if err := m.context.Bind(); err != nil {
			return err
		}

		raw, err := lease.memory.SyscallConn()
		if err != nil {
			return err
		}
		var inner error
		err = raw.Control(func(fd uintptr) { arena, inner = m.context.ImportArena(int(fd), int(lease.MemoryBytes), true) })
		return errors.Join(err, inner)
	})
	return arena, err
}

// Close unmaps all files and ends their leases. No kernel that reads them may be in flight.
func (m *Mappings) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.context == nil {
		return nil
	}
	return onThread(func() error {
		errs := []error{m.context.Bind()}
		for file, k := range m.files {
			errs = append(errs, k.arena.Close(), k.lease.Close())
			delete(m.files, file)
		}
		errs = append(errs, m.context.Close())
		m.context = nil
		return errors.Join(errs...)
	})
}

// openFirst opens the context of the first GPU that the process sees.
func openFirst() (*cuda.Context, error) {
	first, err := cuda.Find("cuda")
	if err != nil {
		return nil, err
	}
	return first.OpenContext()
}

// onThread calls f on a new thread, which ends afterwards. Contexts are bound to threads, and
// the caller's thread may be bound to another one.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
