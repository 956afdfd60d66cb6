package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
)

// patience bounds each run. It detects hangs and is long enough for slow machines.
const patience = 3 * time.Minute

// onCPU are the verbs that need only CPUs, with options that make them short. A closed loop
// needs a second: next to other tests, a node may answer nothing within 100 ms.
// positive are paths in the report to numbers that must be above 0, to show that the verb
// measured something: keys from the top, an index for a list.
var onCPU = []struct {
	args     []string
	positive [][]any
}{
	{words("ingest --duration 1s"), [][]any{{"requests"}, {"bare_bytes_per_s"}}},
	{words("dispatch -n 5"), [][]any{{"requests"}, {"complete_to_batch_us", "p50"}, {"floor_us", "p50"}}},
	{words("slab"), [][]any{{"goodput_rps"}}},
	{words("simulate --evaluation=false --first 4 --last 5"), [][]any{{0, "functions"}, {0, "ratios", 0}}},
	{words("lanes --first 100 --last 101 --seeds 1"), [][]any{{"jobs", 0, "ratio"}, {"fair_spread"}, {"goodput", 1, "ratios", "fifo"}, {"residency", 0, "loads_per_s"}}},
	{words("swap -n 2 --restarts 1"), [][]any{{"idle_us", "p50"}, {"answered"}, {"restart_idle_ms"}}},
	{words("bare --device cpu --model face --duration 100ms"), [][]any{{"images_per_s"}}},
	{words("overhead --device cpu --model face --batch 1 --duration 1s --volleys 3 --ports 1 --flows 1 --busy-poll 0s"),
		[][]any{{"cases", 0, "bare_images_per_s"}, {"cases", 0, "ways", 0, "throughput", 0, "images_per_s"}}},
	{words("limit --device cpu --model face --batch 1 --change in-place --percent 50 --duration 1s"),
		[][]any{{"series", 0, "points", 0, "alone", "images_per_s"}, {"series", 0, "points", 0, "beside", "images_per_s"}}},
	{words("start --device cpu --model face --model fashion -n 2"), [][]any{{"models", 0, "serves_s", 1}, {"models", 1, "all_sizes_s", 0}}},
	{words("fault --device cpu --model face -n 1 --rate 50"), [][]any{{"requests"}, {"faults", 0, "longest_ms"}}},
	{append(words("sharing --rounds 1 --duration 1s --mix"), "face alone, fresh start"),
		[][]any{{"mixes", 0, "variants", 0, "functions", 0, "goodput", 0}}},
	{words("worker --functions 2 --rounds 1 --model fashion"), [][]any{{"memory_ratio"}, {"worker", "restart_s", 0}, {"own", "processes", 0}}},
	{words("residency --functions 3 --rounds 1 --duration 2s --model face,fashion --weights 0.8 --equal --slo 10s"),
		[][]any{{"memory_ratio"}, {"limited", "requests", 0}, {"limited", "load_ms", 0}, {"own", "in_time", 0},
			{"unlimited", "models", "face", "mean_ms", 0}, {"alone", "models", "fashion", "p99_ms", 0}}},
	{words("loading --rounds 1 --duration 1s --model face,face --memory 2 --neighbour fashion"),
		[][]any{{"neighbour_p99_ratio"}, {"resident_ms", 0}, {"loads_per_request", 0}, {"early_ms", 0}}},
	{words("guest --model detect --rate 5 --rounds 1 --duration 4s"), [][]any{{"p99_ratio"}, {"guest_ratio"}, {"function_beside_guest", "within_percent", 0}}},
	{words("plan --only delays --count 1"), [][]any{{"delays", 0, "gpus"}}},
	{words("plan --only counts --scenario S1 --times 1"), [][]any{{"counts", 0, "gpus"}}},
}

// withGPU and withDPDK are runs that report what is missing.
var (
	withGPU  = [][]string{{"gather"}, {"weights"}, {"turns"}, {"devices"}, words("swap --device cuda"), words("evaluate --figure fig16 --device cuda --out /nowhere")}
	withDPDK = [][]string{{"dpdk"}, words("ingest --source dpdk")}
)

// elsewhere are verbs that other tests run: research/evaluate measures on a CPU and starts
// `ready`, research/bench starts `instance`, and `guest` starts `burn`.
var elsewhere = []string{"evaluate", "ready", "instance", "burn"}

func words(text string) []string { return strings.Fields(text) }

func TestVerbs(t *testing.T) {
	lab := build(t)
	for _, verb := range onCPU {
		t.Run(verb.args[0], func(t *testing.T) {
			t.Parallel()
			// In its short time, a verb may get no answer from a node that other tests disturb.
			const attempts = 4
			for attempt := 1; ; attempt++ {
				var report any
				if err := json.Unmarshal(run(t, lab, append(verb.args, "-o", "json")...), &report); err != nil {
					t.Fatalf("report is not JSON: %v", err)
				}
				zero := slices.DeleteFunc(slices.Clone(verb.positive), func(path []any) bool {
					n, _ := value(report, path).(float64)
					return n > 0
				})
				switch {
				case len(zero) == 0:
					return
				case attempt == attempts:
					t.Fatalf("report of attempt %d: want numbers above 0 at %v", attempt, zero)
				}
			}
		})
	}
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		if out := string(run(t, lab, "slab")); !strings.Contains(out, "aimd") || !strings.Contains(out, "┌") {
			t.Errorf("slab printed no table:\n%s", out)
		}
	})
	t.Run("too much memory", func(t *testing.T) {
		t.Parallel()
		refused(t, lab, "64 MiB hold all members", words("loading --rounds 1 --duration 1s --model face,face --memory 64 --neighbour fashion"))
	})
	t.Run("variants", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for _, name := range []string{"tiny", "tiny-2"} {
			card := "name: " + name + `
version: 1
framework: "null"
input: {size: [2, 2, 1], wire: {type: u8, layout: hwc}, tensor: {type: u8, layout: hwc}}
outputs: [{name: sum, shape: [1]}]
batches: [1]
slo: 1s
decoder: {name: raw}
`
			must.OK(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(card), 0o600))
		}
		run(t, lab, append(words("residency --variants --ways unlimited --functions 2 --rounds 1 --duration 1s --slo 10s --model tiny --models"), dir)...)
		refused(t, lab, "tiny-3", append(words("residency --variants --functions 3 --model tiny --models"), dir))
	})
	t.Run("unknown way", func(t *testing.T) {
		t.Parallel()
		refused(t, lab, "--ways shared: want some of limited, unlimited, own, alone", words("residency --ways shared"))
	})
	t.Run("little memory", func(t *testing.T) {
		t.Parallel()
		refused(t, lab, "is less than the largest model", words("residency --functions 2 --model face,fashion --weights 0.1 --rounds 1 --duration 1s"))
	})
	t.Run("without GPU", func(t *testing.T) {
		t.Parallel()
		if _, err := cuda.Find("cuda"); err == nil {
			t.Skip("this machine has a GPU; test/gpu runs what needs it")
		}
		for _, args := range withGPU {
			refused(t, lab, "no GPU on this machine", args)
		}
	})
	t.Run("without DPDK", func(t *testing.T) {
		t.Parallel()
		for _, args := range withDPDK {
			refused(t, lab, "built without DPDK", args)
		}
	})
}

// TestVerbsAreComplete fails if a new verb has no run above.
func TestVerbsAreComplete(t *testing.T) {
	run := slices.Concat(elsewhere, []string{"completion", "help"})
	for _, verb := range onCPU {
		run = append(run, verb.args[0])
	}
	for _, args := range slices.Concat(withGPU, withDPDK) {
		run = append(run, args[0])
	}
	for _, cmd := range root().Commands() {
		if !slices.Contains(run, cmd.Name()) {
			t.Errorf("penstock-lab %s: no test runs it", cmd.Name())
		}
	}
}

// value follows a path into parsed JSON. It returns nil if the path does not exist.
func value(in any, path []any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			object, _ := in.(map[string]any)
			in = object[step]
		case int:
			list, _ := in.([]any)
			if step >= len(list) {
				return nil
			}
			in = list[step]
		}
	}
	return in
}

// build builds penstock-lab and, in the same folder, penstock.
func build(t *testing.T) (lab string) {
	t.Helper()
	dir := t.TempDir()
	// The sandbox's user runs the programs in this folder.
	for folder := dir; folder != os.TempDir() && folder != "/"; folder = filepath.Dir(folder) {
		must.OK(t, os.Chmod(folder, 0o755))
	}
	for name, from := range map[string]string{"penstock": "../../../cmd/penstock", "penstock-lab": "."} {
		build := exec.Command("go", "build", "-tags", "null", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), from)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return filepath.Join(dir, "penstock-lab")
}

func run(t *testing.T, lab string, args ...string) []byte {
	t.Helper()
	out, err := output(t, lab, args)
	must.OK(t, err)
	return out
}

// refused tests that a run fails immediately with a reason.
func refused(t *testing.T, lab, why string, args []string) {
	t.Helper()
	if _, err := output(t, lab, args); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("penstock-lab %s: %v, want %q", strings.Join(args, " "), err, why)
	}
}

func output(t *testing.T, lab string, args []string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, lab, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // an interrupt, so that it ends its nodes
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = "../../.." // plan reads the repository's profiles
	var message bytes.Buffer
	cmd.Stderr = &message
	out, err := cmd.Output()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(message.String()))
	}
	return out, err
}
