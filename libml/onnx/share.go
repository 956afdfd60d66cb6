//go:build cgo

package onnx

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/onnx/prepared"
	"github.com/penstock/penstock/libml/weights"
)

// Shared weights: the processes of a node use one copy of a model's weights, and all sizes of
// a process too.
//
// ONNX Runtime accepts initializers by address. But if it optimises a graph, or transposes
// weights for NHWC convolutions, it makes private copies. A model is therefore prepared once for
// all processes (prepare.go, package prepared):
//
//	loadModel   reads the prepared graph, a few hundred KiB, and the CPU's answer to the
//	            sample; it does not read the model
//	linkModel   asks Environment.Weights for the address of the prepared weights; the
//	            sessions of all sizes are made of the graph and of addresses
//
// Active: on every GPU, if Environment.Weights is set. The configuration's `weights: shared`
// (the default) sets it. A model can be shared if all of it runs on the GPU, in one graph,
// with its weights in its own file.
//
// If Node.Evict is set, the sizes of a process share weights that it can evict
// (weights.Resident), and other processes have their own.
//
// In all other cases the process has private weights, and one line of the log has the reason.
// A process of a prepared model then has one copy for all its sizes (copyPrivately). Otherwise
// each session has a copy.

// sharedWeights is the state of sharing. The zero value shares nothing yet.
type sharedWeights struct {
	store prepared.Store
	key   prepared.Key
	entry *prepared.Entry // nil if the model is not prepared
	// initializers are the weights on the GPU, for sessions in the entry's layout. They are
	// empty if each session has its own weights.
	initializers []initializer
	forNHWC      bool  // the entry's layout
	own          *pool // has the weights, if they are this process's copy
	// resident has the weights, if they can be evicted.
	resident *weights.Resident
	unshared bool // weights cannot be shared
}

// closeEntry closes the prepared model.
func (s *sharedWeights) closeEntry() {
	if s.entry != nil {
		s.entry.Close() // it was open for reading only
		s.entry = nil
	}
}

// close releases the weights. No session may use them any more.
func (s *sharedWeights) close() error {
	s.closeEntry()
	err := s.own.close()
	if s.resident != nil {
		err = errors.Join(err, s.resident.Close())
	}
	s.own, s.resident, s.initializers = nil, nil, nil
	return err
}

// openPrepared opens the prepared model, if there is one, and sets the reference.
func (g *gpu) openPrepared() error {
	s, card := &g.shared, g.env.Card
	if err := g.locatePrepared(); err != nil {
		g.keepPrivate(err)
		return nil
	}

	began := time.Now()
	e, err := s.store.Open(s.key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, prepared.ErrNotShareable):
		g.keepPrivate(err)
		return nil
	case err != nil:
		g.env.Log.Warn("prepared model is damaged; preparing it again", "error", err)
		return nil
	}
	s.entry = e
	input, err := answer.Sample(card, 0)
	if err != nil {
		return err
	}
	if a := e.Answer; a.Sample == answer.Digest(input) {
		if r := (&answer.Reference{Input: input, Outputs: a.Outputs}); r.Fits(card) {
			g.reference = r
		}
	}
	g.env.Log.Debug("prepared model found", "folder", e.Dir, "graph_bytes", len(e.Graph), "took", time.Since(began))
	return nil
}

// locatePrepared sets the store and the model's key in it.
func (g *gpu) locatePrepared() (err error) {
	dir := cmp.Or(g.cache, g.node.Prepared)
	if dir == "" {
		if dir, err = prepared.DefaultDir(); err != nil {
			return err
		}
	}
	card := g.env.Card
	g.shared.store = prepared.Store{Dir: dir}
	g.shared.key, err = prepared.KeyOf(card.Files(), g.version(), g.env.Device, layoutName(prefersNHWC(card)))
	return err
}

// keepPrivate makes every session have its own weights from now on.
func (g *gpu) keepPrivate(why error) {
	g.env.Log.Info("weights are not shared; this process has its own", "error", why)
	g.giveUp()
}

// giveUp releases what was made for sharing. No session may use it any more.
func (g *gpu) giveUp() {
	g.shared.unshared = true
	if err := g.shared.close(); err != nil {
		g.env.Log.Warn("cannot release weights", "error", err)
	}
}

// share finds the weights on the GPU. If the model is not prepared, it prepares it first. It
// returns an error only if the device is lost, or if weights that can be evicted find no memory.
// The calling thread must be bound to the context.
func (g *gpu) share() error {
	if !g.sharesWeights() || g.shared.unshared {
		return nil
	}
	err := g.findWeights()
	if err == nil || errors.Is(err, cuda.ErrLost) || g.node.Evict && errors.Is(err, cuda.ErrOutOfMemory) {
		return err
	}
	if g.shared.entry == nil {
		g.keepPrivate(err)
		return nil
	}

	g.env.Log.Info("weights are not shared; this process has its own", "error", err)
	if err = g.copyPrivately(); err != nil && !errors.Is(err, cuda.ErrLost) {
		g.env.Log.Debug("each batch size has its own weights", "error", err)
		g.giveUp()
		return nil
	}
	return err
}

// sharesWeights reports whether all sizes use one copy of the weights, if the model allows it.
func (g *gpu) sharesWeights() bool { return g.env.Weights != nil || g.node.Evict }

// findWeights sets the entry, and the initializers if the node's weight server has the
// weights, or if they can be evicted.
func (g *gpu) findWeights() error {
	if g.shared.entry == nil {
		if err := g.havePrepared(); err != nil {
			return err
		}
	}
	e := g.shared.entry
	if g.node.Evict {
		return g.loadResident()
	}
	w, err := g.env.Weights(e.Weights())
	if err != nil {
		return err
	}
	if int64(w.Bytes) != e.Bytes || w.CRC32C != e.CRC32C {
		return g.removeDamaged()
	}
	g.useWeights(cuda.Pointer(w.Address))
	return nil
}

// loadResident loads the entry's weights so that they can be evicted.
func (g *gpu) loadResident() error {
	s := &g.shared
	r, err := weights.OpenResident(g.context, s.entry.Weights(), g.node.HostMemory)
	if err != nil {
		return err
	}
	if r.Bytes() != s.entry.Bytes || r.CRC32C() != s.entry.CRC32C {
		return errors.Join(g.removeDamaged(), r.Close())
	}
	s.resident = r
	g.useWeights(r.Pointer())
	return nil
}

// removeDamaged removes the entry because its weights have changed. It returns an error that
// wraps framework.ErrNoWeights.
func (g *gpu) removeDamaged() error {
	s := &g.shared
	file := s.entry.Weights()
	s.closeEntry()
	if g.node.Prepare != nil {
		// The node prepares the model for the next process. This process has lost enough time.
		return errors.Join(fmt.Errorf("%w: %s is damaged", framework.ErrNoWeights, file), g.node.Prepare())
	}
	return errors.Join(fmt.Errorf("%w: %s is damaged", framework.ErrNoWeights, file), s.store.Remove(s.key))
}

// useWeights makes sessions use the entry, with its weights at this address.
func (g *gpu) useWeights(at cuda.Pointer) {
	s := &g.shared
	for _, t := range s.entry.Tensors {
		s.initializers = append(s.initializers, initializer{
			name: t.Name, at: at + cuda.Pointer(t.Offset), bytes: t.Bytes, shape: t.Shape, element: t.Type,
		})
	}
	s.forNHWC = g.nhwc
}

// copyPrivately copies the entry's weights to the GPU for this process.
func (g *gpu) copyPrivately() (err error) {
	s := &g.shared
	file, err := os.Open(s.entry.Weights())
	if err != nil {
		return err
	}
	defer file.Close()
	if s.own, err = newPool(g.context.Device()); err != nil {
		return err
	}
	at := s.own.allocate(int(s.entry.Bytes))
	if err := poolRefusal(s.own, nil); err != nil {
		return err
	}

	sum, err := weights.Upload(g.context, file, at, s.entry.Bytes)
	if err != nil {
		return err
	}
	if sum != s.entry.CRC32C {
		return g.removeDamaged()
	}
	g.useWeights(at)
	return nil
}

// linkPrivately links the smallest size with private weights, after the link over shared ones
// failed. If it succeeds, it records that the model cannot be shared.
func (g *gpu) linkPrivately(n int, why error) error {
	g.keepPrivate(fmt.Errorf("no session can use them: %w", why))
	clear(g.byNode.sizes)
	if err := g.link([]int{n}); err != nil {
		return err
	}
	if err := g.shared.store.Refuse(g.shared.key, why); err != nil {
		g.env.Log.Warn("cannot record that the model's weights cannot be shared; the next process tries again", "error", err)
	}
	return nil
}

// sessionModel returns the model and the settings for a session.
func (g *gpu) sessionModel(stream cuda.Stream, nhwc bool) ([]byte, settings, error) {
	with, s := g.settings(stream, nhwc), &g.shared
	if len(s.initializers) > 0 && nhwc == s.forNHWC {
		with.initializers, with.folder = s.initializers, s.entry.Dir
		with.nhwc = false // the graph is in its layout already
		return s.entry.Graph, with, nil
	}
	model, err := g.file.read(g.env.Card)
	return model, with, err
}
