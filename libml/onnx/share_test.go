//go:build cgo

package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/onnx/answer"
)

// saved is a model as ONNX Runtime might save it: one tensor, w, of 1,024 halves.
func saved() []byte {
	message := func(number int, data []byte) []byte {
		b := binary.AppendUvarint(nil, uint64(number)<<3|2)
		return append(binary.AppendUvarint(b, uint64(len(data))), data...)
	}
	tensor := slices.Concat([]byte{1 << 3, 4, 1 << 3, 0x80, 2, 2 << 3, 10}, message(8, []byte("w")), message(9, make([]byte, 2048)))
	return message(7, message(5, tensor))
}

// shares is an Environment.Weights that keeps files in a fake GPU's memory.
type shares struct {
	r       *rig
	asked   []string
	before  func() // it is asked
	refuses error
	sum     uint32 // in place of the file's, if not 0
	at      map[string]cuda.Pointer
}

func (s *shares) weights(file string) (libml.Weights, error) {
	s.asked = append(s.asked, file)
	if s.before != nil {
		s.before()
	}
	if s.refuses != nil {
		return libml.Weights{}, s.refuses
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return libml.Weights{}, fmt.Errorf("%w: %w", libml.ErrNoWeights, err)
	}
	if s.at[file] == 0 {
		p, err := s.r.context.Allocate(len(b))
		if err != nil {
			return libml.Weights{}, err
		}
		s.r.t.Cleanup(func() { s.r.context.Free(p) })
		s.at[file] = p
	}
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	if s.sum != 0 {
		sum = s.sum
	}
	return libml.Weights{Address: uintptr(s.at[file]), Bytes: len(b), CRC32C: sum}, nil
}

// sharingRig is a rig whose process shares its weights, and keeps prepared models in dir.
func sharingRig(t *testing.T, dir string) (*rig, *shares) {
	t.Helper()
	r := newRig(t, &played{weights: 3 * mebi, optimised: saved()})
	s := &shares{r: r, at: make(map[string]cuda.Pointer)}
	r.gpu.env.Weights, r.gpu.cache = s.weights, dir
	r.gpu.version = func() string { return "1" }
	// The same file for all processes of a test.
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

// processes runs one process after the other, which have a folder in common.
func processes(t *testing.T, each ...func(*testing.T, *rig, *shares)) {
	dir := t.TempDir()
	for i, f := range each {
		t.Run(fmt.Sprintf("process %d", i+1), func(t *testing.T) {
			r, s := sharingRig(t, dir)
			f(t, r, s)
		})
	}
}

func (r *rig) said(words string) bool { return strings.Contains(r.log.String(), words) }

func TestEverySizeUsesTheSharedWeights(t *testing.T) {
	processes(t, func(t *testing.T, r *rig, s *shares) {
		r.linked()
		if r.played.optimises != 1 || len(r.played.made) != 3 || len(s.asked) != 1 {
			t.Fatalf("optimised %d times, %d sessions, asked for %v", r.played.optimises, len(r.played.made), s.asked)
		}
		for _, with := range r.played.made {
			if len(with.initializers) != 1 || with.folder != filepath.Dir(s.asked[0]) || with.nhwc {
				t.Fatalf("a session with %+v", with)
			}
			i := with.initializers[0]
			if i.name != "w" || i.at != s.at[s.asked[0]] || i.bytes != 2048 || !slices.Equal(i.shape, []int64{4, 256}) || i.element != 10 {
				t.Errorf("weights %+v, at %v", i, s.at)
			}
		}
		b := r.tensors(4)
		r.fillWith(b, 7)
		r.configure(0, 4, b)
		r.infer(0, 4)
		if got := r.output(b); !all(got, 7) {
			t.Errorf("answered %v", got)
		}
	}, func(t *testing.T, r *rig, s *shares) {
		// It finds all prepared: it reads no model, asks no CPU, optimises nothing.
		r.loaded()
		g := r.gpu
		if g.file.data != nil || g.shared.entry == nil || r.said("is not asked") {
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

// Where nobody holds them, or only other ones, a prepared model's weights are the
// process's own, once for all sizes.
func TestWithoutAHolderAProcessHasOneCopy(t *testing.T) {
	for what, refuse := range map[string]error{
		"no shared weights": fmt.Errorf("%w: dial: no such file", libml.ErrNoWeights),
		"OUT_OF_MEMORY":     fmt.Errorf("%w: %w", libml.ErrNoWeights, &cuda.Error{Op: "cuMemImportFromShareableHandle", Code: cuda.OutOfMemory}),
	} {
		t.Run(what, func(t *testing.T) {
			r, s := sharingRig(t, t.TempDir())
			s.refuses = refuse
			r.linked()
			at := r.gpu.shared.own.look().all.At
			for _, with := range r.played.made {
				if len(with.initializers) != 1 || with.initializers[0].at != at {
					t.Errorf("a session with %+v, own weights at %#x", with.initializers, at)
				}
			}
			if n := strings.Count(r.log.String(), "weights are not shared"); n != 1 || !r.said(what) || len(r.played.made) != 3 {
				t.Errorf("said %d times, %d sessions: %s", n, len(r.played.made), r.log.String())
			}
		})
	}
}

// The copy that does not fit either leaves it to the sessions.
func TestWithoutMemoryForACopySessionsMakeTheirOwn(t *testing.T) {
	r, s := sharingRig(t, t.TempDir())
	s.refuses = libml.ErrNoWeights
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
	if !made || r.gpu.shared.own != nil || !r.said("each batch size has its own weights") {
		t.Errorf("own %v: %s", r.gpu.shared.own, r.log.String())
	}
}

// Whatever else is in the way, each session has its own weights, and the log says why, once.
func TestWhatCannotBeSharedIsPrivate(t *testing.T) {
	for what, spoil := range map[string]func(*rig, *shares){
		"it cannot be saved":       func(r *rig, _ *shares) { r.played.optimised = nil },
		"weights cannot be shared": func(r *rig, _ *shares) { r.played.optimised = []byte{7<<3 | 2, 0} },
		"no protocol buffer":       func(r *rig, _ *shares) { r.played.optimised = []byte{0xff} },
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
			if n := strings.Count(r.log.String(), "weights are not shared"); n != 1 || !r.said(what) {
				t.Errorf("said %d times: %s", n, r.log.String())
			}
			if len(r.played.made) != 3 {
				t.Errorf("%d sessions", len(r.played.made))
			}
		})
	}
}

// A session over shared weights that does not work costs a second try, and the next
// process none.
func TestASessionThatCannotShareIsMadePrivately(t *testing.T) {
	processes(t, func(t *testing.T, r *rig, _ *shares) {
		r.played.unmade = func(s settings) error {
			if len(s.initializers) > 0 {
				return &ortError{code: 1, text: "no kernel"}
			}
			return nil
		}
		r.linked()
		if !r.said("a session over them cannot be made") || len(r.played.made) != 3 {
			t.Errorf("%d sessions: %s", len(r.played.made), r.log.String())
		}
	}, func(t *testing.T, r *rig, s *shares) {
		r.linked()
		if r.played.optimises != 0 || len(s.asked) != 0 || !r.said("weights are not shared") {
			t.Errorf("optimised %d times, asked for %v: %s", r.played.optimises, s.asked, r.log.String())
		}
	})
}

// A model that over shared weights is no graph, and cannot be made node by node either, is
// a graph over its own: nothing of the first is left.
func TestASizeThatWasNoGraphOverSharedWeightsIsOneOverItsOwn(t *testing.T) {
	r, _ := sharingRig(t, t.TempDir())
	made := 0
	r.played.unmade = func(s settings) error {
		if made++; len(s.initializers) > 0 && made > 1 {
			return &ortError{code: 1, text: "no place"}
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

// What is wrong with the model itself is no reason to refuse it for ever.
func TestAModelThatCannotBeMadeAtAllIsNotRefused(t *testing.T) {
	processes(t, func(t *testing.T, r *rig, _ *shares) {
		r.played.unmade = func(settings) error { return &ortError{code: 1, text: "no kernel"} }
		if _, err := r.loaded().f.LinkModel(); err == nil {
			t.Error("it is linked")
		}
	}, func(t *testing.T, r *rig, s *shares) {
		if r.linked(); len(s.asked) != 1 {
			t.Errorf("asked for %v: %s", s.asked, r.log.String())
		}
	})
}

func TestADeviceThatIsLostIsNotAboutSharing(t *testing.T) {
	r, s := sharingRig(t, t.TempDir())
	s.refuses = fmt.Errorf("%w: %w", libml.ErrNoWeights, cuda.ErrLost)
	if _, err := r.loaded().f.LinkModel(); !errors.Is(err, cuda.ErrLost) {
		t.Errorf("%v", err)
	}
}

// A prepared model is held against the card like the model.
func TestAPreparedModelIsHeldAgainstItsCard(t *testing.T) {
	processes(t, func(_ *testing.T, r *rig, _ *shares) { r.linked() }, func(t *testing.T, r *rig, _ *shares) {
		r.card.Outputs[0].Name = "another"
		if err := errors.Join(r.gpu.init(), r.f.LoadModel()); err == nil || !strings.Contains(err.Error(), `"another"`) {
			t.Errorf("%v", err)
		}
	})
}

// The picture's answer is of the card that was asked: another has the CPU asked again.
func TestAnotherPictureIsAskedAgain(t *testing.T) {
	processes(t, func(_ *testing.T, r *rig, _ *shares) { r.linked() }, func(t *testing.T, r *rig, _ *shares) {
		asked := 0
		r.gpu.ask = func(_ libml.Environment, model []byte) (*answer.Reference, error) {
			asked++
			if len(model) == 0 {
				t.Error("without a model")
			}
			return nil, errors.New("is not asked")
		}
		r.card.Input.Mean, r.card.Input.Std = []float32{3}, []float32{2}
		r.loaded()
		if asked != 1 || r.gpu.shared.entry == nil {
			t.Errorf("the CPU was asked %d times", asked)
		}
	})
}

func TestDamagedEntriesAreMadeAnew(t *testing.T) {
	weights := ""
	processes(t, func(_ *testing.T, r *rig, s *shares) {
		r.linked()
		weights = s.asked[0]
	}, func(t *testing.T, r *rig, _ *shares) {
		if err := os.Truncate(weights, 7); err != nil {
			t.Fatal(err)
		}
		r.linked()
		if r.played.optimises != 1 || !r.said("it is prepared anew") || len(r.played.made[0].initializers) != 1 {
			t.Errorf("optimised %d times: %s", r.played.optimises, r.log.String())
		}
	})
}

// A process under the node's sandbox reads prepared models and writes none: the node prepares
// them.
func TestPreparedByTheNode(t *testing.T) {
	// process runs one process; its node prepares the model, or fails with answer.
	process := func(t *testing.T, dir string, answer error, check func(r *rig, s *shares, asked int)) {
		t.Run("process", func(t *testing.T) {
			r, s := sharingRig(t, dir)
			asked := 0
			r.gpu.env.Prepared = dir
			r.gpu.env.Prepare = func() error {
				asked++
				if answer != nil {
					return answer
				}
				var err error
				t.Run("node", func(t *testing.T) {
					node, _ := sharingRig(t, dir)
					err = errors.Join(node.gpu.prepareOnly(), node.gpu.deinit())
				})
				return err
			}
			r.linked()
			if r.played.optimises > 0 {
				t.Errorf("it optimised the model itself: %s", r.log.String())
			}
			check(r, s, asked)
		})
	}
	shared := func(r *rig) bool { return len(r.played.made[0].initializers) == 1 }

	t.Run("once", func(t *testing.T) {
		dir := t.TempDir()
		for i := range 2 {
			process(t, dir, nil, func(r *rig, s *shares, asked int) {
				if asked != 1-i || len(s.asked) != 1 || !shared(r) {
					t.Errorf("asked the node %d times, for weights %v: %s", asked, s.asked, r.log.String())
				}
			})
		}
	})
	t.Run("failed", func(t *testing.T) {
		process(t, t.TempDir(), fmt.Errorf("%w: no GPU memory", libml.ErrNoWeights), func(r *rig, _ *shares, asked int) {
			if asked != 1 || !r.said("no GPU memory") || shared(r) {
				t.Errorf("asked %d times: %s", asked, r.log.String())
			}
		})
	})
	t.Run("damaged weights", func(t *testing.T) {
		dir := t.TempDir()
		weights := ""
		process(t, dir, nil, func(_ *rig, s *shares, _ int) { weights = s.asked[0] })
		text, err := os.ReadFile(weights)
		if err != nil {
			t.Fatal(err)
		}
		text[0]++
		if err := os.WriteFile(weights, text, 0o600); err != nil {
			t.Fatal(err)
		}
		process(t, dir, nil, func(r *rig, _ *shares, asked int) {
			if asked != 1 || shared(r) {
				t.Errorf("asked %d times: %s", asked, r.log.String())
			}
		})
		process(t, dir, nil, func(r *rig, _ *shares, asked int) {
			if asked != 0 || !shared(r) {
				t.Errorf("asked %d times after the repair: %s", asked, r.log.String())
			}
		})
	})
}
