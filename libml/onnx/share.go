//go:build cgo

package onnx

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/onnx/prepared"
	"github.com/penstock/penstock/models"
)

// Weights that are shared. ONNX Runtime takes initializers by their address; what it makes
// of them when it optimises a graph, and what its NHWC convolutions make of them when a
// session is made, would be private again. So a model is prepared (package prepared), once
// for all processes:
//
//	LoadModel   the prepared graph is read, a few hundred KiB, with what the CPU answered to
//	            the picture; the model itself is not
//	LinkModel   Environment.Weights says where the prepared weights are; every session, of
//	            every size, is made of the graph and of addresses
//
// The first LinkModel of a model on a GPU prepares it: a session that is given back at once
// optimises it for the GPU, and has its graph saved.
//
// Whatever is in the way, the process has its own weights, and a line of the log says what it
// was. Those of a prepared model it has once, for all its sizes; else each session has its
// own, as where weights are private.

// sharing is a model, prepared or as it is.
type sharing struct {
	mu     sync.Mutex // guards what follows, up to a space
	model  []byte     // the file; nil before anybody wants it
	inputs []tensor   // as declared, with model
	output []tensor

	store prepared.Store
	key   prepared.Key
	entry *prepared.Entry // nil where the model is not prepared
	// initializers are the weights, on the GPU; none where they are not shared. They are
	// for sessions of the layout that the entry was made for.
	initializers []initializer
	forNHWC      bool
	own          *pool // that they lie in, where they are this process's own
	unshared     bool  // it is known that they cannot be shared
}

// original is the model's file, read when it is first wanted, and held against the card.
func (g *gpu) original() ([]byte, error) {
	g.sharing.mu.Lock()
	defer g.sharing.mu.Unlock()
	if g.model != nil {
		return g.model, nil
	}
	var err error
	g.model, g.inputs, g.output, err = readModel(g.env.Card)
	return g.model, err
}

// openPrepared looks whether the model is prepared, and then sets the reference. An error
// is the card's: that it does not describe the model.
func (g *gpu) openPrepared() error {
	card := g.env.Card
	dir := cmp.Or(g.cache, g.env.Prepared)
	err := error(nil)
	if dir == "" {
		dir, err = prepared.DefaultDir()
	}
	if err == nil {
		g.store = prepared.Store{Dir: dir}
		g.key, err = prepared.KeyOf(card.Model, g.version(), g.env.Device, layout(g.wantsNHWC()))
	}
	if err != nil {
		g.keepPrivate(err)
		return nil
	}
	began := time.Now()
	e, err := g.store.Open(g.key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, prepared.ErrNotShareable):
		g.keepPrivate(err)
		return nil
	case err != nil:
		g.env.Log.Warn().Err(err).Msg("a prepared model is damaged; it is prepared anew")
		return nil
	}
	g.entry = e
	if err := fits(card, tensorsOf(e.Inputs), tensorsOf(e.Outputs)); err != nil {
		return fmt.Errorf("model %s does not fit its card: %w", card.Model, err)
	}
	input, err := sample(card.Input)
	if err != nil {
		return err
	}
	if a := e.Answer; a != nil && a.Sample == digest(input) && answers(card, a.Outputs) {
		g.reference = &reference{input: input, outputs: a.Outputs}
	}
	g.env.Log.Debug().Str("folder", e.Dir).Int("graph_bytes", len(e.Graph)).Dur("took", time.Since(began)).Msg("model is prepared")
	return nil
}

// answers reports whether the CPU's answers are of the card's outputs; there may be none.
func answers(card *models.Card, outputs [][]float32) bool {
	if len(outputs) == 0 {
		return true
	}
	if len(outputs) != len(card.Outputs) {
		return false
	}
	for i := range outputs {
		if 4*len(outputs[i]) != card.Outputs[i].Bytes() {
			return false
		}
	}
	return true
}

func layout(nhwc bool) string {
	if nhwc {
		return "nhwc"
	}
	return "nchw"
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func tensorsOf(ports []prepared.Port) (list []tensor) {
	for _, p := range ports {
		list = append(list, tensor{name: p.Name, dtype: p.Type, dims: p.Dims})
	}
	return list
}

func portsOf(list []tensor) (ports []prepared.Port) {
	for _, t := range list {
		ports = append(ports, prepared.Port{Name: t.name, Type: t.dtype, Dims: t.dims})
	}
	return ports
}

// keepPrivate has every session make weights of its own, from here on.
func (g *gpu) keepPrivate(why error) {
	g.env.Log.Info().Err(why).Msg("weights are not shared: this process has its own")
	g.giveUp()
}

// giveUp gives back what was for sharing. No session uses it.
func (g *gpu) giveUp() {
	g.unshared, g.initializers = true, nil
	g.closeEntry()
	if err := g.own.close(); err != nil {
		g.env.Log.Warn().Err(err).Msg("give weights back")
	}
	g.own = nil
}

// closeEntry gives the prepared model up.
func (g *gpu) closeEntry() {
	if g.entry != nil {
		g.entry.Close() // it is open to be read
		g.entry = nil
	}
}

// share finds the weights on the GPU, and prepares the model before where nobody has. Only
// a device that is lost is an error. On a bound thread.
func (g *gpu) share() error {
	if g.env.Weights == nil || g.unshared {
		return nil
	}
	err := g.find()
	if err == nil || errors.Is(err, cuda.ErrLost) {
		return err
	}
	if g.entry == nil {
		g.keepPrivate(err)
		return nil
	}
	g.env.Log.Info().Err(err).Msg("weights are not shared: this process has its own")
	if err = g.copyOwn(); err != nil && !errors.Is(err, cuda.ErrLost) {
		g.env.Log.Debug().Err(err).Msg("each batch size has its own weights")
		g.giveUp()
		return nil
	}
	return err
}

// find sets the entry, and the initializers where the node's holder has its weights.
func (g *gpu) find() error {
	if g.entry == nil {
		if err := g.havePrepared(); err != nil {
			return err
		}
	}
	w, err := g.env.Weights(g.entry.Weights())
	if err != nil {
		return err
	}
	if int64(w.Bytes) != g.entry.Bytes || w.CRC32C != g.entry.CRC32C {
		return g.damaged()
	}
	g.use(cuda.Pointer(w.Address))
	return nil
}

// damaged removes the entry, whose weights are not what they were.
func (g *gpu) damaged() error {
	file := g.entry.Weights()
	g.closeEntry()
	if g.env.Prepare != nil {
		// It is made anew for the next process. This one has lost time enough.
		return errors.Join(fmt.Errorf("%w: %s is damaged", libml.ErrNoWeights, file), g.env.Prepare())
	}
	return errors.Join(fmt.Errorf("%w: %s is damaged", libml.ErrNoWeights, file), g.store.Remove(g.key))
}

// use has sessions made of the entry, whose weights lie there.
func (g *gpu) use(at cuda.Pointer) {
	for _, t := range g.entry.Tensors {
		g.initializers = append(g.initializers, initializer{
			name: t.Name, at: at + cuda.Pointer(t.Offset), bytes: t.Bytes, shape: t.Shape, element: t.Type,
		})
	}
	g.forNHWC = g.nhwc
}

// copyOwn puts the entry's weights onto the GPU, for this process.
func (g *gpu) copyOwn() (err error) {
	file, err := os.Open(g.entry.Weights())
	if err != nil {
		return err
	}
	defer file.Close()
	if g.own, err = newPool(g.context.Device()); err != nil {
		return err
	}
	bytes := int(g.entry.Bytes)
	at := g.own.allocate(bytes)
	if err := short(g.own, nil); err != nil {
		return err
	}
	host, err := g.context.AllocateHost(min(bytes, ownPieceBytes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.context.FreeHost(host)) }()
	sum := uint32(0)
	for done := 0; done < bytes; {
		piece := host[:min(len(host), bytes-done)]
		if _, err := io.ReadFull(file, piece); err != nil {
			return err
		}
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), piece)
		if err := errors.Join(g.stream.Copy(at+cuda.Pointer(done), cuda.At(piece), len(piece)), g.stream.Synchronize()); err != nil {
			return err
		}
		done += len(piece)
	}
	if sum != g.entry.CRC32C {
		return g.damaged()
	}
	g.use(at)
	return nil
}

// ownPieceBytes is what copyOwn reads at once.
const ownPieceBytes = 16 << 20

// havePrepared sets the entry: the node prepares the model if this process may not.
func (g *gpu) havePrepared() error {
	if g.env.Prepare == nil {
		return g.prepare()
	}
	if err := g.env.Prepare(); err != nil {
		return err
	}
	var err error
	if g.entry, err = g.store.Open(g.key); err != nil {
		return fmt.Errorf("read prepared model: %w", err)
	}
	return nil
}

// Prepare prepares the model of a card for the first GPU that this process sees, in the folder
// dir, unless that has been done and the result is intact. It returns ErrNotShareable (package
// prepared) if the model's weights cannot be shared. After an error that wraps cuda.ErrLost the
// process must end.
func Prepare(card *models.Card, device, dir string, threads int, log zerolog.Logger) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := open(); err != nil {
		return err
	}
	g := newGPU(libml.Environment{
		Card: card, Device: device, Prepared: dir, Threads: threads, Log: log,
		Stream:  func(int) uintptr { return 0 },
		Weights: func(string) (libml.Weights, error) { return libml.Weights{}, libml.ErrNoWeights },
	})
	if err := g.init(); err != nil {
		return err
	}
	err := g.prepareOnly()
	if !errors.Is(err, cuda.ErrLost) {
		err = errors.Join(err, g.deinit())
	}
	return err
}

// prepareOnly is Prepare after the libraries have been loaded.
func (g *gpu) prepareOnly() error {
	if err := g.loadModel(); err != nil {
		return err
	}
	if g.unshared {
		return prepared.ErrNotShareable
	}
	if g.entry != nil {
		err := g.entry.Verify()
		if err == nil {
			g.closeEntry()
			return nil
		}
		g.env.Log.Warn().Err(err).Msg("prepared model is damaged; preparing it again")
		if err := g.damaged(); !errors.Is(err, libml.ErrNoWeights) {
			return err
		}
		// Its reference answer came from there.
		g.reference = nil
		if err := g.loadModel(); err != nil {
			return err
		}
	}
	if err := g.open(); err != nil {
		return g.fail("open GPU", err)
	}
	g.nhwc = g.wantsNHWC()
	err := g.prepare()
	g.closeEntry()
	return err
}

// prepare has ONNX Runtime optimise the model for this GPU, and keeps what comes of it.
func (g *gpu) prepare() error {
	began := time.Now()
	model, err := g.original()
	if err != nil {
		return err
	}
	optimised, err := g.optimised(model)
	if err != nil {
		return err
	}
	input := g.reference.input
	answer := &prepared.Answer{Sample: digest(input), Outputs: g.reference.outputs}
	for _, o := range answer.Outputs {
		for _, v := range o {
			if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
				answer = nil
			}
		}
		if answer == nil {
			break
		}
	}
	g.entry, err = g.store.Make(g.key, optimised, portsOf(g.inputs), portsOf(g.output), answer)
	if err != nil {
		return err
	}
	g.env.Log.Info().Int64("bytes", g.entry.Bytes).Dur("took", time.Since(began)).Msg("model is prepared, its weights can be shared")
	return nil
}

// optimised makes a session that is given back at once, with memory that is, too.
func (g *gpu) optimised(model []byte) (out []byte, err error) {
	if err := os.MkdirAll(g.store.Dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(g.store.Dir, "making-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	t, err := newThread(g.context)
	if err != nil {
		return nil, err
	}
	defer t.end()
	err = t.do(func() (err error) {
		memory, err := newPool(g.context.Device())
		if err != nil {
			return err
		}
		defer func() {
			if !errors.Is(err, cuda.ErrLost) {
				err = errors.Join(err, memory.close())
			}
		}()
		stream, err := g.context.NewStream()
		if err != nil {
			return err
		}
		with := g.settings(stream, g.nhwc)
		out, err = g.backend.optimise(model, with, memory, filepath.Join(dir, "optimised.onnx"))
		if err = g.scarce(short(memory, err)); errors.Is(err, cuda.ErrLost) {
			return err
		}
		// What one that failed has queued uses the memory.
		return errors.Join(err, stream.Synchronize(), stream.Destroy())
	})
	return out, err
}

// modelFor is what a session is made of.
func (g *gpu) modelFor(stream cuda.Stream, nhwc bool) ([]byte, settings, error) {
	with := g.settings(stream, nhwc)
	if len(g.initializers) > 0 && nhwc == g.forNHWC {
		with.initializers, with.folder = g.initializers, g.entry.Dir
		// It is in the layout already.
		with.nhwc = false
		return g.entry.Graph, with, nil
	}
	model, err := g.original()
	return model, with, err
}

func (g *gpu) settings(stream cuda.Stream, nhwc bool) settings {
	return settings{
		stream: stream, nhwc: nhwc,
		// The provider's use_tf32=0 keeps convolutions from tensor cores, those of f16
		// as well. A model whose input is f32 has 24 bits of mantissa to lose.
		tf32: g.env.Card.Input.TensorType == models.F16,
	}
}
