package evaluate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// variant is one way of sharing a GPU and forming batches. It sets the node's configuration;
// settings without a field are the same for all variants.
type variant struct {
	name, label, what string
	baseline          bool

	mps    bool
	change configs.Change
	// guarantees makes functions share the whole device by the node's default policy.
	guarantees bool
	// shares gives functions their percentages at the start; tune lets the shares change with
	// the observed load.
	shares, tune bool
	// batching is a rule's name, or {"fixed": size, "delay": duration}. Its text is part of the
	// fingerprints in existing reports.
	batching any
	gather   string // kernel or copy
	streams  int    // 0: libml decides

	// by is what limits a kindBare measurement: percentage, groups, or empty for no limit.
	by string
}

// The names of variants.
const (
	timeSlice     = "time-slice"
	timeSliceSLAB = "time-slice-slab"
	defaultMPS    = "mps"
	mpsSLAB       = "mps-slab"
	mpsAIMD       = "aimd"
	static        = "static"
	shadow        = "penstock-shadow"
	partition     = "penstock"
	restart       = "penstock-restart"
	guaranteed    = "guarantees"
	mpsStreams    = "mps-streams"
	mpsGather     = "mps-gather"
	mpsOnlySLAB   = "mps-only-slab"
	mpsOnlyShares = "mps-only-shares"
	streams1      = "streams-1"
	streams2      = "streams-2"
	wholeGPU      = "whole"
	byPercentage  = "percentage"
	byGroups      = "groups"
	fixedPrefix   = "fixed-" // followed by the size
	fixedDelay    = 5 * time.Millisecond
	slab          = "slab"
	aimd          = "aimd"
	oneARequest   = "none"
	gatherKernel  = "kernel"
	gatherCopy    = "copy"
	tuneInterval  = 200 * time.Millisecond
	tuneHoldDown  = time.Second
	minPercent    = 5
	minPercent12  = 4 // for twelve or more functions
)

// variants are all variants except those of fixed batch sizes.
var variants = []variant{
	{name: timeSlice, label: "no MPS", what: "no MPS: processes take turns; one request a batch, one stream, the CPU puts pieces together",
		baseline: true, change: configs.ChangeNone, batching: oneARequest, gather: gatherCopy, streams: 1},
	{name: timeSliceSLAB, label: "no MPS + SLAB", what: "no MPS: processes take turns; SLAB, streams and gather as Penstock",
		baseline: true, change: configs.ChangeNone, batching: slab, gather: gatherKernel},
	{name: defaultMPS, label: "default MPS", what: "MPS without percentages; one request a batch, one stream, the CPU puts pieces together",
		baseline: true, mps: true, change: configs.ChangeNone, batching: oneARequest, gather: gatherCopy, streams: 1},
	{name: mpsSLAB, label: "MPS + SLAB", what: "MPS without percentages; SLAB, streams and gather as Penstock",
		baseline: true, mps: true, change: configs.ChangeNone, batching: slab, gather: gatherKernel},
	{name: mpsAIMD, label: "AIMD", what: "MPS without percentages; Clipper's batching, streams and gather as Penstock",
		baseline: true, mps: true, change: configs.ChangeNone, batching: aimd, gather: gatherKernel},
	{name: static, label: "fixed percentages", what: "MPS percentages that never change; SLAB, streams and gather as Penstock",
		baseline: true, mps: true, change: configs.ChangeRestart, shares: true, batching: slab, gather: gatherKernel},
	{name: shadow, label: "Penstock, shadows", what: "MPS percentages that tune themselves, by shadows",
		mps: true, change: configs.ChangeShadow, shares: true, tune: true, batching: slab, gather: gatherKernel},
	{name: partition, label: "Penstock", what: "groups of multiprocessors that tune themselves, in place",
		mps: true, change: configs.ChangePartition, shares: true, tune: true, batching: slab, gather: gatherKernel},
	{name: guaranteed, label: "guarantees", what: "guarantees and stream priorities, as a node does by default",
		mps: true, guarantees: true, batching: slab, gather: gatherKernel},
	{name: restart, label: "stop and start", what: "MPS percentages that tune themselves, by stopping a process and starting another",
		baseline: true, mps: true, change: configs.ChangeRestart, shares: true, tune: true, batching: slab, gather: gatherKernel},
	{name: mpsStreams, label: "+ two streams", what: "default MPS, and two batches in flight",
		mps: true, change: configs.ChangeNone, batching: oneARequest, gather: gatherCopy, streams: 2},
	{name: mpsGather, label: "+ gather kernel", what: "default MPS, and pieces gathered by a kernel",
		mps: true, change: configs.ChangeNone, batching: oneARequest, gather: gatherKernel, streams: 1},
	{name: mpsOnlySLAB, label: "+ SLAB", what: "default MPS, and batches by SLAB",
		mps: true, change: configs.ChangeNone, batching: slab, gather: gatherCopy, streams: 1},
	{name: mpsOnlyShares, label: "+ shares", what: "default MPS, and groups of multiprocessors that tune themselves",
		mps: true, change: configs.ChangePartition, shares: true, tune: true, batching: oneARequest, gather: gatherCopy, streams: 1},
	{name: streams1, label: "one stream", what: "MPS without percentages, SLAB, one batch in flight",
		mps: true, change: configs.ChangeNone, batching: slab, gather: gatherKernel, streams: 1},
	{name: streams2, label: "two streams", what: "MPS without percentages, SLAB, two batches in flight",
		mps: true, change: configs.ChangeNone, batching: slab, gather: gatherKernel, streams: 2},
	{name: wholeGPU, label: "whole GPU", what: "the framework alone in one process, no MPS"},
	{name: byPercentage, label: "MPS percentage", what: "the framework alone in one process, under a percentage of MPS", mps: true, by: byPercentage},
	{name: byGroups, label: "SM groups", what: "the framework alone in one process, on some groups of multiprocessors", by: byGroups},
}

// CheckVariant returns an error if there is no variant of that name.
func CheckVariant(name string) error {
	if _, err := variantOf(name); err != nil {
		var names []string
		for _, v := range variants {
			names = append(names, v.name)
		}
		return fmt.Errorf("%w; want some of %s", err, strings.Join(names, ", "))
	}
	return nil
}

func variantOf(name string) (variant, error) {
	for _, v := range variants {
		if v.name == name {
			return v, nil
		}
	}
	var size int
	if n, err := fmt.Sscanf(name, fixedPrefix+"%d", &size); n == 1 && err == nil && name == fixed(size) && size > 0 {
		return variant{name: name, label: fmt.Sprintf("fixed %d, %v", size, fixedDelay),
			what:     fmt.Sprintf("MPS without percentages; batches of %d, or what there is after %v, one stream, gather as Penstock", size, fixedDelay),
			baseline: true, mps: true, change: configs.ChangeNone, gather: gatherKernel, streams: 1,
			batching: map[string]any{"fixed": size, "delay": fixedDelay.String()}}, nil
	}
	return variant{}, fmt.Errorf("variant %q: there is none of that name", name)
}

// fixed returns the name of the variant with batches of one size and a delay.
func fixed(size int) string { return fmt.Sprintf("%s%d", fixedPrefix, size) }

// settings returns the report's description of the variant.
func (v variant) settings() VariantSetting {
	return VariantSetting{Name: v.name, Label: v.label, What: v.what, Baseline: v.baseline}
}

// fingerprint covers what v does, not its description. It has only fields with a value, so a
// new field does not change variants that do not use it.
func (v variant) fingerprint() string {
	v.label, v.what = "", ""
	var text strings.Builder
	fields := reflect.ValueOf(v)
	for i := range fields.NumField() {
		if f := fields.Field(i); !f.IsZero() {
			fmt.Fprintf(&text, "%s:%v ", fields.Type().Field(i).Name, f)
		}
	}
	return text.String()
}

// nodeOptions are the settings that all variants of a case share.
type nodeOptions struct {
	device   string
	reserved int  // CPUs reserved for the manager
	frugal   bool // as Case.Frugal
	intake   intake
	weights  string
	cards    map[string]string
}

// onCPU returns the variant's replacement on a machine without a GPU. It keeps how shares
// change, in place or by shadows; the rest needs a GPU.
func (v variant) onCPU() variant {
	v.mps, v.gather, v.streams = true, gatherKernel, 0
	if v.change == configs.ChangePartition {
		v.change = configs.ChangeInPlace
	}
	return v
}

// config returns a node's configuration with these functions.
func (v variant) config(o nodeOptions, functions []Function) (string, error) {
	if o.device == configs.DeviceCPU {
		v = v.onCPU()
	}
	least := minPercent
	if len(functions) >= 12 {
		least = minPercent12
	}
	var text strings.Builder
	fmt.Fprintf(&text, "log: {level: info}\ndevice: %s\nreserved_cpus: %d\nfault_hold: 0s\n", o.device, o.reserved)
	if o.weights != "" && o.device != configs.DeviceCPU {
		fmt.Fprintf(&text, "weights: %s\n", o.weights)
	}
	fmt.Fprintf(&text, "slab: {size: %dMiB, receive_buffer: %dMiB}\naggregate: {slots: %d}\n", o.intake.slabMiB, o.intake.receiveMiB, o.intake.slots)
	if !v.guarantees {
		fmt.Fprintf(&text, "shares: {policy: gslice, change: %s, tune: %v, spread_slack: %v, interval: %v, hold_down: %v, minimum_percent: %d}\n",
			cmp.Or(v.configuredChange(), configs.ChangeAuto), v.tune, v.tune && !o.frugal, tuneInterval, tuneHoldDown, least)
	}
	text.WriteString("functions:\n")
	for _, f := range functions {
		line, err := json.Marshal(v.function(o, f))
		if err != nil {
			return "", fmt.Errorf("write configuration: %w", err)
		}
		fmt.Fprintf(&text, "  - %s\n", line)
	}
	if len(functions) == 0 {
		return strings.Replace(text.String(), "functions:\n", "functions: []\n", 1), nil
	}
	return text.String(), nil
}

// lab returns the variant's settings that no configuration key has.
func (v variant) lab(o nodeOptions) configs.Lab {
	if o.device == configs.DeviceCPU {
		v = v.onCPU()
	}
	l := configs.Lab{
		TimeSlicing: !v.mps, CopyGather: v.gather == gatherCopy, Batching: batchingOf(v.batching),
	}
	if v.configuredChange() == "" && !v.guarantees {
		l.Change = v.change
	}
	return l
}

// configuredChange returns how shares change if a configuration can express it, otherwise
// empty.
func (v variant) configuredChange() configs.Change {
	if v.change == configs.ChangeNone || v.change == configs.ChangeRestart {
		return ""
	}
	return v.change
}

func batchingOf(rule any) control.Batching {
	if name, ok := rule.(string); ok {
		return control.Batching{Rule: control.BatchingRule(name)}
	}
	return control.Batching{Rule: control.BatchFixed, Size: rule.(map[string]any)["fixed"].(int), Delay: fixedDelay}
}

// function returns one function's part of a configuration.
func (v variant) function(o nodeOptions, f Function) map[string]any {
	entry := map[string]any{"name": f.Name, "model": o.cards[f.Name], "port": 0, "slo": f.SLO.String(), "receivers": o.intake.receivers[f.Name]}
	if v.shares && f.Percent > 0 {
		entry["share_percent"] = f.Percent
	}
	if v.streams > 0 {
		entry["in_flight"] = v.streams
	}
	return entry
}

// added returns the function as an order to a running node contains it. Keys that it omits have
// the node's values.
func (v variant) added(o nodeOptions, f Function) configs.Function {
	if o.device == configs.DeviceCPU {
		v = v.onCPU()
	}
	c := configs.Function{Name: f.Name, Model: o.cards[f.Name], SLO: f.SLO, Instances: 1, Change: v.configuredChange(), InFlight: v.streams,
		Receivers: o.intake.receivers[f.Name]}
	if v.shares {
		c.SharePercent = f.Percent
	}
	return c
}
