//go:build gpu

package gpu

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/node"
)

func TestFunctionKilled(t *testing.T) {
	n := start(t, twoFunctions("auto"))
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	for range 3 {
		active, _ := nodetest.Serving(t, n, "fashion")
		nodetest.Kill(t, active.PID)
		fashion.flows(t)
	}
	nodetest.Serving(t, n, "fashion")
	// Each kill may have failed at most the two batches in flight.
	fashion.stop().answeredAll(t, 3*2*8)
	face.stop().answeredAll(t, 0)
	nodetest.Settled(t, n, "fashion")
	nodetest.Settled(t, n, "face")
	t.Logf("silent for at most %s: fashion %s", fashion.longestPause(), fashion)
}

// neighbour returns a configuration's line of a function whose kernel faults in the 61st
// batch of each of its processes. more has further keys.
func neighbour(t *testing.T, more string) string {
	t.Helper()
	return fmt.Sprintf("  - {name: neighbour, model: %s, port: 0%s, environment: {PENSTOCK_NULL: fault_after=60}}\n", nodetest.Card(t, "neighbour", 2048), more)
}

// neighbourFaults sends the neighbour batches until one faults. That batch must be
// answered as failed.
func neighbourFaults(t *testing.T, n *node.Node) {
	t.Helper()
	f, err := n.Function("neighbour")
	must.OK(t, err)
	c, err := client.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{Timeout: 20 * time.Second})
	must.OK(t, err)
	defer c.Close()
	picture := make([]byte, f.Input.Bytes)
	fault := error(nil)
	for i := 0; i < 100 && fault == nil; i++ {
		_, fault = c.Do(t.Context(), picture, client.RequestOptions{})
	}
	var ended client.StatusError
	if !errors.As(fault, &ended) || client.Status(ended) != client.StatusFailed {
		t.Fatalf("the faulting batch ended with %v, want an answer of %s", fault, client.StatusFailed)
	}
}

// An illegal access kills every client of the MPS server. The shadows, which have not used
// CUDA, are woken immediately.
func TestNeighbourFault(t *testing.T) {
	n := start(t, `
shares: {policy: gslice, tune: false, change: partition}
functions:
  - {name: fashion, port: 0, slo: 10s, share_percent: 40}
  - {name: face, port: 0, slo: 10s, share_percent: 40}
`+neighbour(t, ", share_percent: 20"))
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	for _, name := range []string{"fashion", "face", "neighbour"} {
		nodetest.Serving(t, n, name)
	}
	neighbourFaults(t, n)
	fashion.flows(t)
	face.flows(t)
	fashion.stop().answeredAll(t, 2*8)
	face.stop().answeredAll(t, 2*8)
	t.Logf("silent for %s and %s in %d fault(s)", fashion.longestPause(), face.longestPause(), status(t, n).Devices[0].Faults.Count)
	if !strings.Contains(n.Log(), "waking every shadow") {
		t.Errorf("the log does not tell of the fault")
	}
	for _, name := range []string{"fashion", "face", "neighbour"} {
		nodetest.Serving(t, n, name)
		nodetest.Settled(t, n, name)
	}
}
