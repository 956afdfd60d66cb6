package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// severalGPUs returns the environment of a node with unequal GPUs, MPS and NVML, and the conditions of the GPUs.
func severalGPUs(t *testing.T, settings ...cudafake.Setting) ([]string, *cudafake.Conditions) {
	t.Helper()
	environment := withGPU(t, true)
	driver, err := fakeGPU()
	must.OK(t, err)
	dir, err := os.MkdirTemp("/dev/shm", "gpus-") // the sandbox lets processes read it
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.OK(t, os.Chmod(dir, 0o755))
	conditions, err := cudafake.NewConditions(filepath.Join(dir, "conditions"))
	must.OK(t, err)
	settings = append([]cudafake.Setting{cudafake.Memory(16 << 30), conditions.Setting()}, settings...)
	return append(environment, cudafake.Env(settings...), cudafake.NVML(driver)), conditions
}

// environmentOf returns a variable of a process's environment.
func environmentOf(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	must.OK(t, err)
	for _, e := range bytes.Split(text, []byte{0}) {
		if value, ok := bytes.CutPrefix(e, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// daemons returns the values of CUDA_VISIBLE_DEVICES of a node's MPS daemons.
func daemons(t *testing.T, nd *node.Node) map[string]int {
	t.Helper()
	found := map[string]int{}
	pids, _ := filepath.Glob(filepath.Join(nd.Dir, "mps-*", "nvidia-cuda-mps-control.pid"))
	for _, file := range pids {
		var pid int
		text, err := os.ReadFile(file)
		must.OK(t, err)
		must.Get(fmt.Sscan(string(text), &pid))(t)
		found[environmentOf(t, pid, "CUDA_VISIBLE_DEVICES")]++
	}
	return found
}

// One node runs functions on two GPUs: a manager, an orchestrator, and an MPS daemon per GPU.
func TestTwoGPUs(t *testing.T) {
	t.Parallel()
	environment, _ := severalGPUs(t, cudafake.Devices(2))
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf(`devices: [cuda:0, 1]
functions:
  - {name: fn, model: %[1]s, port: 0, devices: [0]}
  - {name: other, model: %[1]s, port: 0, devices: [1]}
`, card), environment...)

	on := map[string]string{"fn": cudafake.UUID(0), "other": cudafake.UUID(1)}
	for name, uuid := range on {
		active, shadow := nodetest.Serving(t, nd, name)
		for _, p := range []int{active.PID, shadow.PID} {
			if visible := environmentOf(t, p, "CUDA_VISIBLE_DEVICES"); visible != uuid {
				t.Errorf("process %d of %s sees %s, want %s", p, name, visible, uuid)
			}
		}
	}
	for uuid, n := range map[string]int{cudafake.UUID(0): 1, cudafake.UUID(1): 1} {
		if got := daemons(t, nd); len(got) != 2 || got[uuid] != n {
			t.Errorf("MPS daemons %v", got)
		}
	}
	count := map[string]int{}
	for _, p := range nodetest.Processes(nd.Dir) {
		count[p.Command]++
	}
	if count["manager"] != 1 || count["orchestrator"] != 1 {
		t.Errorf("processes %v", count)
	}

	others := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "other", client.Options{Deliver: others.Deliver(small), Timeout: 20 * time.Second})
	const sent = 100
	got := stream(t, nd, 2*sent, func() { nodetest.Send(t, c, small, 0, sent, time.Millisecond) })
	others.Wait(sent)
	if got.By[client.StatusOK] != 2*sent || got.Wrong > 0 || others.By[client.StatusOK] != sent || others.Wrong > 0 {
		t.Errorf("answers %s, and %s", got, others)
	}

	for i := range 2 {
		run := []string{"run", "--runtime-dir", nd.Dir, "--device", fmt.Sprintf("cuda:%d", i), "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"}
		out, err := exec.CommandContext(nodetest.Context(t), penstock, run...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), cudafake.UUID(i)+"\n") {
			t.Errorf("a guest on device %d: %v, %s", i, err, out)
		}
	}

	status, err := nd.Status()
	must.OK(t, err)
	for i, sms := range []int{132, 116} {
		d := status.Devices[i]
		if d.GPU == nil || d.GPU.SMs != sms || d.GPU.UUID != cudafake.UUID(i) || d.Mechanism != "mps" {
			t.Errorf("device %d is %+v, %+v", i, d, d.GPU)
		}
	}
	list, err := exec.CommandContext(nodetest.Context(t), penstock, "if", "list", "--runtime-dir", nd.Dir).CombinedOutput()
	if err != nil || !strings.Contains(string(list), "Penstock Fake 0 ("+cudafake.UUID(0)) || !strings.Contains(string(list), "Penstock Fake 1 ("+cudafake.UUID(1)) {
		t.Errorf("if list says %v\n%s", err, list)
	}
	nodetest.Settled(t, nd, "fn")
	nodetest.Settled(t, nd, "other")
}

// A GPU fails permanently under load. Its function continues on the other one, and every request is answered.
func TestGPUVanishes(t *testing.T) { loseGPU(t, cudafake.Condition{Gone: true}) }

func TestGPUFails(t *testing.T) { loseGPU(t, cudafake.Condition{Fault: 719}) }

func loseGPU(t *testing.T, lost cudafake.Condition) {
	t.Helper()
	t.Parallel()
	environment, conditions := severalGPUs(t, cudafake.Devices(2))
	card := nodetest.Card(t, "digest", small)
	nd := start(t, fmt.Sprintf(`devices: [cuda:0, cuda:1]
functions:
  - {name: fn, model: %[1]s, port: 0}
  - {name: other, model: %[1]s, port: 0}
`, card), environment...)
	device := func(name string) int { // that serves a function
		active, _ := nodetest.Serving(t, nd, name)
		for i := range 2 {
			if environmentOf(t, active.PID, "CUDA_VISIBLE_DEVICES") == cudafake.UUID(i) {
				return i
			}
		}
		t.Fatalf("%s runs on no device", name)
		return 0
	}
	gone := device("fn")
	left := 1 - gone

	got := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "fn", client.Options{Deliver: got.Deliver(small), Timeout: 20 * time.Second})
	nodetest.Send(t, c, small, 0, 100, 2*time.Millisecond)
	began := time.Now()
	must.OK(t, conditions.Set(gone, lost))
	nodetest.Send(t, c, small, 100, 200, 2*time.Millisecond)
	wait.For(t, "fn to serve on the other GPU", func() bool {
		f, err := nd.Function("fn")
		if err != nil || len(f.Instances) == 0 {
			return false
		}
		p, serves := f.Instances[0].Serving()
		return serves && environmentOf(t, p.PID, "CUDA_VISIBLE_DEVICES") == cudafake.UUID(left)
	})
	t.Logf("fn serves %v after its GPU is gone", time.Since(began).Round(time.Millisecond))
	nodetest.Send(t, c, small, 300, 100, 2*time.Millisecond)
	got.Wait(400)
	// Requests on the GPU fail, and the slots may be full until the next process serves.
	if rest := 400 - got.By[client.StatusOK] - got.By[client.StatusBusy]; got.Lost > 0 || got.Wrong > 0 || rest > 2*16 || got.By[client.StatusOK] < 200 {
		t.Errorf("answers %s", got)
	}
	if on := device("other"); on != left {
		t.Errorf("other serves on device %d", on)
	}
	status, err := nd.Status()
	must.OK(t, err)
	if status.Devices[gone].Lost == "" || status.Devices[left].Lost != "" {
		t.Errorf("devices %+v", status.Devices)
	}

	must.OK(t, conditions.Set(gone, cudafake.Condition{}))
	wait.For(t, "the GPU to be back", func() bool {
		status, err := nd.Status()
		return err == nil && status.Devices[gone].Lost == ""
	})
	nodetest.Settled(t, nd, "fn")
	nodetest.Settled(t, nd, "other")
}

// A node runs on MIG instances: each is a device, with its MPS daemon.
func TestMIGInstances(t *testing.T) {
	t.Parallel()
	environment, _ := severalGPUs(t, cudafake.Devices(2), cudafake.MIG(1))
	nd := start(t, fmt.Sprintf(`devices: [%[2]s, %[3]s, cuda:0]
shares: {policy: gslice, tune: false, change: shadow}
functions:
  - {name: fn, model: %[1]s, port: 0, share_percent: 50, devices: [%[2]s]}
  - {name: other, model: %[1]s, port: 0, share_percent: 50, devices: [%[3]s]}
  - {name: whole, model: %[1]s, port: 0, share_percent: 50, devices: [0]}
`, nodetest.Card(t, "digest", small), cudafake.Instance(0), cudafake.Instance(1)), environment...)
	for name, uuid := range map[string]string{"fn": cudafake.Instance(0), "other": cudafake.Instance(1), "whole": cudafake.UUID(0)} {
		active, _ := nodetest.Serving(t, nd, name)
		if visible := environmentOf(t, active.PID, "CUDA_VISIBLE_DEVICES"); visible != uuid {
			t.Errorf("%s sees %s, want %s", name, visible, uuid)
		}
		if got := daemons(t, nd); len(got) != 3 || got[uuid] != 1 {
			t.Errorf("MPS daemons %v", got)
		}
	}
	if got := stream(t, nd, 50, func() {}); got.By[client.StatusOK] != 50 || got.Wrong > 0 {
		t.Errorf("answers %s", got)
	}
	status, err := nd.Status()
	must.OK(t, err)
	for i := range 2 {
		if g := status.Devices[i].GPU; g == nil || g.SMs != 58 || g.MemoryBytes != 7<<30 || g.Name != "Penstock Fake 1 MIG 3g.7gb" {
			t.Errorf("instance %d is %+v", i, g)
		}
	}
}

// The manager finds the GPUs of `devices: all` each time that it starts. An edit is compared with what it found.
func TestAllDevices(t *testing.T) {
	t.Parallel()
	environment, _ := severalGPUs(t, cudafake.Devices(2))
	function := fmt.Sprintf("  - {name: %%s, model: %s, port: 0, devices: [%%s]}\n", nodetest.Card(t, "digest", small))
	nd := start(t, "devices: all\nfunctions:\n"+fmt.Sprintf(function, "fn", "1"), environment...)
	text, err := os.ReadFile(nd.Config)
	must.OK(t, err)
	must.OK(t, os.WriteFile(nd.Config, append(text, fmt.Sprintf(function, "added", cudafake.UUID(0))...), 0o600))
	check := func() {
		t.Helper()
		wait.For(t, "both functions to serve", func() bool {
			status, err := nd.Status()
			return err == nil && len(status.Functions) == 2 && status.Functions[0].Serves() && status.Functions[1].Serves()
		})
		status, err := nd.Status()
		must.OK(t, err)
		if keys := status.Configuration.NeedRestart; len(keys) > 0 || !status.Configuration.Followed {
			t.Errorf("the configuration is followed: %v, and %v need a restart", status.Configuration.Followed, keys)
		}
		for i, d := range status.Devices {
			if len(status.Devices) != 2 || d.Name != cudafake.UUID(i)[:12] {
				t.Errorf("device %d is %+v", i, d)
			}
		}
		for name, want := range map[string]string{"fn": cudafake.UUID(1)[:12], "added": cudafake.UUID(0)[:12]} {
			if f, _ := status.Function(name); f.Instances[0].Device != want {
				t.Errorf("%s runs on %s, want %s", name, f.Instances[0].Device, want)
			}
		}
	}
	check()
	newManager(t, nd)
	check()

	for _, verb := range [][]string{{"if", "list"}, {"top", "--interval", "100ms"}} {
		text, err := exec.CommandContext(nodetest.Context(t), penstock, append(verb, "--runtime-dir", nd.Dir)...).CombinedOutput()
		must.OK(t, err)
		before, after, _ := strings.Cut(string(text), "added")
		for _, uuid := range []string{cudafake.UUID(0), cudafake.UUID(1)} {
			if !strings.Contains(before, uuid[:12]+"  ░░░░░░░░░░░░░░░░░░░░   0 %  Penstock Fake") {
				t.Errorf("%s has no bar of %s:\n%s", verb, uuid, text)
			}
		}
		if !strings.Contains(after, "fn ") { // on the second device
			t.Errorf("%s does not group functions by device:\n%s", verb, text)
		}
	}
}

// A GPU has one node. Another node that wants it ends, and says which node has the GPU.
func TestBusyDevice(t *testing.T) {
	t.Parallel()
	environment, _ := severalGPUs(t, cudafake.Devices(2))
	card := nodetest.Card(t, "digest", small)
	text := func(devices string) string {
		return fmt.Sprintf("devices: %s\nfunctions: [{name: fn, model: %s, port: 0}]\n", devices, card)
	}
	nd := start(t, text("[cuda:0]"), environment...)
	must.OK(t, nd.WaitReady(nodetest.Context(t)))

	config := filepath.Join(t.TempDir(), "other.yaml")
	must.OK(t, os.WriteFile(config, []byte("gateway: off\nhttp: 127.0.0.1:0\n"+text("[cuda:1, cuda:0]")), 0o600))
	up := exec.CommandContext(nodetest.Context(t), penstock, "up", "--config", config, "--runtime-dir", filepath.Join(t.TempDir(), "run"))
	up.Env = append(os.Environ(), environment...)
	out, err := up.CombinedOutput()
	want := fmt.Sprintf("open device cuda:0: another node has %s: process %d, with runtime folder", cudafake.UUID(0), nodetest.Child(t, nd, "orchestrator"))
	if err == nil || strings.Count(string(out), want) != 1 {
		t.Errorf("the other node: %v, want one line with %q:\n%s", err, want, out)
	}
	must.OK(t, nd.WaitReady(nodetest.Context(t)))
}

// Orders spread a function over two GPUs, and gather it on the other one, under load. No request fails.
func TestPlacementOrders(t *testing.T) {
	t.Parallel()
	environment, _ := severalGPUs(t, cudafake.Devices(2))
	nd := start(t, fmt.Sprintf("devices: [cuda:0, cuda:1]\nfunctions:\n  - {name: fn, model: %s, port: 0}\n", nodetest.Card(t, "digest", small)), environment...)
	place := func(segments ...control.PlacedSegment) error {
		_, err := control.SendOrder(nodetest.Context(t), nd.Dir, control.PlacePath, control.PlacementOrder{
			Functions: []control.FunctionPlacement{{Name: "fn", Segments: segments}},
		})
		return err
	}
	const sent = 1500
	got := stream(t, nd, sent, func() {
		must.OK(t, place(control.PlacedSegment{Device: "cuda:0", Processes: 1}, control.PlacedSegment{Device: "cuda:1", Processes: 2}))
		if f, err := nd.Function("fn"); err != nil || len(f.Instances) != 3 {
			t.Errorf("%d instances, %v; want 3", len(f.Instances), err)
		}
		must.OK(t, place(control.PlacedSegment{Device: "cuda:1", Processes: 1}))
		if err := place(control.PlacedSegment{Device: "cuda:5", Processes: 1}); err == nil || !strings.Contains(err.Error(), "cuda:5") {
			t.Errorf("an order for another device gets %v", err)
		}
	})
	if got.By[client.StatusOK] != sent || got.Wrong > 0 {
		t.Errorf("answers %s", got)
	}
	active, _ := nodetest.Serving(t, nd, "fn")
	if f, err := nd.Function("fn"); err != nil || len(f.Instances) != 1 || environmentOf(t, active.PID, "CUDA_VISIBLE_DEVICES") != cudafake.UUID(1) {
		t.Errorf("%d instances, %v; want one on the second GPU", len(f.Instances), err)
	}
	nodetest.Settled(t, nd, "fn")
}
