package orchestrator

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/keeper"
)

// weightServerMain is a weight server that holds nothing. It reports its process id in place of
// the bytes.
func weightServerMain(arguments []string) int {
	socket := arguments[len(arguments)-1]
	if os.Getenv("CUDA_MPS_PIPE_DIRECTORY") != filepath.Join(filepath.Dir(filepath.Dir(socket)), "no-mps") || !strings.HasPrefix(os.Getenv("CUDA_VISIBLE_DEVICES"), "GPU-") {
		fmt.Fprintln(os.Stderr, "it is a client of MPS, or sees other GPUs")
		return 1
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	json.NewEncoder(os.Stdout).Encode(control.WeightsHeld{Files: 1, Bytes: int64(os.Getpid())})
	if _, err := os.Stat(socket + ".talk"); err == nil {
		fmt.Println("nonsense")
	}
	if _, err := os.Stat(socket + ".orphan"); err == nil {
		orphan := exec.Command("/bin/sleep", "1000")
		orphan.Stderr = os.Stderr
		orphan.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // its own session, so that it does not end with the group
		if err := orphan.Start(); err != nil {
			return 1
		}
		json.NewEncoder(os.Stdout).Encode(control.WeightsHeld{Files: orphan.Process.Pid, Bytes: int64(os.Getpid())})
	}
	<-stop
	return 0
}

func newKeeper(t *testing.T) keeper.Keeper {
	k := keeper.NewLocal()
	t.Cleanup(func() { k.Close() })
	return k
}

// until waits for a state of the weight server.
func (h *runningWeightServer) until(t *testing.T, what string, is func(*control.WeightsHeld) bool) control.WeightsHeld {
	t.Helper()
	var now *control.WeightsHeld
	if !wait.Until(func() bool { now = h.state(); return is(now) }) {
		t.Fatalf("not in time: %s; it is %+v", what, now)
	}
	if now == nil {
		return control.WeightsHeld{}
	}
	return *now
}

func TestWeightServerRestart(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, weightsFolder), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(weightsSocket(dir, "GPU-1")+".talk"), nil, 0o600))
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/somebody's")
	var log buffer
	h := startWeightServer(newKeeper(t), nil, os.Args[0], dir, "GPU-1", nil, zerolog.New(&log))
	t.Cleanup(h.close)
	there := func(w *control.WeightsHeld) bool { return w != nil }
	first := h.until(t, "it is there", there)
	must.OK(t, syscall.Kill(int(first.Bytes), syscall.SIGKILL))
	second := h.until(t, "another is there", func(w *control.WeightsHeld) bool { return w != nil && w.Bytes != first.Bytes })
	for _, words := range []string{"weight server ended", "cannot read state of the weight server"} {
		if !log.has(words) {
			t.Errorf("the log does not say %q", words)
		}
	}
	h.close()
	if exists(int(second.Bytes)) {
		t.Error("it is left")
	}
	if h.state() != nil {
		t.Error("it is told of after its end")
	}
}

// A loader that hangs in the driver outlives the signal and its server, and keeps the
// server's stderr open.
func TestWeightServerLoaderHangs(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, weightsFolder), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(weightsSocket(dir, "GPU-1")+".orphan"), nil, 0o600))
	h := startWeightServer(newKeeper(t), nil, os.Args[0], dir, "GPU-1", nil, zerolog.Nop())
	t.Cleanup(h.close)
	hangs := func(w *control.WeightsHeld) bool { return w != nil && w.Files > 1 }
	first := h.until(t, "its loader hangs", hangs)
	t.Cleanup(func() { syscall.Kill(first.Files, syscall.SIGKILL) })
	must.OK(t, syscall.Kill(int(first.Bytes), syscall.SIGKILL))
	second := h.until(t, "another is there", func(w *control.WeightsHeld) bool { return hangs(w) && w.Bytes != first.Bytes })
	t.Cleanup(func() { syscall.Kill(second.Files, syscall.SIGKILL) })
	if !exists(first.Files) {
		t.Error("the loader has not hung")
	}
	h.close()
}

// A weight server that cannot be started affects no process. It is tried again, at growing
// intervals.
func TestWeightServerStartFails(t *testing.T) {
	var log buffer
	h := startWeightServer(newKeeper(t), nil, "/nowhere/penstock", t.TempDir(), "GPU-1", nil, zerolog.New(&log))
	wait.For(t, "another try", func() bool { return log.has(`"again_in_ms":200`) })
	h.close()
	if h.state() != nil {
		t.Error("it is there")
	}
}

// holdsWeights reports whether the orchestrator's message has held weights. A message may come before
// the GPU is found again.
func holdsWeights(o control.Observed) bool { return gpuOf(o) != nil && gpuOf(o).Weights != nil }

func TestWeightsSocket(t *testing.T) {
	fakeGPUs(t)
	n := newNode(t)
	n.desired.Devices = []string{fakeUUID[:8]}
	cmd := n.orchestrate(cpushare.Governor)
	own, shares := n.onFakeGPU(1, 30), n.onFakeGPU(2, 30)
	n.want(own)
	if n.untilState(1, control.Active); gpuOf(n.last) == nil || gpuOf(n.last).Weights != nil || n.log.has("weights at") {
		t.Errorf("nobody shares, and %+v", gpuOf(n.last))
	}
	shares.SharedWeights = true
	n.want(own, shares)
	n.untilState(2, control.Active)
	n.until("weights are held", holdsWeights)
	held := gpuOf(n.last).Weights
	n.until("the process is told where", func(control.Observed) bool {
		return n.log.has("weights at " + weightsSocket(n.dir, gpuOf(n.last).UUID))
	})
	if held.Files != 1 || !exists(int(held.Bytes)) {
		t.Errorf("held are %+v", held)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	n.untilGone(int(held.Bytes))
}
