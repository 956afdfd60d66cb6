package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
)

// The demo's parts on a simulated GPU, with functions that compute nothing.
func TestGPUDemo(t *testing.T) {
	text := "listen: 127.0.0.1\nfunctions:\n"
	for _, name := range []string{"face", "fashion", "detect"} {
		text += fmt.Sprintf("  - {name: %s, model: %s, port: 0}\n", name, nodetest.Card(t, name, small))
	}
	functions := filepath.Join(t.TempDir(), "functions.yaml")
	must.OK(t, os.WriteFile(functions, []byte(text), 0o600))
	folder := t.TempDir()
	cmd := exec.CommandContext(longContext(t), penstock, "demo", "--device", "cuda", "--functions", functions, "--out", folder, "--duration", "4s")
	cmd.Env = append(os.Environ(), withGPU(t, true)...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &out, &complaints)
	}
	if !regexp.MustCompile(`(?m)^detect: .*; overloaded: [0-9.]+ of [0-9.]+ requests/s in time$`).MatchString(out.String()) {
		t.Errorf("printed\n%s\n%s", &out, &complaints)
	}
	for _, part := range []string{"first half", "second half"} {
		if !strings.Contains(complaints.String(), part+": ") {
			t.Errorf("no %s:\n%s", part, &complaints)
		}
	}

	// The node uses all CPUs, although the load is pinned to some of them.
	log, err := os.ReadFile(filepath.Join(folder, "penstock.log"))
	must.OK(t, err)
	_, cpus := orchestrator.IFCPUs(0, orchestrator.Near{})
	want := fmt.Sprintf(`"cpus":[%s]`, strings.ReplaceAll(strings.Trim(fmt.Sprint(cpus), "[]"), " ", ","))
	if n := strings.Count(string(log), want); n != 1 {
		t.Errorf("%d nodes use %s, want 1:\n%s", n, want, log)
	}
}

// A node on a GPU whose stream priorities do not hold serves with guarantees, and says that functions are unprotected.
func TestGPUWithoutPriorities(t *testing.T) {
	turns, err := os.CreateTemp("/dev/shm", "turns-") // the sandbox lets processes write there
	must.OK(t, err)
	turns.Close()
	t.Cleanup(func() { os.Remove(turns.Name()) })
	must.OK(t, os.Chmod(turns.Name(), 0o666))
	for _, c := range []struct {
		name     string
		settings []cudafake.Setting
		says     string
	}{
		{"do not hold", []cudafake.Setting{cudafake.Flat}, "fn: unprotected: stream priorities do not hold"},
		{"hold", nil, "mps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := append(append(cudafake.Full(turns.Name()), cudafake.Memory(16<<30)), c.settings...)
			environment := append(withGPU(t, true), cudafake.Env(settings...), "XDG_CACHE_HOME="+t.TempDir())
			config := fmt.Sprintf("device: cuda\nfunctions:\n  - {name: fn, model: %s, port: 0}\n", nodetest.Card(t, "digest", small))
			nd, status := startMeasured(t, config, environment...)
			if p := status.Devices[0].GPU.Priorities; p == nil || p.Hold != (c.settings == nil) || status.Policy != "guarantee" {
				t.Errorf("policy %s, priorities %+v; want guarantees", status.Policy, p)
			}
			list, err := exec.CommandContext(nodetest.Context(t), penstock, "if", "list", "--runtime-dir", nd.Dir).CombinedOutput()
			if err != nil || !strings.Contains(string(list), c.says) {
				t.Errorf("if list says %v\n%s", err, list)
			}
			got := stream(t, nd, 20, func() {})
			if got.Lost > 0 || got.Wrong > 0 {
				t.Errorf("answers: %s", got)
			}
		})
	}
}

// startMeasured starts a node that has measured the stream priorities of its GPU. The CPU times the
// fake GPU, so on a busy machine a measurement can fail. The next start repeats it.
func startMeasured(t *testing.T, config string, environment ...string) (*node.Node, control.Status) {
	t.Helper()
	const maxAttempts = 10
	for attempt := 1; ; attempt++ {
		nd := start(t, config, environment...)
		status, err := nd.Status()
		must.OK(t, err)
		if status.Devices[0].GPU.Priorities != nil || attempt == maxAttempts {
			return nd, status
		}
		must.OK(t, nd.Stop())
	}
}
