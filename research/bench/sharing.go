package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control/cputime"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/node"
)

// Sharing compares ways to share the CPUs of one machine: the default, no limits, and
// CPU quotas that tune themselves. Runs are interleaved, each on its own node.
type Sharing struct {
	Machine testbed.Machine `json:"machine"`
	Seconds float64         `json:"seconds"` // of a run
	Rounds  int             `json:"rounds"`
	Mixes   []SharingMix    `json:"mixes"`
}

// SharingMix is one load.
type SharingMix struct {
	Name     string           `json:"name"`
	Variants []SharingVariant `json:"variants"`
}

// SharingVariant has the results of one way of sharing.
type SharingVariant struct {
	Name      string            `json:"name"`
	Functions []SharingFunction `json:"functions"`
	// Foreign is the largest part of the CPUs' time in any run that other programs used,
	// or that the hypervisor took.
	Foreign float64 `json:"foreign"`
}

// SharingFunction has a value per run, in the order of the rounds.
type SharingFunction struct {
	Name    string    `json:"name"`
	Within  []float64 `json:"within_percent"` // requests answered within the objective, of those sent
	Goodput []float64 `json:"goodput"`        // such answers per second
	Late    []float64 `json:"late_percent"`
	P99     []float64 `json:"p99_ms"` // of the ok answers, 0 if there was none
}

// SharingOptions say how long to measure. Only, if not empty, names the mixes to
// measure.
type SharingOptions struct {
	Setup
	Duration time.Duration
	Rounds   int
	Only     []string
}

// sharingLoad has the arguments of penstock load.
type sharingLoad struct {
	name  string
	rates map[string]float64
	// before is how long the node serves before the load begins: 0 for a fresh start.
	before time.Duration
}

// The functions are those of the built-in configuration.
var sharingLoads = []sharingLoad{
	{name: "face alone, fresh start", rates: map[string]float64{"face": 120}},
	{name: "fashion alone, fresh start", rates: map[string]float64{"fashion": 1000}},
	{name: "detect alone, fresh start", rates: map[string]float64{"detect": 12}},
	{name: "demo", rates: map[string]float64{"face": 40, "fashion": 400, "detect": 3}, before: 2 * time.Second},
	{name: "demo, detect 15/s", rates: map[string]float64{"face": 40, "fashion": 400, "detect": 15}, before: 2 * time.Second},
	{name: "demo, detect 40/s", rates: map[string]float64{"face": 40, "fashion": 400, "detect": 40}, before: 2 * time.Second},
	{name: "demo, detect 100/s", rates: map[string]float64{"face": 40, "fashion": 400, "detect": 100}, before: 2 * time.Second},
	{name: "demo, halved", rates: map[string]float64{"face": 20, "fashion": 200, "detect": 1.5}, before: 2 * time.Second},
	{name: "demo, doubled", rates: map[string]float64{"face": 80, "fashion": 800, "detect": 6}, before: 2 * time.Second},
}

var sharingVariants = []struct {
	name, shares string
	lab          configs.Lab
}{
	{name: "guarantees"},
	{name: "no shares", lab: configs.Lab{Change: configs.ChangeNone}},
	{name: "quotas", shares: "shares: {policy: gslice, change: in-place}\n"},
}

// anyPort finds the ports of the built-in configuration, because another node may use
// them.
var anyPort = regexp.MustCompile(`port: \d+`)

// RunSharing measures each mix with each variant in turn, Rounds times.
func RunSharing(ctx context.Context, o SharingOptions) (Sharing, error) {
	r := Sharing{Machine: o.Machine, Seconds: o.Duration.Seconds(), Rounds: o.Rounds}
	for _, l := range sharingLoads {
		if len(o.Only) > 0 && !slices.Contains(o.Only, l.name) {
			continue
		}
		mix := SharingMix{Name: l.name}
		for _, v := range sharingVariants {
			mix.Variants = append(mix.Variants, SharingVariant{Name: v.name})
		}
		r.Mixes = append(r.Mixes, mix)
	}
	if len(r.Mixes) == 0 {
		var names []string
		for _, l := range sharingLoads {
			names = append(names, l.name)
		}
		return r, fmt.Errorf("no mix is named %q: want some of %q", o.Only, names)
	}
	for round := range o.Rounds {
		for m := range r.Mixes {
			mix := &r.Mixes[m]
			l := sharingLoads[slices.IndexFunc(sharingLoads, func(l sharingLoad) bool { return l.name == mix.Name })]
			for i := range mix.Variants {
				// Each round begins with another variant.
				v := (i + round) % len(mix.Variants)
				o.Printf("round %d of %d: %s, %s", round+1, o.Rounds, mix.Name, mix.Variants[v].Name)
				if err := o.sharingRun(ctx, l, v, uint64(round+1), &mix.Variants[v]); err != nil {
					return r, fmt.Errorf("%s, %s: %w", mix.Name, mix.Variants[v].Name, err)
				}
			}
		}
	}
	return r, nil
}

// sharingRun adds one run's values to to.
func (o *SharingOptions) sharingRun(ctx context.Context, l sharingLoad, variant int, seed uint64, to *SharingVariant) error {
	v := sharingVariants[variant]
	machine, err := cputime.NewForeign()
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a function had no ready process after a minute"))
	defer cancel()
	nd, err := node.Start(starting, node.Options{
		Binary: o.Binary, Config: v.shares + anyPort.ReplaceAllString(string(configs.BuiltIn()), "port: 0"), Environment: []string{v.lab.Environment()},
	})
	if err != nil {
		return err
	}
	defer nd.Kill()
	if err := testbed.Pause(ctx, l.before); err != nil {
		return err
	}
	report, err := o.runLoad(ctx, nd.Dir, l.rates, seed)
	if err != nil {
		return err
	}
	foreign, err := machine.Part()
	if err != nil {
		return err
	}
	to.Foreign = max(to.Foreign, foreign)
	for _, f := range report.Functions {
		i := slices.IndexFunc(to.Functions, func(g SharingFunction) bool { return g.Name == f.Name })
		if i < 0 {
			i = len(to.Functions)
			to.Functions = append(to.Functions, SharingFunction{Name: f.Name})
		}
		g := &to.Functions[i]
		g.Within = append(g.Within, f.WithinSLO)
		g.Goodput = append(g.Goodput, f.GoodputRPS)
		g.Late = append(g.Late, 100*float64(f.Late)/float64(max(1, f.Sent)))
		g.P99 = append(g.P99, f.P99Millis)
	}
	return nil
}

// runLoad runs `penstock load` as an operator would.
func (o *SharingOptions) runLoad(ctx context.Context, dir string, rates map[string]float64, seed uint64) (r loadgen.Report, err error) {
	args := []string{"load", "--runtime-dir", dir, "--check=false", "-o", "json", "--warmup", "0s",
		"--duration", o.Duration.String(), "--seed", fmt.Sprint(seed)}
	for name, rate := range rates {
		args = append(args, "--rate", fmt.Sprintf("%s=%v", name, rate))
	}
	cmd := exec.CommandContext(ctx, o.Binary, args...)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	cmd.Env = append(os.Environ(), "PENSTOCK_LAB=")
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(errors.String()), "\n")
		return r, fmt.Errorf("penstock load: %w: %s", err, lines[len(lines)-1])
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("read report of penstock load: %w", err)
	}
	return r, nil
}

// Spread returns the median of values and their min and max, all 0 if there are no values.
func Spread(values []float64) (median, smallest, largest float64) {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0, 0, 0
	}
	return sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1]
}
