package onnxtest

import (
	"errors"
	"hash/crc32"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// RunShared is Run with shared weights: mapped read-only, like those of the weight server.
// It prepares models in a folder of the test. Answers must equal those with private
// weights bit for bit; Run compares those with the CPU's.
func RunShared(t *testing.T, cards ...*models.Card) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, card := range cards {
		t.Run(card.Name, func(t *testing.T) {
			b := newSharedHarness(t, card)
			run(t, b, shared...)
			run(t, b, test{"EvictedWeightsReturn", evicts})
			b.close()
		})
	}
}

// asPrivate compares every size's answers with those of a framework that has its own
// weights. Everything that one of them allocates is freed with the bed.
func asPrivate(t *testing.T, b *harness) {
	over := b.gpu
	own := b.framework(b.uuid, func(slot int) uintptr { return b.streams[slot].Handle() }, nil)
	defer func() { b.gpu = over }()
	for _, n := range b.card.Batches {
		x, input := b.make(t, n), b.noise(n, uint64(n))
		b.gpu = own
		want := b.answer(t, 0, n, x, input)
		b.gpu = over
		if got := b.answer(t, 0, n, x, input); !slices.Equal(got, want) {
			t.Errorf("batch of %d: %.2g from that of private weights", n, furthest(want, got))
		}
	}
}

// evicts compares every size's answers before and after its weights were evicted and loaded again.
// It logs how fast they are loaded.
func evicts(t *testing.T, b *harness) {
	over := b.gpu
	defer func() { b.gpu, b.evicts = over, false }()
	b.evicts = true
	b.gpu = b.framework(b.uuid, func(slot int) uintptr { return b.streams[slot].Handle() }, nil)
	model := b.gpu.(framework.Evictable)
	weights := model.EvictableBytes()
	if weights == 0 {
		t.Fatal("weights cannot be evicted")
	}
	var want [][]float32
	var tensors []tensors
	for _, n := range b.card.Batches {
		x := b.make(t, n)
		tensors = append(tensors, x)
		want = append(want, b.answer(t, 0, n, x, b.noise(n, uint64(n))))
	}
	var evicted, loaded []time.Duration
	for range 5 {
		before, _, err := b.context.Memory()
		must.OK(t, err)
		began := time.Now()
		must.OK(t, model.Evict())
		evicted = append(evicted, time.Since(began))
		if free, _, err := b.context.Memory(); err != nil || free-before < weights/2 {
			t.Errorf("%d bytes are free, %d before %d were evicted: %v", free, before, weights, err)
		}
		began = time.Now()
		must.OK(t, model.Load())
		loaded = append(loaded, time.Since(began))
		for i, n := range b.card.Batches {
			b.infer(t, 0, n)
			if got := b.read(t, tensors[i]); !slices.Equal(got, want[i]) {
				t.Errorf("batch of %d: %.2g from the answer before the weights were evicted", n, furthest(want[i], got))
			}
		}
	}
	took := slices.Min(loaded)
	t.Logf("%.1f MB evicted in %v, loaded in %v (%.1f GB/s)", float64(weights)/1e6, slices.Min(evicted), took, float64(weights)/float64(took.Nanoseconds()))
}

// held implements Environment.Weights within this process.
type held struct {
	context *cuda.Context
	files   map[string]framework.Weights
	arenas  []*cuda.Arena
	asked   int
}

// weights puts a file into an arena, and maps the arena a second time for reading.
func (h *held) weights(file string) (framework.Weights, error) {
	h.asked++
	if w, ok := h.files[file]; ok {
		return w, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return framework.Weights{}, err
	}
	var w framework.Weights
	err = h.onThread(func() error {
		a, err := h.context.NewArena(len(content))
		if err != nil {
			return err
		}
		h.arenas = append(h.arenas, a)
		host, err := h.context.AllocateHost(len(content))
		if err != nil {
			return err
		}
		defer h.context.FreeHost(host)
		copy(host, content)
		s := cuda.Stream{}
		if err := errors.Join(s.Copy(a.Pointer(), cuda.At(host), len(host)), s.Synchronize()); err != nil {
			return err
		}
		fd, err := a.ExportFD()
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "memory")
		defer f.Close()
		only, err := h.context.ImportArena(fd, a.Bytes(), true)
		if err != nil {
			return err
		}
		h.arenas = append(h.arenas, only)
		w = framework.Weights{Address: uintptr(only.Pointer()), Bytes: len(content), CRC32C: crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli))}
		return nil
	})
	if err == nil {
		h.files[file] = w
	}
	return w, err
}

func (h *held) onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- errors.Join(h.context.Bind(), f())
	}()
	return <-done
}

func (h *held) close() error {
	return h.onThread(func() error {
		var errs []error
		for _, a := range h.arenas {
			errs = append(errs, a.Close())
		}
		return errors.Join(errs...)
	})
}
