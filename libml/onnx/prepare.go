//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/onnx/prepared"
	"github.com/penstock/penstock/models"
)

// A model is prepared once per file, version of ONNX Runtime, GPU and layout (prepared.Key):
// a session optimises it for the GPU, saves it and is closed. Package prepared splits the
// saved model into graph and weights.
//
// Active: with shared weights (share.go), if the model is not prepared. Processes of a node
// may not write prepared models: they ask the node (Node.Prepare), which calls Prepare
// in a process that runs no requests. If Node.Prepare is nil, linkModel prepares the
// model itself.

// Prepare prepares the model of a card for the first GPU that this process sees. It keeps an
// intact prepared model that is in dir already. It returns prepared.ErrNotShareable if the
// model's weights cannot be shared. After an error that wraps cuda.ErrLost the process must
// end.
func Prepare(card *models.Card, device, dir string, threads int, log *slog.Logger) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := open(); err != nil {
		return err
	}
	g := newGPU(framework.Environment{
		Card: card, Device: device, Threads: threads, Log: log,
		Stream:  func(int) uintptr { return 0 },
		Weights: func(string) (framework.Weights, error) { return framework.Weights{}, framework.ErrNoWeights },
	}, framework.Node{Prepared: dir})
	if err := g.init(); err != nil {
		return err
	}
	err := g.prepareOnly()
	if !errors.Is(err, cuda.ErrLost) {
		err = errors.Join(err, g.deinit())
	}
	return err
}

// prepareOnly is Prepare after the libraries are loaded.
func (g *gpu) prepareOnly() error {
	if err := g.loadModel(); err != nil {
		return err
	}
	if g.shared.unshared {
		return prepared.ErrNotShareable
	}
	if g.shared.entry != nil {
		err := g.shared.entry.Verify()
		if err == nil {
			g.shared.closeEntry()
			return nil
		}
		g.env.Log.Warn("prepared model is damaged; preparing it again", "error", err)
		if err := g.removeDamaged(); !errors.Is(err, framework.ErrNoWeights) {
			return err
		}
		g.reference = nil // it was the damaged model's
		if err := g.loadModel(); err != nil {
			return err
		}
	}

	if err := g.open(); err != nil {
		return g.fail("open GPU", err)
	}
	g.nhwc = prefersNHWC(g.env.Card)
	err := g.prepare()
	g.shared.closeEntry()
	return err
}

// havePrepared sets the entry. It prepares the model, or has the node prepare it.
func (g *gpu) havePrepared() error {
	if g.node.Prepare == nil {
		return g.prepare()
	}
	if err := g.node.Prepare(); err != nil {
		return err
	}
	var err error
	if g.shared.entry, err = g.shared.store.Open(g.shared.key); err != nil {
		return fmt.Errorf("read prepared model: %w", err)
	}
	return nil
}

// prepare has ONNX Runtime optimise the model for this GPU, and stores the result as the
// entry.
func (g *gpu) prepare() error {
	began := time.Now()
	model, err := g.file.read(g.env.Card)
	if err != nil {
		return err
	}
	optimised, err := g.optimise(model)
	if err != nil {
		return err
	}

	stored := prepared.Answer{Sample: answer.Digest(g.reference.Input), Outputs: g.reference.Outputs}
	s := &g.shared
	if s.entry, err = s.store.Make(s.key, optimised, stored); err != nil {
		return err
	}
	g.env.Log.Info("model prepared; its weights can be shared", "bytes", s.entry.Bytes, "took", time.Since(began))
	return nil
}

// optimise returns the model as ONNX Runtime optimises it for this GPU.
func (g *gpu) optimise(model []byte) (out []byte, err error) {
	store := g.shared.store.Dir
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(store, "making-")
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
		out, err = g.optimiseTo(filepath.Join(dir, "optimised.onnx"), model)
		return err
	})
	return out, err
}

// optimiseTo makes a session that saves the optimised model to file, and closes it. The
// session has a private stream and private memory. On a lost device they are not released.
func (g *gpu) optimiseTo(file string, model []byte) (out []byte, err error) {
	memory, err := newPool(g.context.Device())
	if err != nil {
		return nil, err
	}
	defer func() {
		if !errors.Is(err, cuda.ErrLost) {
			err = errors.Join(err, memory.close())
		}
	}()
	stream, err := g.context.NewStream()
	if err != nil {
		return nil, err
	}

	capturing.RLock()
	out, err = g.backend.optimise(model, g.settings(stream, g.nhwc), memory, file)
	capturing.RUnlock()
	if err = g.markOutOfMemory(poolRefusal(memory, err)); errors.Is(err, cuda.ErrLost) {
		return nil, err
	}
	// A session that failed may have queued work that uses the memory.
	return out, errors.Join(err, stream.Synchronize(), stream.Destroy())
}
