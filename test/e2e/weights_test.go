package e2e

import (
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// A node whose functions share weights has a weight server. It is restarted if it is
// killed, and ends with the node. The null model has no weights, so the weight server
// holds none.
func TestWeightsShared(t *testing.T) {
	t.Parallel()
	text := "weights: shared\n" + onGPU(nodetest.Card(t, "digest", small), "name: fn, share_percent: 50", "name: own, share_percent: 50, weights: private")
	nd := start(t, text, withGPU(t, true)...)
	held := func() *control.WeightsHeld {
		s, err := nd.Status()
		if err != nil || s.Devices[0].GPU == nil {
			return nil
		}
		return s.Devices[0].GPU.Weights
	}
	wait.For(t, "a holder", func() bool { return held() != nil })
	if w := held(); w.Files != 0 || w.Bytes != 0 {
		t.Errorf("it holds %+v", w)
	}
	before := weightServerOf(t, nd)
	nodetest.Kill(t, before)
	wait.For(t, "another holder", func() bool { now := weightServerOf(t, nd); return now != 0 && now != before })
	wait.For(t, "what it holds", func() bool { return held() != nil })
	onGroups(t, nd, "fn", "own")
}

func TestWeightsPrivate(t *testing.T) {
	t.Parallel()
	nd := start(t, "weights: private\n"+onGPU(nodetest.Card(t, "digest", small), "name: fn, share_percent: 50"), withGPU(t, true)...)
	onGroups(t, nd, "fn")
	s, err := nd.Status()
	if err != nil || s.Devices[0].GPU == nil || s.Devices[0].GPU.Weights != nil || weightServerOf(t, nd) != 0 {
		t.Errorf("%+v, holder %d, %v", s.Devices[0].GPU, weightServerOf(t, nd), err)
	}
}

// weightServerOf returns the process id of a node's weight server, 0 if there is none.
func weightServerOf(t *testing.T, nd *node.Node) int {
	t.Helper()
	for _, p := range nodetest.Processes(nd.Dir) {
		if p.Command == "weights" {
			return p.PID
		}
	}
	return 0
}
