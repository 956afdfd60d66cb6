package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
)

func TestShareSwaps(t *testing.T) {
	// at is a state of a function: its process, share, and hand-overs with waiting requests.
	at := func(name string, generation uint32, percent float64, idles uint64, lastMicros float64) control.FunctionStatus {
		return control.FunctionStatus{
			Name: name, SwapIdle: control.IdleMicros{Count: idles, Last: lastMicros},
			Instances: []control.InstanceStatus{{
				SharePercent: percent, Processes: []control.ProcessStatus{{Generation: generation, Role: control.Serve, State: control.Active}},
			}},
		}
	}
	none := control.FunctionStatus{Name: "face", Instances: []control.InstanceStatus{{}}}
	for _, c := range []struct {
		name   string
		states []control.FunctionStatus
		want   []shareSwap
	}{
		{"start", []control.FunctionStatus{none, at("face", 1, 30, 0, 0), at("face", 1, 30, 0, 0)}, nil},
		{"swap", []control.FunctionStatus{at("face", 1, 30, 0, 0), none, at("face", 2, 20, 0, 0), at("face", 2, 20, 1, 400)},
			[]shareSwap{{"face", 30, 20, 400 * time.Microsecond}}},
		{"no request waited", []control.FunctionStatus{at("face", 1, 30, 4, 9), at("face", 2, 20, 4, 9), at("face", 2, 20, 4, 9)},
			[]shareSwap{{"face", 30, 20, -1}}},
		{"second swap", []control.FunctionStatus{at("face", 1, 30, 0, 0), at("face", 2, 20, 0, 0), at("face", 3, 10, 1, 70), at("face", 3, 10, 2, 80)},
			[]shareSwap{{"face", 30, 20, -1}, {"face", 20, 10, 70 * time.Microsecond}}},
		{"crash", []control.FunctionStatus{at("face", 1, 30, 0, 0), at("face", 2, 30, 1, 70)}, nil},
		{"two functions", []control.FunctionStatus{at("face", 1, 30, 0, 0), at("fashion", 5, 30, 0, 0), at("face", 2, 20, 1, 5), at("fashion", 6, 40, 1, 6)},
			[]shareSwap{{"face", 30, 20, 5 * time.Microsecond}, {"fashion", 30, 40, 6 * time.Microsecond}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s shareSwaps
			for _, f := range c.states {
				s.observe(&control.Status{Functions: []control.FunctionStatus{f}})
			}
			if !reflect.DeepEqual(s.swaps, c.want) {
				t.Errorf("%v, want %v", s.swaps, c.want)
			}
		})
	}
}

func TestPrintShares(t *testing.T) {
	lost := uint64(0)
	var out strings.Builder
	printShares(&out, []shareSwap{{"face", 30, 47.5, 420 * time.Microsecond}, {"detect", 30, 10, -1}},
		&loadgen.Report{Functions: []loadgen.FunctionReport{{Name: "face", Lost: &lost}, {Name: "detect"}}})
	const want = `face: 30 % -> 47.5 % of the GPU by a swap; requests waited for 0.42 ms
detect: 30 % -> 10 % of the GPU by a swap; no request waited
2 swaps, 0 requests lost
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}
