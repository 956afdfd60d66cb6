// Package functions shows the functions of a node on a terminal.
package functions

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/cputime"
	"github.com/penstock/penstock/loadgen/tabular"
)

// Write writes the devices, a table of the functions, and below it what is wrong. The table
// is as wide as the terminal, or as it needs if width is 0.
func Write(w io.Writer, s *control.Status, width int) {
	for _, line := range deviceLines(s) {
		fmt.Fprintln(w, line)
	}
	list := byDevice(s)
	var rows [][]string
	for _, f := range list {
		rows = append(rows, functionRow(f))
	}
	columns := functionColumns(s.Policy == string(configs.PolicyGuarantee))
	add := func(c tabular.Column, text func(*control.FunctionStatus) string) {
		columns = append(columns, c)
		for i := range rows {
			rows[i] = append(rows[i], text(list[i]))
		}
	}
	if len(s.Devices) > 1 {
		columns = slices.Insert(columns, 1, deviceColumn)
		for i := range rows {
			rows[i] = slices.Insert(rows[i], 1, strings.Join(devicesOf(list[i]), ", "))
		}
	}
	if hasMembers(s) {
		add(workerColumn, hostText)
	}
	if slices.ContainsFunc(s.Functions, func(f control.FunctionStatus) bool { return f.Residency != nil }) {
		add(tabular.Column{Name: "loads"}, loadsText)
		add(tabular.Column{Name: "last load"}, lastLoadText)
	}
	fmt.Fprintln(w, tabular.Render(width, columns, rows))
	for _, line := range nodeLines(s) {
		fmt.Fprintln(w, line)
	}
	for _, f := range list {
		for _, why := range reasons(f) {
			fmt.Fprintf(w, "%s: %s\n", f.Name, why)
		}
	}
}

// deviceColumn names the devices of a function, on a node with several.
var deviceColumn = tabular.Column{Name: "device", Left: true}

// devicesOf are the devices of a function's instances, each once.
func devicesOf(f *control.FunctionStatus) (names []string) {
	for i := range f.Instances {
		if name := f.Instances[i].Device; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// byDevice groups the functions by the device of their first instance.
func byDevice(s *control.Status) (list []*control.FunctionStatus) {
	for i := range s.Functions {
		list = append(list, &s.Functions[i])
	}
	slices.SortStableFunc(list, func(a, b *control.FunctionStatus) int { return deviceIndex(s, a) - deviceIndex(s, b) })
	return list
}

func deviceIndex(s *control.Status, f *control.FunctionStatus) int {
	return slices.IndexFunc(s.Devices, func(d control.DeviceStatus) bool { return len(f.Instances) > 0 && d.Name == f.Instances[0].Device })
}

// workerColumn shows which process hosts a function. It is left out on a node without members of workers.
var workerColumn = tabular.Column{Name: "worker", Left: true}

func hasMembers(s *control.Status) bool {
	return slices.ContainsFunc(s.Functions, func(f control.FunctionStatus) bool { return f.Worker != "" })
}

// hostText names the worker that hosts a function, and the state of the function's model.
func hostText(f *control.FunctionStatus) string {
	switch {
	case f.Worker == "":
		return "own process"
	case f.Residency == nil:
		return f.Worker
	}
	return fmt.Sprintf("%s, %s", f.Worker, f.Residency.State)
}

// loadsText and lastLoadText tell how often a model was loaded, and how long the last load took. Only
// members of a worker with limited memory load their models again.
func loadsText(f *control.FunctionStatus) string {
	if f.Residency == nil {
		return "-"
	}
	return strconv.FormatUint(f.Residency.Loads, 10)
}

func lastLoadText(f *control.FunctionStatus) string {
	if f.Residency == nil || f.Residency.LastLoadMillis == 0 { // not loaded yet
		return "-"
	}
	return millisText(f.Residency.LastLoadMillis) + " ms"
}

// deviceLines say what the functions share, and how. With several devices, each has a bar of what its functions use, or
// of their shares.
func deviceLines(s *control.Status) (lines []string) {
	if len(s.Devices) == 1 {
		return []string{deviceLine(s, &s.Devices[0])}
	}
	name := 0
	for i := range s.Devices {
		name = max(name, len(s.Devices[i].Name))
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		used := 0.0
		for j := range s.Functions {
			for _, in := range s.Functions[j].Instances {
				switch {
				case in.Device != d.Name:
				case s.Policy == string(configs.PolicyGuarantee):
					used += in.UsePercent
				default:
					used += in.SharePercent
				}
			}
		}
		const width = 20
		full := int(min(width, max(0, used/100*width)+0.5))
		bar := strings.Repeat("█", full) + strings.Repeat("░", width-full)
		lines = append(lines, fmt.Sprintf("%-*s  %s %3.0f %%  %s", name, d.Name, bar, used, deviceLine(s, d)))
	}
	return lines
}

// deviceLine says what a device is, and how functions share it.
func deviceLine(s *control.Status, d *control.DeviceStatus) string {
	switch {
	case d.Lost != "":
		return "lost: " + d.Lost
	case d.GPU == nil && d.Mechanism != "":
		return "CPU, shared by " + d.Mechanism
	case d.GPU == nil:
		return "not known yet: no orchestrator has reported it"
	case d.GPU.Why != "":
		return fmt.Sprintf("%s (%s), %s; %s", d.GPU.Name, d.GPU.UUID, d.Mechanism, d.GPU.Why)
	}
	line := fmt.Sprintf("%s (%s), %s", d.GPU.Name, d.GPU.UUID, d.Mechanism)
	if d.GPU.PrioritiesFail() {
		line += "; stream priorities do not hold, policy: " + s.Policy
	}
	return line
}

// nodeLines say what is wrong with the node, apart from its functions.
func nodeLines(s *control.Status) []string {
	lines := append(configurationLines(s), workerLines(s)...)
	if warning := OverloadWarning(s); warning != "" {
		lines = append(lines, warning)
	}
	if s.ForeignCPUPercent > 100*cputime.Quiet {
		lines = append(lines, fmt.Sprintf("other programs use %.0f %% of the CPUs; requests wait for them", s.ForeignCPUPercent))
	}
	return lines
}

// OverloadWarning says that the functions need more than their devices, and names those that are not kept; empty if they do not.
func OverloadWarning(s *control.Status) string {
	var over, names []string
	for _, d := range s.Devices {
		if d.NeedsPercent > 100 {
			name := "the device"
			if len(s.Devices) > 1 {
				name = d.Name
			}
			over = append(over, fmt.Sprintf("%.0f %% of %s", d.NeedsPercent, name))
		}
	}
	if over == nil {
		return ""
	}
	for i := range s.Functions {
		if f := &s.Functions[i]; f.Guarantee != nil && f.Guarantee.Infeasible != "" {
			names = append(names, f.Name)
		}
	}
	warning := "overload: functions need " + strings.Join(over, ", ")
	if names != nil {
		warning += "; not guaranteed: " + strings.Join(names, ", ")
	}
	return warning
}

// workerLines say which workers need more memory.
func workerLines(s *control.Status) (lines []string) {
	const mib = 1 << 20
	for _, w := range s.Workers {
		if w.Thrashing {
			lines = append(lines, fmt.Sprintf("worker %s: thrashing: it cannot load models as fast as requests for them come; `memory: %dMiB` would end that", w.Name, (w.NeededBytes+mib-1)/mib))
		}
	}
	return lines
}

// configurationLines say what of the node is not in its configuration file, and the other way
// round.
func configurationLines(s *control.Status) (lines []string) {
	file := cmp.Or(s.Configuration.File, "the built-in configuration")
	for i := range s.Functions {
		switch f := &s.Functions[i]; f.Unsaved {
		case control.UnsavedAdded:
			lines = append(lines, fmt.Sprintf("%s: unsaved: added by `penstock if add`, a client or --models, not in %s", f.Name, file))
		case control.UnsavedChanged:
			lines = append(lines, fmt.Sprintf("%s: unsaved: changed by `penstock if`, differs from %s", f.Name, file))
		}
	}
	if s.Configuration.Error != "" {
		lines = append(lines, fmt.Sprintf("%s: edits are ignored since %s: %s", file, s.Configuration.Since.Local().Format(time.DateTime), s.Configuration.Error))
	}
	if keys := s.Configuration.NeedRestart; len(keys) > 0 {
		lines = append(lines, fmt.Sprintf("%s: %s: restart the node to apply", file, strings.Join(keys, ", ")))
	}
	return lines
}

// functionColumns are in the order of their importance.
func functionColumns(guarantees bool) []tabular.Column {
	columns := []tabular.Column{{Name: "function", Left: true}, {Name: "state", Left: true}, {Name: "slo"}}
	if guarantees {
		columns = append(columns, tabular.Column{Name: "guarantee"}, tabular.Column{Name: "use"}, tabular.Column{Name: "demoted"})
	} else {
		columns = append(columns, tabular.Column{Name: "share"})
	}
	return append(columns, tabular.Column{Name: "answered"}, tabular.Column{Name: "failed"}, tabular.Column{Name: "lost"},
		tabular.Column{Name: "address", Left: true}, tabular.Column{Name: "model", Left: true}, tabular.Column{Name: "batch"}, tabular.Column{Name: "in flight"})
}

// functionRow returns the cells of functionColumns, in their order.
func functionRow(f *control.FunctionStatus) []string {
	row := []string{f.Name, State(f), strconv.FormatFloat(f.SLOMillis, 'f', -1, 64) + " ms"}
	if g := f.Guarantee; g != nil {
		row = append(row, percentText(g.Percent), percentText(g.UsePercent), percentText(g.DemotedPercent))
	} else {
		row = append(row, shareOf(f))
	}
	return append(row, fmt.Sprint(f.Replied), fmt.Sprint(f.Failed), fmt.Sprint(f.Lost),
		fmt.Sprintf("%s:%d", f.Address, f.Port), fmt.Sprintf("%s v%d", f.Model, f.Version), strconv.FormatFloat(f.Limit, 'f', 0, 64), fmt.Sprint(f.InFlight))
}

func percentText(percent float64) string { return strconv.FormatFloat(percent, 'f', 1, 64) + " %" }

// shareOf is a function's share as people say it.
func shareOf(f *control.FunctionStatus) string {
	text := percentText(f.SharePercent)
	sms := 0
	for i := range f.Instances {
		if f.Instances[i].WholeDevice {
			text = "whole"
		}
		if p, ok := f.Instances[i].Serving(); ok {
			sms += p.SMs
		}
	}
	if sms > 0 {
		text += fmt.Sprintf(", %d SMs", sms)
	}
	return text
}

// State says whether a function serves, or how far it is.
func State(f *control.FunctionStatus) string {
	serve, shadows := 0, 0
	var state control.State
	for i := range f.Instances {
		in := &f.Instances[i]
		if _, ok := in.Serving(); ok {
			serve++
		} else {
			for _, p := range in.Processes {
				if p.Role == control.Serve {
					state = p.State
				}
			}
		}
		if _, ok := in.Standby(); ok {
			shadows++
		}
	}
	text := "serves"
	switch {
	case serve == 0:
		text = "does not serve"
	case len(f.Instances) > 1:
		text = fmt.Sprintf("%d of %d serve", serve, len(f.Instances))
	}
	if state != "" {
		text += fmt.Sprintf(" (%s)", state)
	}
	switch {
	case shadows == 1:
		text += ", shadow ready"
	case shadows > 1:
		text += fmt.Sprintf(", %d shadows ready", shadows)
	}
	return text
}

// reasons are why no share meets a function's objective, how often a process of it hung,
// and what else went wrong with its processes, each once. They are sentences of any
// length: too much for a column.
func reasons(f *control.FunctionStatus) []string {
	var all []string
	if f.Guarantee != nil {
		switch f.Guarantee.Unprotected {
		case control.UnprotectedByDevice:
			all = append(all, "unprotected: the GPU has no MPS, so batches of all functions run one after the other, the most urgent first; a long batch delays others")
		case control.UnprotectedByPriorities:
			all = append(all, "unprotected: stream priorities do not hold between processes on this GPU and driver, so batches of all functions run one after the other, the most urgent first; a long batch delays others")
		case control.UnprotectedByFramework:
			all = append(all, "unprotected: its framework runs all work at one priority, so it delays others when it exceeds its guarantee")
		}
	}
	if f.Guarantee != nil && f.Guarantee.Infeasible != "" {
		all = append(all, "objective is not guaranteed: "+f.Guarantee.Infeasible)
	}
	if f.BoundWhy != "" {
		all = append(all, f.BoundWhy)
	}
	if c := f.Camera; c != nil && c.RefusedWhy != "" {
		all = append(all, fmt.Sprintf("pictures of cameras refused: %d; the latest because %s", c.Refused, c.RefusedWhy))
	}
	if c := f.Camera; c != nil && c.Incomplete > 0 {
		all = append(all, fmt.Sprintf("pictures of cameras dropped because packets were lost: %d (docs/cameras.md)", c.Incomplete))
	}
	if f.Hangs > 0 {
		all = append(all, fmt.Sprintf("processes killed because a request had no answer after %v ms (hang_timeout): %d", f.HangTimeoutMillis, f.Hangs))
	}
	for i := range f.Instances {
		if held := f.Instances[i].Held; held != "" && !slices.Contains(all, held) {
			all = append(all, held)
		}
		for _, p := range f.Instances[i].Processes {
			if p.Reason != "" && !slices.Contains(all, p.Reason) {
				all = append(all, p.Reason)
			}
		}
		if l := f.Instances[i].LastFailure; l != nil {
			all = append(all, fmt.Sprintf("process %d (generation %d) failed %v ago: %s", l.PID, l.Generation, time.Since(l.At).Round(time.Second), l.Reason))
		}
	}
	return all
}
