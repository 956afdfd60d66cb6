//go:build gpu

package gpu

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// dpdkReport is the part of the report of penstock-lab dpdk that the test reads.
type dpdkReport struct {
	Ways []struct {
		Source    string  `json:"source"`
		Memory    string  `json:"memory"`
		MappedMiB float64 `json:"mapped_read_only_mib"`
		Mbufs     uint64  `json:"mbufs"`
		MbufsHeld uint64  `json:"mbufs_held"`
		Lacks     string  `json:"lacks"`
		Functions []struct {
			Model  string      `json:"model"`
			Alone  dpdkTraffic `json:"alone"`
			Loaded dpdkTraffic `json:"loaded"`
		} `json:"functions"`
	} `json:"ways"`
}

type dpdkTraffic struct {
	InFlight   int `json:"in_flight"`
	Requests   int `json:"requests"`
	Wrong      int `json:"wrong"`
	Refused    int `json:"refused"`
	Unanswered int `json:"unanswered"`
}

// The test compares a node on a DPDK port, whose peer is another process, with a node on
// kernel sockets. The function maps DPDK's packet memory read-only, registers it,
// gathers from the mbufs, and must give the same answers.
func TestGatherFromMbufs(t *testing.T) {
	exported(t, "resnet50")
	command := exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(penstock), "penstock-lab"), "dpdk", "--device", "cuda", "--models", os.Getenv("PENSTOCK_MODELS"),
		"--model", "null", "--model", "resnet50", "--source", "udp,memif", "--alone", "500ms", "--loaded", "1s", "-o", "json")
	var said bytes.Buffer
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		t.Fatalf("penstock-lab dpdk: %v; it said:\n%s", err, said.String())
	}
	var r dpdkReport
	must.OK(t, json.Unmarshal(out, &r))
	for _, w := range r.Ways {
		if w.Lacks != "" {
			t.Fatalf("%s: %s", w.Source, w.Lacks)
		}
		t.Logf("%s: %s, %.0f MiB mapped read-only, %d of %d mbufs in the port's rings", w.Source, w.Memory, w.MappedMiB, w.MbufsHeld, w.Mbufs)
		if w.Source != "udp" && (w.Mbufs == 0 || w.MbufsHeld != 0) {
			t.Errorf("%s: %d of %d mbufs are not back", w.Source, w.MbufsHeld, w.Mbufs)
		}
		if w.MappedMiB < 64 {
			t.Errorf("%s: the process that serves maps %.0f MiB it cannot write, want all packet memory", w.Source, w.MappedMiB)
		}
		for _, f := range w.Functions {
			for _, traffic := range []dpdkTraffic{f.Alone, f.Loaded} {
				t.Logf("  %s: %+v", f.Model, traffic)
				if traffic.Requests == 0 || traffic.Wrong+traffic.Refused+traffic.Unanswered > 0 {
					t.Errorf("%s, %s, %d in flight: %d answered, %d wrong, %d refused, %d without an answer",
						w.Source, f.Model, traffic.InFlight, traffic.Requests, traffic.Wrong, traffic.Refused, traffic.Unanswered)
				}
			}
		}
	}
	if len(r.Ways) != 2 {
		t.Errorf("%d ways into a node were measured, want 2", len(r.Ways))
	}
}
