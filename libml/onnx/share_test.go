//go:build cgo

package onnx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/weights"
)

// saved returns a model as ONNX Runtime may save it, with one tensor, w, of 1,024 halves.
func saved() []byte {
	message := func(number int, data []byte) []byte {
		b := binary.AppendUvarint(nil, uint64(number)<<3|2)
		return append(binary.AppendUvarint(b, uint64(len(data))), data...)
	}
	tensor := slices.Concat([]byte{1 << 3, 4, 1 << 3, 0x80, 2, 2 << 3, 10}, message(8, []byte("w")), message(9, make([]byte, 2048)))
	return message(7, message(5, tensor))
}

// shares implements Environment.Weights with files in a fake GPU's memory.
type shares struct {
	r       *rig
	asked   []string // files, in the order of the questions
	before  func()   // called before each answer
	refuses error
	sum     uint32 // replaces the file's checksum, if not 0
	at      map[string]cuda.Pointer
}

func (s *shares) weights(file string) (framework.Weights, error) {
	s.asked = append(s.asked, file)
	if s.before != nil {
		s.before()
	}
	if s.refuses != nil {
		return framework.Weights{}, s.refuses
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return framework.Weights{}, fmt.Errorf("%w: %w", framework.ErrNoWeights, err)
	}
	if s.at[file] == 0 {
		p, err := s.r.context.Allocate(len(b))
		if err != nil {
			return framework.Weights{}, err
		}
		s.r.t.Cleanup(func() { s.r.context.Free(p) })
		s.at[file] = p
	}
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	if s.sum != 0 {
		sum = s.sum
	}
	return framework.Weights{Address: uintptr(s.at[file]), Bytes: len(b), CRC32C: sum}, nil
}

// sharingRig returns a rig with shared weights, and with prepared models in dir.
func sharingRig(t *testing.T, dir string) (*rig, *shares) {
	t.Helper()
	return sharingRigIn(t, bound(t), dir)
}

// sharingRigIn is sharingRig in a context that others may use too.
func sharingRigIn(t *testing.T, c *cuda.Context, dir string) (*rig, *shares) {
	t.Helper()
	r := newRigIn(t, c, &played{weights: 3 * mebi, optimised: saved()})
	s := &shares{r: r, at: make(map[string]cuda.Pointer)}
	r.gpu.env.Weights, r.gpu.cache = s.weights, dir
	r.gpu.version = func() string { return "1" }
	// All processes of a test use the same file.
	file := filepath.Join(dir, "model.onnx")
	if _, err := os.Stat(file); err != nil {
		b, err := os.ReadFile(r.card.Model)
		if err := errors.Join(err, os.WriteFile(file, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	r.card.Model = file
	return r, s
}

// processes runs one process after the other. They share a folder of prepared models.
func processes(t *testing.T, each ...func(*testing.T, *rig, *shares)) {
	dir := t.TempDir()
	for i, f := range each {
		t.Run(fmt.Sprintf("process %d", i+1), func(t *testing.T) {
			r, s := sharingRig(t, dir)
			f(t, r, s)
		})
	}
}

func (r *rig) logged(words string) bool { return strings.Contains(r.log.String(), words) }

// All sizes use the shared weights, in a process that prepares the model and in a later one.
func TestSharedWeights(t *testing.T) {
	processes(t, func(t *testing.T, r *rig, s *shares) {
		r.linked()
		if r.played.optimises != 1 || len(r.played.made) != 3 || len(s.asked) != 1 {
			t.Fatalf("optimised %d times, %d sessions, asked for %v", r.played.optimises, len(r.played.made), s.asked)
		}
		for _, with := range r.played.made {
			s.checkUsed(with)
		}
		r.answers(4)
	}, func(t *testing.T, r *rig, s *shares) {
		// It reads no model, does not ask the CPU, and optimises nothing.
		r.loaded()
		g := r.gpu
		if g.file.data != nil || g.shared.entry == nil || r.logged("is not asked") {
			t.Errorf("loaded: model of %d bytes, entry %v: %s", len(g.file.data), g.shared.entry != nil, r.log.String())
		}
		if len(s.asked) != 0 {
			t.Errorf("a process that sleeps asked for %v", s.asked)
		}
		r.whole()
		if r.played.optimises != 0 || len(s.asked) != 1 || g.file.data != nil || len(r.played.made[2].initializers) != 1 {
			t.Errorf("optimised %d times, asked for %v, sessions with %+v", r.played.optimises, s.asked, r.played.made)
		}
	})
}

// checkUsed fails unless a session has the shared weights.
func (s *shares) checkUsed(with settings) {
	s.r.t.Helper()
	if len(with.initializers) != 1 || with.folder != filepath.Dir(s.asked[0]) || with.nhwc {
		s.r.t.Fatalf("a session with %+v", with)
	}
	i := with.initializers[0]
	if i.name != "w" || i.at != s.at[s.asked[0]] || i.bytes != 2048 || !slices.Equal(i.shape, []int64{4, 256}) || i.element != 10 {
		s.r.t.Errorf("weights %+v, at %v", i, s.at)
	}
}

// Without a weight server that has them, the process has one copy of a prepared model's
// weights, for all sizes.
func TestOwnCopyOfWeights(t *testing.T) {
	for what, refuse := range map[string]error{
		"no shared weights": fmt.Errorf("%w: dial: no such file", framework.ErrNoWeights),
		"OUT_OF_MEMORY":     fmt.Errorf("%w: %w", framework.ErrNoWeights, &cuda.Error{Op: "cuMemImportFromShareableHandle", Code: cuda.OutOfMemory}),
	} {
		t.Run(what, func(t *testing.T) {
			r, s := sharingRig(t, t.TempDir())
			s.refuses = refuse
			r.linked()
			at := r.gpu.shared.own.readState().all.At
			for _, with := range r.played.made {
				if len(with.initializers) != 1 || with.initializers[0].at != at {
					t.Errorf("a session with %+v, own weights at %#x", with.initializers, at)
				}
			}
			if n := strings.Count(r.log.String(), "weights are not shared"); n != 1 || !r.logged(what) || len(r.played.made) != 3 {
				t.Errorf("said %d times, %d sessions: %s", n, len(r.played.made), r.log.String())
			}
		})
	}
}

// If that copy does not fit, each session has its own weights.
func TestWeightsPerSession(t *testing.T) {
	r, s := sharingRig(t, t.TempDir())
	s.refuses = framework.ErrNoWeights
	made := false
	r.played.unmade = func(settings) error { made = true; return nil }
	r.loaded()
	s.before = func() { cudafake.Set(t, cudafake.Refuse("cuMemCreate", 1, cuda.OutOfMemory)) }
	r.whole()
	for _, with := range r.played.made {
		if len(with.initializers) != 0 {
			t.Errorf("a session with %+v", with)
		}
	}
	if !made || r.gpu.shared.own != nil || !r.logged("each batch size has its own weights") {
		t.Errorf("own %v: %s", r.gpu.shared.own, r.log.String())
	}
}

// In all other cases too each session has its own weights, and the log has the reason once.
func TestUnsharedWeights(t *testing.T) {
	for what, spoil := range map[string]func(*rig, *shares){
		"it cannot be saved":       func(r *rig, _ *shares) { r.played.optimised = nil },
		"weights cannot be shared": func(r *rig, _ *shares) { r.played.optimised = []byte{7<<3 | 2, 0} },
		"not a protocol buffer":    func(r *rig, _ *shares) { r.played.optimised = []byte{0xff} },
		"is damaged":               func(_ *rig, s *shares) { s.sum = 1 },
		"not a directory":          func(r *rig, _ *shares) { r.gpu.cache = "/dev/null" },
	} {
		t.Run(what, func(t *testing.T) {
			r, s := sharingRig(t, t.TempDir())
			spoil(r, s)
			r.linked()
			for _, with := range r.played.made {
				if len(with.initializers) != 0 {
					t.Errorf("a session with %+v", with)
				}
			}
			if n := strings.Count(r.log.String(), "weights are not shared"); n != 1 || !r.logged(what) {
				t.Errorf("said %d times: %s", n, r.log.String())
			}
			if len(r.played.made) != 3 {
				t.Errorf("%d sessions", len(r.played.made))
			}
		})
	}
}

// If a session over shared weights cannot be made, it is made privately. The next process does
// not try again.
func TestSharedWeightsFailure(t *testing.T) {
	processes(t, func(t *testing.T, r *rig, _ *shares) {
		r.played.unmade = func(s settings) error {
			if len(s.initializers) > 0 {
				return &ortError{text: "no kernel"}
			}
			return nil
		}
		r.linked()
		if !r.logged("no session can use them") || len(r.played.made) != 3 {
			t.Errorf("%d sessions: %s", len(r.played.made), r.log.String())
		}
	}, func(t *testing.T, r *rig, s *shares) {
		r.linked()
		if r.played.optimises != 0 || len(s.asked) != 0 || !r.logged("weights are not shared") {
			t.Errorf("optimised %d times, asked for %v: %s", r.played.optimises, s.asked, r.log.String())
		}
	})
}

// A model cannot be captured over shared weights, nor run node by node over them. It is then
// captured over private weights: nothing of the first attempt is left.
func TestGraphAfterUnsharing(t *testing.T) {
	r, _ := sharingRig(t, t.TempDir())
	made := 0
	r.played.unmade = func(s settings) error {
		if made++; len(s.initializers) > 0 && made > 1 {
			return &ortError{text: "no place"}
		}
		return nil
	}
	r.played.unqueued = func(s settings) error {
		if len(s.initializers) > 0 {
			return s.stream.Synchronize() // refused in a capture
		}
		return nil
	}
	r.linked()
	b := r.tensors(1)
	r.configure(0, 1, b)
	ran := r.played.ran
	r.infer(0, 1)
	if r.played.ran != ran || len(r.gpu.byNode.sizes) != 0 {
		t.Errorf("it runs node by node: %v", r.gpu.byNode.sizes)
	}
}

// A model that cannot be linked in any way is not recorded as not shareable.
func TestUnlinkableModelIsNotRefused(t *testing.T) {
	processes(t, func(t *testing.T, r *rig, _ *shares) {
		r.played.unmade = func(settings) error { return &ortError{text: "no kernel"} }
		if _, err := r.loaded().f.LinkModel(); err == nil {
			t.Error("it is linked")
		}
	}, func(t *testing.T, r *rig, s *shares) {
		if r.linked(); len(s.asked) != 1 {
			t.Errorf("asked for %v: %s", s.asked, r.log.String())
		}
	})
}

func TestLostDeviceWhileSharing(t *testing.T) {
	r, s := sharingRig(t, t.TempDir())
	s.refuses = fmt.Errorf("%w: %w", framework.ErrNoWeights, cuda.ErrLost)
	if _, err := r.loaded().f.LinkModel(); !errors.Is(err, cuda.ErrLost) {
		t.Errorf("%v", err)
	}
}

// evictingRig returns a rig whose weights can be evicted, as in a worker with limited memory.
func evictingRig(t *testing.T) *rig {
	t.Helper()
	r := evictingRigIn(t, bound(t), nil)
	r.gpu.node.HostMemory = weights.NewHostMemory(0, r.gpu.env.Log)
	return r
}

// evictingRigIn is evictingRig in a context that others may use too, and with their host memory.
func evictingRigIn(t *testing.T, c *cuda.Context, pins *weights.HostMemory) *rig {
	t.Helper()
	r, _ := sharingRigIn(t, c, t.TempDir())
	r.gpu.env.Weights, r.gpu.node.Evict, r.gpu.node.HostMemory = nil, true, pins
	return r
}

// Evicted weights take no memory, and return to the same addresses. Sessions and graphs stay.
func TestEvictedWeights(t *testing.T) {
	for name, pinned := range map[string]bool{"pinned": true, "not pinned": false} {
		t.Run(name, func(t *testing.T) {
			r := evictingRig(t)
			r.loaded()
			if !pinned {
				cudafake.Set(t, cudafake.Refuse("cuMemHostRegister_v2", 1, cuda.NotSupported))
			}
			persistent, err := r.f.LinkModel()
			if err != nil {
				t.Fatal(err)
			}
			weights := r.f.EvictableBytes()
			if weights < 2048 || persistent < weights || r.logged("cannot pin") == pinned {
				t.Errorf("%d of %d bytes can be evicted: %s", weights, persistent, r.log.String())
			}
			four := r.tensors(4)
			r.configure(0, 4, four)
			at := r.gpu.shared.resident.Pointer()
			for _, with := range r.played.made {
				if len(with.initializers) != 1 || with.initializers[0].at != at {
					t.Errorf("a session with %+v, weights at %#x", with.initializers, at)
				}
			}
			want := r.weights()
			sessions := len(r.played.made)
			for i := range byte(3) {
				held := cudafake.Now().Bytes
				if err := r.f.Evict(); err != nil {
					t.Fatal(err)
				}
				if freed := held - cudafake.Now().Bytes; freed != weights {
					t.Errorf("%d bytes freed, want %d", freed, weights)
				}
				if err := r.f.Load(); err != nil {
					t.Fatal(err)
				}
				if r.gpu.shared.resident.Pointer() != at || !bytes.Equal(r.weights(), want) {
					t.Error("loaded weights are not those that were evicted")
				}
				r.fillWith(four, i)
				r.infer(0, 4)
				if got := r.output(four); !all(got, i) {
					t.Errorf("answered %v after a load, want %d", got, i)
				}
			}
			if len(r.played.made) != sessions {
				t.Errorf("%d sessions, %d before", len(r.played.made), sessions)
			}
			if err := r.f.Evict(); err != nil { // Deinit follows
				t.Fatal(err)
			}
		})
	}
}

// TestLoadsLeakNothing loads two models in turn, with host memory to pin one of them.
func TestLoadsLeakNothing(t *testing.T) {
	const rounds = 1000
	c, pins := bound(t), weights.NewHostMemory(3000, slog.New(slog.DiscardHandler))
	var members []*rig
	var batches []batchTensors
	for range 2 {
		r := evictingRigIn(t, c, pins).linked()
		b := r.tensors(4)
		r.configure(0, 4, b)
		members, batches = append(members, r), append(batches, b)
	}
	type held struct {
		device              cudafake.Accounts
		descriptors, mapped int
	}
	var first held
	for i := range rounds {
		for k, r := range members {
			if err := errors.Join(r.f.Evict(), r.f.Load()); err != nil {
				t.Fatal(err)
			}
			r.fillWith(batches[k], byte(i))
			r.infer(0, 4)
			if got := r.output(batches[k]); !all(got, byte(i)) {
				t.Fatalf("answered %v after a load, want %d", got, byte(i))
			}
		}
		if i != 0 && i != rounds-1 {
			continue
		}
		now := held{device: cudafake.Now().Out(), descriptors: openfiles.Count(t)}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range members {
			now.mapped += bytes.Count(maps, []byte(r.gpu.shared.entry.Weights()))
		}
		if i == 0 {
			first = now
		}
		if now != first || now.device.Registrations != 1 || now.mapped != 1 {
			t.Errorf("after load %d of each model %+v, after the first %+v; want one pinned file", i+1, now, first)
		}
	}
}

// weights returns the bytes of the model's weights on the device.
func (r *rig) weights() []byte {
	r.t.Helper()
	from := r.gpu.shared.resident
	host, err := r.context.AllocateHost(int(from.Bytes()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer r.context.FreeHost(host)
	s := cuda.Stream{}
	if err := errors.Join(s.Copy(cuda.At(host), from.Pointer(), len(host)), s.Synchronize()); err != nil {
		r.t.Fatal(err)
	}
	return bytes.Clone(host)
}

// TestEvictableModelNextToOthers links a model while another member of the worker takes memory. The limit of the
// worker must not count that twice.
func TestEvictableModelNextToOthers(t *testing.T) {
	persistent := func(others int) int64 {
		r := evictingRig(t).loaded()
		r.played.unmade = func(settings) error {
			if others > 0 {
				other, err := r.gpu.context.NewArena(others)
				if err != nil {
					return err
				}
				t.Cleanup(func() { other.Close() })
			}
			return nil
		}
		bytes, err := r.f.LinkModel()
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	if alone, beside := persistent(0), persistent(32*mebi); alone != beside {
		t.Errorf("the model holds %d bytes, next to another that takes 32 MiB %d", alone, beside)
	}
}

// A load fails if the prepared weights were written, replaced or truncated, or if there is no memory.
// The model stays evicted.
func TestEvictedWeightsFail(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(file string) error
		want  string
	}{
		"written":   {func(file string) error { return os.WriteFile(file, make([]byte, 2048), 0o600) }, "has changed"},
		"truncated": {func(file string) error { return os.Truncate(file, 10) }, "has changed"},
		"empty":     {func(file string) error { return os.Truncate(file, 0) }, "is empty"},
		"removed":   {os.Remove, "has changed"},
		"no memory": {nil, "OUT_OF_MEMORY"},
	} {
		t.Run(name, func(t *testing.T) {
			r := evictingRig(t).linked()
			held := cudafake.Now().Bytes - r.f.EvictableBytes()
			if err := r.f.Evict(); err != nil {
				t.Fatal(err)
			}
			if c.spoil == nil {
				cudafake.Set(t, cudafake.Refuse("cuMemCreate", 1, cuda.OutOfMemory))
			} else if err := c.spoil(r.gpu.shared.entry.Weights()); err != nil {
				t.Fatal(err)
			}
			if err := r.f.Load(); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("load: %v; want one line with %q", err, c.want)
			}
			if now := cudafake.Now().Bytes; now != held {
				t.Errorf("%d bytes after a load that failed, want %d", now, held)
			}
		})
	}
}
