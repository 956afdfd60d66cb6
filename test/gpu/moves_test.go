//go:build gpu

package gpu

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// twoFunctions returns a configuration of fashion and face, with a share of 40 % each.
func twoFunctions(change string) string {
	return `
shares: {policy: gslice, tune: false, change: ` + change + `}
functions:
  - {name: fashion, port: 0, slo: 5s, share_percent: 40}
  - {name: face, port: 0, slo: 5s, share_percent: 40}
`
}

// swap orders a share and waits until the shadow has taken over with it.
func swap(t *testing.T, n *node.Node, function string, percent float64) {
	t.Helper()
	_, shadow := nodetest.Serving(t, n, function)
	nodetest.Share(t, n, function, percent)
	wait.For(t, "the shadow to take over", func() bool {
		f, err := n.Function(function)
		return err == nil && slices.ContainsFunc(f.Instances[0].Processes, func(p control.ProcessStatus) bool {
			return p.State == control.Active && p.Generation == shadow.Generation
		})
	})
}

func TestShadowSwaps(t *testing.T) {
	n := start(t, twoFunctions("shadow"))
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	before, _ := nodetest.Serving(t, n, "fashion")
	if before.SMs == 0 || len(before.SMGroups) > 0 {
		t.Errorf("%+v; want multiprocessors counted and no groups", before)
	}
	for _, percent := range []float64{20, 40, 20, 40, 20} {
		old, _ := nodetest.Serving(t, n, "fashion")
		swap(t, n, "fashion", percent)
		now, _ := nodetest.Serving(t, n, "fashion")
		if now.PID == old.PID {
			t.Errorf("process %d serves as before", now.PID)
		}
		t.Logf("%v %%: %d multiprocessors", percent, now.SMs)
		if total := multiprocessors(t, n); percentOf(now.SMs, total) < percent-3 || percentOf(now.SMs, total) > percent+3 {
			t.Errorf("%v %% made %d of %d multiprocessors", percent, now.SMs, total)
		}
	}
	fashion.stop().answeredAll(t, 0)
	face.stop().answeredAll(t, 0)
	nodetest.Settled(t, n, "fashion")
	nodetest.Settled(t, n, "face")
}

// multiprocessors returns the number of the device's multiprocessors.
func multiprocessors(t *testing.T, n *node.Node) int {
	t.Helper()
	d := status(t, n).Devices[0].GPU
	if d == nil {
		t.Fatal("the node runs on no GPU")
	}
	return d.SMs
}

func percentOf(part, whole int) float64 { return 100 * float64(part) / float64(whole) }

func TestPartitionMoves(t *testing.T) {
	n := start(t, twoFunctions("partition"))
	d := status(t, n).Devices[0].GPU
	if d == nil || len(d.GroupSMs) == 0 {
		t.Fatalf("the device is %+v; want groups of multiprocessors", d)
	}
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	fashion.flows(t)
	face.flows(t)
	first, _ := nodetest.Serving(t, n, "fashion")
	backAndForth(t, n, 20, "fashion", "face")
	now, _ := nodetest.Serving(t, n, "fashion")
	if now.PID != first.PID {
		t.Errorf("process %d serves, was %d; want the same, moved in place", now.PID, first.PID)
	}
	fashion.stop().answeredAll(t, 0)
	face.stop().answeredAll(t, 0)
	f := nodetest.Settled(t, n, "fashion")
	// The process reports them in its next report.
	wait.For(t, "20 moves to be counted", func() bool {
		var err error
		f, err = n.Function("fashion")
		return err == nil && f.Swaps >= 20
	})
	t.Logf("idle for a move: %+v µs", f.SwapIdle)
	nodetest.Settled(t, n, "face")
}

// backAndForth moves two functions that many times: one gets what the other gives up.
// Each time it waits until both have moved. They never share a group.
func backAndForth(t *testing.T, n *node.Node, times int, small, large string) {
	t.Helper()
	for range times {
		nodetest.Share(t, n, small, 20)
		nodetest.Share(t, n, large, 70)
		wait.For(t, "both to be where they shall be", func() bool {
			inProcess(t, n)
			return inPlace(t, n, small, 20) && inPlace(t, n, large, 70)
		})
		small, large = large, small
	}
}

// inPlace reports whether the serving process is on its ordered groups, and whether
// these are about that part of the device. A group is 6 to 9 % of an H200.
func inPlace(t *testing.T, n *node.Node, function string, percent float64) bool {
	t.Helper()
	f, err := n.Function(function)
	if err != nil || len(f.Instances) == 0 {
		return false
	}
	in := f.Instances[0]
	p, serves := in.Serving()
	part := percentOf(p.SMs, multiprocessors(t, n))
	return serves && len(in.SMGroups) > 0 && slices.Equal(p.SMGroups, in.SMGroups) && part > percent-10 && part < percent+10
}

// inProcess checks that no two processes use the same group.
func inProcess(t *testing.T, n *node.Node) {
	t.Helper()
	owner := map[int]string{}
	for _, f := range status(t, n).Functions {
		for _, in := range f.Instances {
			for _, p := range in.Processes {
				if p.State.Ended() {
					continue
				}
				for _, g := range p.SMGroups {
					if other, taken := owner[g]; taken && other != f.Name {
						t.Errorf("group %d has %s and %s", g, other, f.Name)
					}
					owner[g] = f.Name
				}
			}
		}
	}
}

func TestHundredSwaps(t *testing.T) {
	n := start(t, twoFunctions("shadow"))
	fashion := send(t, n, "fashion", 200)
	fashion.flows(t)
	nodetest.Serving(t, n, "fashion")
	nodetest.Serving(t, n, "face")
	var after10 int64
	for i := range 100 {
		swap(t, n, "fashion", []float64{30, 40}[i%2])
		if i == 9 { // the driver and MPS have allocated what they keep
			nodetest.Serving(t, n, "fashion")
			time.Sleep(time.Second)
			after10 = usedBytes(t)
		}
	}
	nodetest.Serving(t, n, "fashion")
	wait.For(t, "the last swap's memory to come back", func() bool { return usedBytes(t) <= after10+slackBytes })
	t.Logf("%d MiB in use after 10 swaps, %d after 100", after10>>20, usedBytes(t)>>20)
	fashion.stop().answeredAll(t, 0)
	nodetest.Settled(t, n, "fashion")
}
