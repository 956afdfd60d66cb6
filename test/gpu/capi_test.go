//go:build gpu

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// exampleInC returns the card of examples/c/fashion.yaml, from the source tree,
// with the program in the kit.
func exampleInC(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(os.Getenv("PENSTOCK_ZOO"), "../../examples/c")
	text, err := os.ReadFile(filepath.Join(folder, "fashion.yaml"))
	if err != nil {
		t.Fatalf("%v; PENSTOCK_ZOO says where the source tree's models/zoo is", err)
	}
	card := strings.NewReplacer("../../bin/examples/c", filepath.Join(filepath.Dir(penstock), "c"),
		"fashion.weights", filepath.Join(folder, "fashion.weights")).Replace(string(text))
	path := filepath.Join(t.TempDir(), "fashion.yaml")
	must.OK(t, os.WriteFile(path, []byte(card), 0o600))
	return path
}

// A model in C with its own kernels must be correct on any multiprocessors, and in
// its shadow, next to a neighbour.
func TestModelInC(t *testing.T) {
	n := start(t, fmt.Sprintf(`
weights: shared
shares: {policy: gslice, tune: false, change: partition}
functions:
  - {name: fashion, model: %s, port: 0, slo: 20s, share_percent: 40}
  - {name: face, port: 0, slo: 20s, share_percent: 40}
`, exampleInC(t)))
	answersAsOnTheCPU(t, n, "fashion")
	for _, percent := range []float64{20, 50} {
		fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
		fashion.flows(t)
		before, _ := nodetest.Serving(t, n, "fashion")
		nodetest.Share(t, n, "fashion", percent)
		wait.For(t, "fashion to be on its groups", func() bool { return inPlace(t, n, "fashion", percent) })
		fashion.stop().answeredAll(t, 0)
		face.stop().answeredAll(t, 0)
		if now, _ := nodetest.Serving(t, n, "fashion"); now.PID != before.PID {
			t.Errorf("process %d serves, want %d still", now.PID, before.PID)
		}
		answersAsOnTheCPU(t, n, "fashion")
	}
	active, shadow := nodetest.Serving(t, n, "fashion")
	nodetest.Kill(t, active.PID)
	nodetest.ShadowServes(t, n, "fashion", shadow)
	answersAsOnTheCPU(t, n, "fashion")
	nodetest.Settled(t, n, "fashion")
	nodetest.Settled(t, n, "face")
	for line := range strings.Lines(n.Log()) {
		if strings.Contains(line, "weights") || strings.Contains(line, "parameters are") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// The same without MPS, when processes take turns.
func TestModelInCByTime(t *testing.T) {
	n := start(t, fmt.Sprintf(`
functions:
  - {name: fashion, model: %s, port: 0, slo: 20s}
`, exampleInC(t)), configs.Lab{TimeSlicing: true}.Environment())
	answersAsOnTheCPU(t, n, "fashion")
	nodetest.Settled(t, n, "fashion")
}
