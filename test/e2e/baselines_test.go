package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// The baselines are Penstock with PENSTOCK_LAB (docs/adr/0010-baselines.md). Each must
// answer every request and report its name.
func TestBaselines(t *testing.T) {
	t.Parallel()
	const n = 240
	card := nodetest.Card(t, "digest", small)
	type says struct{ mechanism, change string }
	fixed := func(size int, delay time.Duration) control.Batching {
		return control.Batching{Rule: control.BatchFixed, Size: size, Delay: delay}
	}
	aimd, one := control.Batching{Rule: control.BatchAIMD}, control.Batching{Rule: control.BatchOne}
	const cpu, gpu, shares = "", "device: cuda\n", "shares: {policy: gslice}"
	const partitions = "shares: {policy: gslice, change: partition}"
	for _, c := range []struct {
		name   string
		config string // of the node, in addition to its functions
		lab    configs.Lab
		want   says
		max    float64 // the batch limit, if the rule has one
	}{
		{"on a CPU, guarantees", cpu, configs.Lab{}, says{"", "none"}, 0},
		{"guarantees", gpu, configs.Lab{}, says{"mps", "none"}, 0},
		{"on a CPU, no shares", cpu, configs.Lab{Change: configs.ChangeNone}, says{"", "none"}, 0},
		{"on a CPU, static percentages", cpu + "shares: {policy: gslice, change: in-place, tune: false}", configs.Lab{}, says{"", "in-place"}, 0},
		{"on a CPU, AIMD", cpu + shares, configs.Lab{Batching: aimd}, says{"", "shadow"}, 0},
		{"on a CPU, one request a batch", cpu + shares, configs.Lab{Batching: one}, says{"", "shadow"}, 1},
		{"on a CPU, fixed batches", cpu + shares, configs.Lab{Batching: fixed(4, 3*time.Millisecond)}, says{"", "shadow"}, 4},
		{"time slicing", gpu, configs.Lab{TimeSlicing: true}, says{"time-slicing", "none"}, 0},
		{"time slicing, one request a batch, every one run", gpu, configs.Lab{TimeSlicing: true, Batching: one, CopyGather: true}, says{"time-slicing", "none"}, 1},
		{"default MPS", gpu, configs.Lab{Change: configs.ChangeNone, Batching: one}, says{"mps", "none"}, 1},
		{"default MPS and SLAB", gpu, configs.Lab{Change: configs.ChangeNone}, says{"mps", "none"}, 0},
		{"default MPS and fixed batches", gpu, configs.Lab{Change: configs.ChangeNone, Batching: fixed(8, 2*time.Millisecond)}, says{"mps", "none"}, 8},
		{"static percentages", gpu + "shares: {policy: gslice, change: shadow, tune: false}", configs.Lab{}, says{"mps", "shadow"}, 0},
		{"AIMD by percentages", gpu + shares, configs.Lab{Batching: aimd}, says{"mps", "shadow"}, 0},
		{"AIMD on partitions", gpu + partitions, configs.Lab{Batching: aimd}, says{"mps", "partition"}, 0},
		{"the CPU gathers, on partitions", gpu + partitions, configs.Lab{CopyGather: true}, says{"mps", "partition"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			share := ", share_percent: 30"
			if c.want.change == "none" {
				share = ""
			}
			text := c.config + fmt.Sprintf("\nlog: {level: debug}\nfunctions:\n  - {name: fn, model: %s, port: 0%s}\n  - {name: other, model: %s, port: 0%s}\n", card, share, card, share)
			environment, onGPU := []string{c.lab.Environment()}, strings.HasPrefix(c.config, gpu)
			if onGPU {
				environment = append(environment, withGPU(t, true)...)
			}
			nd := start(t, text, environment...)
			first, shadow := nodetest.Serving(t, nd, "fn")
			got := stream(t, nd, n, func() {})
			if got.By[client.StatusOK] != n || got.Wrong > 0 || got.Lost > 0 {
				t.Errorf("%s; want %d right answers", got, n)
			}
			status, err := nd.Status()
			must.OK(t, err)
			f, _ := status.Function("fn")
			is := says{status.Devices[0].Mechanism, f.Change}
			if !onGPU {
				is.mechanism = ""
			}
			want := c.lab
			if want.TimeSlicing {
				want.Change = configs.ChangeNone
			}
			if is != c.want || status.Lab != want.String() {
				t.Errorf("status says %+v and lab %s, want %+v and %s", is, status.Lab, c.want, want)
			}
			if warned := strings.Contains(nd.Log(), "makes this node a baseline"); warned != (want != configs.Lab{}) {
				t.Errorf("the log warns of a baseline: %v", warned)
			}
			if c.max > 0 && f.Limit != c.max {
				t.Errorf("batches of %v, want %v", f.Limit, c.max)
			}
			if in := f.Instances[0]; in.WholeDevice != (c.want.change == "none") || in.WholeDevice && f.Guarantee == nil && f.SharePercent != 100 {
				t.Errorf("a share of %v %%, the whole device %v", f.SharePercent, in.WholeDevice)
			}
			if onGPU && c.want.change == "none" && first.SMs != status.Devices[0].GPU.SMs {
				t.Errorf("it counts %d multiprocessors of %d", first.SMs, status.Devices[0].GPU.SMs)
			}
			// In every baseline the shadow takes over from a process that dies.
			nodetest.Kill(t, first.PID)
			nodetest.ShadowServes(t, nd, "fn", shadow)
			nodetest.Settled(t, nd, "fn")
		})
	}
}

// Without MPS, processes take turns and have separate contexts. A fault of one does not
// affect the others, and no MPS server is queried.
func TestFaultByTime(t *testing.T) {
	t.Parallel()
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf(`
device: cuda
functions:
  - {name: fn, model: %s, port: 0}
  - {name: bad, model: %s, port: 0, environment: {PENSTOCK_NULL: "fault_after=60"}}
`, card, card), append(withGPU(t, true), configs.Lab{TimeSlicing: true}.Environment())...)
	first, _ := nodetest.Serving(t, nd, "fn")
	faulty, _ := nodetest.Serving(t, nd, "bad")
	bad := nodetest.NewAnswers()
	b := nodetest.Dial(t, nd, "bad", client.Options{Deliver: bad.Deliver(small), Timeout: 20 * time.Second})
	sent := 0
	got := stream(t, nd, 200, func() {
		wait.For(t, "another process of the one that faults", func() bool {
			nodetest.Send(t, b, small, sent, 1, 2*time.Millisecond)
			sent++
			f, err := nd.Function("bad")
			if err != nil {
				return false
			}
			now, ok := f.Instances[0].Serving()
			return ok && now.Generation > faulty.Generation
		})
	})
	bad.Wait(sent)
	if bad.Lost > 0 || bad.By[client.StatusFailed] == 0 {
		t.Errorf("the one that faults: %s; want every request answered, one batch at least failed", bad)
	}
	if got.By[client.StatusOK] != 200 || got.Wrong > 0 {
		t.Errorf("its neighbour: %s; want 200 right answers", got)
	}
	if now, _ := nodetest.Serving(t, nd, "fn"); now.PID != first.PID {
		t.Errorf("process %d serves the neighbour, want %d still", now.PID, first.PID)
	}
	status, err := nd.Status()
	must.OK(t, err)
	if status.Devices[0].Faults.Count != 0 || status.Devices[0].GPU.Why != "" {
		t.Errorf("status says %+v of %+v", status.Devices[0].Faults, status.Devices[0].GPU)
	}
	nodetest.Settled(t, nd, "fn")
	nodetest.Settled(t, nd, "bad")
}
