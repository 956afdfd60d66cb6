package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/models/picture"
)

// MemoryLimit is for debug.SetMemoryLimit of a process that is nothing but a gateway, whose budget is
// 512 MiB. It has room for the two limits below, pictures on the page and the process itself.
const MemoryLimit = 480 << 20

// The limits of memory that all requests share.
const (
	maxBodies  = 128 << 20 // bytes of bodies and frames
	maxDecoded = 320 << 20 // bytes of what is being decoded
)

// maxQueued is the max number of requests that wait for a decoder, each up to functions.MaxWait.
const maxQueued = 256

// memory is what requests share. Bodies take it as they arrive, so that a client that promises a large
// one takes none from others. Few bodies are decoded at once: more would need more memory, and take
// longer.
type memory struct {
	mu      sync.Mutex
	arrived uint64
	reading map[*buffer]bool

	bodies   *semaphore.Weighted // bytes
	decoded  *semaphore.Weighted // bytes
	decoders *semaphore.Weighted
	queue    *semaphore.Weighted
}

// newMemory leaves half of the CPUs to the functions.
func newMemory() *memory {
	return &memory{
		reading: map[*buffer]bool{},
		bodies:  semaphore.NewWeighted(maxBodies), decoded: semaphore.NewWeighted(maxDecoded),
		decoders: semaphore.NewWeighted(int64(max(1, runtime.GOMAXPROCS(0)/2))), queue: semaphore.NewWeighted(maxQueued),
	}
}

func busy(format string, a ...any) error {
	return &httpError{http.StatusServiceUnavailable, fmt.Errorf(format+", want this one later", a...)}
}

func tooLarge(bytes, most int) error {
	return &httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("body needs %d MiB when decoded, want at most %d", (bytes+1<<20-1)>>20, most>>20)}
}

// buffer is a body in memory. Its bytes count until release.
type buffer struct {
	memory *memory
	number uint64 // in the order of arrival
	data   []byte
	// reserved are bytes besides data.
	reserved int
}

func (b *buffer) release() {
	b.memory.bodies.Release(int64(cap(b.data) + b.reserved))
	b.data, b.reserved = nil, 0
}

// firstBytes is the memory of a body whose first byte has come.
const firstBytes = 32 << 10

// read reads all of a body, which has at most so many bytes; negative: maxBody.
func (m *memory) read(ctx context.Context, from io.Reader, most int64) (*buffer, error) {
	if most < 0 {
		most = maxBody
	}
	return m.load(func(b *buffer) error { return b.fill(ctx, from, most) })
}

// load makes a body by a function that reads it.
func (m *memory) load(fill func(*buffer) error) (*buffer, error) {
	b := &buffer{memory: m}
	m.mu.Lock()
	m.arrived++
	b.number = m.arrived
	m.reading[b] = true
	m.mu.Unlock()
	err := fill(b)
	m.mu.Lock()
	delete(m.reading, b)
	m.mu.Unlock()
	if err != nil {
		b.release()
		return nil, err
	}
	return b, nil
}

func (b *buffer) fill(ctx context.Context, from io.Reader, most int64) error {
	for {
		if len(b.data) == cap(b.data) {
			room := max(2*cap(b.data), firstBytes)
			if int64(room) >= most {
				room = max(int(most), len(b.data)) + 1 // one more to see the end
			}
			if err := b.grow(ctx, room); err != nil {
				return err
			}
		}
		n, err := from.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// grow moves a body to more memory.
func (b *buffer) grow(ctx context.Context, room int) error {
	if err := b.acquire(ctx, room); err != nil {
		return err
	}
	larger := make([]byte, len(b.data), room)
	copy(larger, b.data)
	b.memory.bodies.Release(int64(cap(b.data)))
	b.data = larger
	return nil
}

// reserve counts more bytes until release.
func (b *buffer) reserve(ctx context.Context, bytes int) error {
	if err := b.acquire(ctx, bytes); err != nil {
		return err
	}
	b.reserved += bytes
	return nil
}

// acquire takes memory besides what the body has. If there is none, the oldest body waits and others are refused: if all waited for each other, or all
// were refused, none would end.
func (b *buffer) acquire(ctx context.Context, bytes int) error {
	bodies := b.memory.bodies
	if needed := cap(b.data) + b.reserved + bytes; needed > maxBodies {
		return tooLarge(needed, maxBodies)
	}
	if !bodies.TryAcquire(int64(bytes)) {
		waiting, cancel := context.WithTimeout(ctx, functions.MaxWait)
		defer cancel()
		if !b.memory.oldest(b) || bodies.Acquire(waiting, int64(bytes)) != nil {
			return busy("gateway has %d MiB of other requests in memory", maxBodies>>20)
		}
	}
	return nil
}

// oldest reports whether no older body is being read.
func (m *memory) oldest(b *buffer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := range m.reading {
		if other.number < b.number {
			return false
		}
	}
	return m.reading[b]
}

// decode runs a decoder that needs so many bytes, when it is its turn.
func (m *memory) decode(ctx context.Context, bytes int, run func() error) error {
	if bytes > maxDecoded {
		return tooLarge(bytes, maxDecoded)
	}
	if !m.queue.TryAcquire(1) {
		return busy("%d other requests wait to be decoded", maxQueued)
	}
	defer m.queue.Release(1)
	turn := func(s *semaphore.Weighted, n int64) error {
		waiting, cancel := context.WithTimeout(ctx, functions.MaxWait)
		defer cancel()
		err := s.Acquire(waiting, n)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return busy("decoders had no time within %v", functions.MaxWait)
		}
		return err
	}
	if err := turn(m.decoders, 1); err != nil {
		return err
	}
	defer m.decoders.Release(1)
	if err := turn(m.decoded, int64(bytes)); err != nil {
		return err
	}
	defer m.decoded.Release(int64(bytes))
	return run()
}

// prepare decodes a photo for a function.
func (m *memory) prepare(ctx context.Context, f *functions.Function, file []byte) (p functions.Prepared, err error) {
	bytes, err := picture.Memory(file, &f.Card.Input)
	if err != nil {
		return p, err
	}
	err = m.decode(ctx, bytes, func() error {
		photo, err := picture.Decode(ctx, file)
		if err != nil {
			return err
		}
		p, err = f.Prepare(photo)
		return err
	})
	return p, err
}
