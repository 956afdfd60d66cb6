package serve

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/libml/framework"
)

// asks is a framework that keeps its environment.
type asks struct {
	framework.Framework
	env framework.Environment
}

func (a *asks) Init(env framework.Environment) error { a.env = env; return nil }
func (a *asks) LoadModel() error                     { return framework.ErrNoHostStage }

func loadedWith(t *testing.T, start control.Start) (*process, framework.Environment) {
	t.Helper()
	a := new(asks)
	p := &process{log: slog.New(slog.DiscardHandler), start: start, card: functiontest.Card(), framework: a}
	if err := p.load(); err != nil {
		t.Fatal(err)
	}
	return p, a.env
}

// Weights are shared only on a GPU whose node has a weight server.
func TestSharedWeights(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "weights.sock")
	for _, c := range []struct {
		start control.Start
		may   bool
	}{
		{control.Start{Device: framework.DeviceCPU}, false},
		{control.Start{Device: framework.DeviceCPU, WeightsSocket: socket}, false},
		{control.Start{Device: "GPU-1"}, false},
		{control.Start{Device: "GPU-1", WeightsSocket: socket}, true},
	} {
		if _, env := loadedWith(t, c.start); (env.Weights != nil) != c.may {
			t.Errorf("%+v may ask: %v", c.start, env.Weights != nil)
		}
	}
}

// A framework that asks too early, or without a weight server, gets ErrNoWeights with the
// reason.
func TestNoWeightServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "weights.sock")
	p, env := loadedWith(t, control.Start{Device: "GPU-1", WeightsSocket: socket})
	file := "/proc/self/exe"
	if _, err := env.Weights(file); !errors.Is(err, framework.ErrNoWeights) || !strings.Contains(err.Error(), "not open") {
		t.Errorf("before the device is open: %v", err)
	}
	p.memory = new(memory)
	if _, err := env.Weights(file); !errors.Is(err, framework.ErrNoWeights) || !strings.Contains(err.Error(), socket) {
		t.Errorf("without a holder: %v", err)
	}
	if _, err := env.Weights(socket); !errors.Is(err, framework.ErrNoWeights) || !strings.Contains(err.Error(), "open "+socket) {
		t.Errorf("without a file: %v", err)
	}
	if err := p.weights.Close(); err != nil {
		t.Error(err)
	}
}
