package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	libmlgpu "github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// probeMain is `penstock probe`.
func probeMain(arguments []string) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(status), "NoNewPrivs:\t1\n") || !strings.Contains(string(status), "CapEff:\t0000000000000000\n") {
		fmt.Fprintln(os.Stderr, "it is not confined:", err)
		return 1
	}
	run := func() error {
		device := arguments[slices.Index(arguments, "--device")+1]
		if slices.Contains(arguments, "--fill") {
			return libmlgpu.Occupy(device, os.Stdin, os.Stdout)
		}
		p, err := libmlgpu.MeasurePriorities(device, func() *exec.Cmd {
			other := exec.Command(os.Args[0], "probe", "--fill", "--device", device)
			other.Stderr = os.Stderr
			return other
		})
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(p)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// sharedGPU returns settings of a fake GPU that the processes of a test share. They run as another
// user.
func sharedGPU(t *testing.T) []cudafake.Setting {
	t.Helper()
	file, err := os.CreateTemp("/dev/shm", "turns-") // the sandbox lets processes write there
	must.OK(t, err)
	file.Close()
	t.Cleanup(func() { os.Remove(file.Name()) })
	must.OK(t, os.Chmod(file.Name(), 0o666))
	return cudafake.Full(file.Name())
}

// maxAttempts is how often a test measures. The CPU times the fake GPU, so a busy machine disturbs
// some measurements.
const maxAttempts = 10

// probedAs calls probed, each time with a new cache, until the result is as wanted.
func probedAs(t *testing.T, timeout time.Duration, settings []cudafake.Setting,
	wanted func(*control.StreamPriorities, *buffer) bool,
) (p *control.StreamPriorities, cache string) {
	t.Helper()
	var results []string
	for range maxAttempts {
		cache = t.TempDir()
		p, log := probed(t, cache, timeout, settings...)
		if wanted(p, log) {
			return p, cache
		}
		results = append(results, fmt.Sprintf("%+v; log:\n%s", p, log))
	}
	t.Fatalf("no attempt has the wanted result:\n%s", strings.Join(results, "\n"))
	return nil, ""
}

// probed runs an orchestrator for a manager that wants guarantees, until it has opened the GPU.
// It returns the reported result.
func probed(t *testing.T, cache string, timeout time.Duration, settings ...cudafake.Setting) (*control.StreamPriorities, *buffer) {
	t.Helper()
	value, _ := strings.CutPrefix(cudafake.Env(settings...), "PENSTOCK_FAKE=")
	t.Setenv("PENSTOCK_FAKE", value)
	n := newNode(t)
	n.desired.Devices, n.desired.ProbePriorities = []string{fakeUUID[:8]}, true
	n.cache, n.probeTimeout = cache, timeout
	cmd := n.orchestrate(cpushare.Governor, "sandbox")
	n.want()
	n.until("the GPU is open", func(o control.Observed) bool { return gpuOf(o) != nil })
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return gpuOf(n.last).Priorities, n.log
}

func TestPriorityProbe(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings func(t *testing.T) []cudafake.Setting
		hold     bool
	}{
		{"hold", sharedGPU, true},
		{"do not hold", func(t *testing.T) []cudafake.Setting { return append(sharedGPU(t), cudafake.Flat) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fakeGPUs(t)
			first, cache := probedAs(t, patience, c.settings(t), func(p *control.StreamPriorities, log *buffer) bool {
				return p != nil && p.Hold == c.hold && log.has(`"cached":false`)
			})
			// Another start reads the result: on this GPU, a measurement would fail.
			second, log := probed(t, cache, patience, cudafake.Refuse("cuDevicePrimaryCtxRetain", 0, 2))
			if second == nil || *second != *first || !log.has(`"cached":true`) {
				t.Errorf("the second start reports %+v, the first %+v", second, first)
			}
		})
	}
}

func TestPriorityProbeFails(t *testing.T) {
	for _, c := range []struct {
		name    string
		setting cudafake.Setting
		timeout time.Duration
		why     string
	}{
		{"hangs", cudafake.Delay("cuDevicePrimaryCtxRetain", time.Hour), time.Second, "no result within 1s"},
		{"crashes", cudafake.Fault("fetch", 1, 700), patience, "measure stream priorities: "},
		{"not full", cudafake.Wave(time.Microsecond), patience, "the GPU was not full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			fakeGPUs(t)
			_, cache := probedAs(t, c.timeout, []cudafake.Setting{c.setting}, func(p *control.StreamPriorities, log *buffer) bool {
				return p == nil && log.has("assuming that they hold") && log.has(c.why)
			})
			if files, err := os.ReadDir(cache); err != nil || len(files) > 0 {
				t.Errorf("kept %v, %v", files, err)
			}
		})
	}
}

// The cache folder of package cudafake holds a result for its device.
func TestFakeCache(t *testing.T) {
	setting, err := cudafake.Cache(t.TempDir())
	must.OK(t, err)
	_, dir, _ := strings.Cut(setting, "=")
	fakeGPUs(t)
	p, log := probed(t, filepath.Join(dir, "penstock"), patience)
	if p == nil || !p.Hold || !log.has(`"cached":true`) {
		t.Errorf("reported %+v", p)
	}
}

// Only a manager with guarantees, on a GPU with MPS, has the priorities measured.
func TestProbeIsAskedFor(t *testing.T) {
	flat := control.StreamPriorities{AloneMicros: 1, HighMicros: 9, EqualMicros: 9}
	for _, c := range []struct {
		name   string
		edit   func(n *node)
		probes int
		want   *control.StreamPriorities
	}{
		{"guarantees", func(*node) {}, 1, &flat},
		{"gslice", func(n *node) { n.desired.ProbePriorities = false }, 0, nil},
		{"without MPS", func(n *node) { n.machine.noMPS = errors.New("none") }, 0, nil},
		{"MPS is not wanted", func(n *node) { n.desired.NoMPS = true }, 0, nil},
		{"CPU", func(n *node) { n.desired.Devices = []string{control.DeviceCPU} }, 0, nil},
		{"fails", func(n *node) { n.machine.noPriorities = errors.New("it crashed") }, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			runGPUNode(t, nil, func(n *node) {
				n.machine.prioritiesResult, n.desired.ProbePriorities = flat, true
				c.edit(n)
				n.want(newDesired(1, control.Serve, 0))
				n.untilState(1, control.Active)
				var got *control.StreamPriorities
				if d := gpuOf(n.link.observed()); d != nil {
					got = d.Priorities
				}
				if n.machine.probes != c.probes || (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
					t.Errorf("%d probes, reported %+v; want %d and %+v", n.machine.probes, got, c.probes, c.want)
				}
			})
		})
	}
}

// A manager with guarantees that follows one without them has the device opened again.
func TestProbeAfterAnotherManager(t *testing.T) {
	runGPUNode(t, nil, func(n *node) {
		n.want(newDesired(1, control.Serve, 0))
		n.untilState(1, control.Active)
		n.replaceManager("n")
		n.desired.ProbePriorities = true
		n.want(newDesired(2, control.Serve, 0))
		n.untilState(2, control.Active)
		if o := n.link.observed(); n.machine.probes != 1 || gpuOf(o).Priorities == nil {
			t.Errorf("%d probes, device %+v", n.machine.probes, gpuOf(o))
		}
	})
}

// A new orchestrator must not measure on a GPU that functions use.
func TestNoProbeAfterResume(t *testing.T) {
	for _, known := range []*control.StreamPriorities{nil, {Hold: true, AloneMicros: 1, HighMicros: 2, EqualMicros: 9}} {
		m := newFakeMachine()
		changes := make(chan struct{}, 1)
		d := gpu.Open(func() {}, gpu.Options{Device: "cuda", Probe: true, Resumed: true, Known: known}, m, t.TempDir(), changes, zerolog.Nop())
		<-changes
		if s := d.Changed(); m.probes != 0 || s.Priorities != known {
			t.Errorf("%d probes, %+v; want none and %+v", m.probes, s.Priorities, known)
		}
		d.Close()
	}
}
