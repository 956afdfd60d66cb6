package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/control"
)

// listCommand is `penstock if list`: the functions of the node whose runtime folder
// folder says.
func listCommand(folder func() string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the functions of the running node, and how they are",
		Long: `Lists the functions of the running node. "share" is the sum over a function's instances,
with the multiprocessors that its processes count on a GPU; "whole" is no share: the
function may use all of the device. "batch" is how many requests its batches may have now.
Of the answered requests some failed: their clients were told so, and the node's log says
why. Lost requests were accepted and never answered; there must be none. Below the table stands
why no share meets a function's objective, where that is known, and what went wrong.`,
		Example: `  penstock if list
  penstock if list -o json | jq '.functions[].port'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("output %q: want table or json", output)
			}
			status, err := control.ReadStatus(cmd.Context(), folder())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output == "json" {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				return e.Encode(status)
			}
			fmt.Fprintln(out, deviceLine(&status))
			t := table.NewWriter()
			t.SetStyle(table.StyleLight)
			t.SetOutputMirror(out)
			t.AppendHeader(table.Row{"function", "address", "model", "slo", "share", "batching", "batch", "answered", "failed", "in flight", "lost", "state"})
			for i := range status.Functions {
				t.AppendRow(functionRow(&status.Functions[i]))
			}
			t.Render()
			for i := range status.Functions {
				for _, why := range reasons(&status.Functions[i]) {
					fmt.Fprintf(out, "%s: %s\n", status.Functions[i].Name, why)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// deviceLine says what the functions share, and how.
func deviceLine(s *control.Status) string {
	switch {
	case s.Device == nil:
		return "CPU, shares by " + cmp.Or(s.Mechanism, "nobody yet: no orchestrator has been heard")
	case s.Device.Why != "":
		return fmt.Sprintf("%s (%s), %s; %s", s.Device.Name, s.Device.UUID, s.Mechanism, s.Device.Why)
	}
	return fmt.Sprintf("%s (%s), %s", s.Device.Name, s.Device.UUID, s.Mechanism)
}

func functionRow(f *control.FunctionStatus) table.Row {
	return table.Row{
		f.Name, fmt.Sprintf("%s:%d", f.Address, f.Port), fmt.Sprintf("%s v%d", f.Model, f.Version),
		strconv.FormatFloat(f.SLOMillis, 'f', -1, 64) + " ms", shareOf(f), f.Batching, strconv.FormatFloat(f.Limit, 'f', 0, 64),
		f.Replied, f.Failed, f.InFlight, f.Lost, stateText(f),
	}
}

// shareOf is a function's share as people say it.
func shareOf(f *control.FunctionStatus) string {
	text := strconv.FormatFloat(f.SharePercent, 'f', 1, 64) + " %"
	sms := 0
	for i := range f.Instances {
		if f.Instances[i].Whole {
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

// stateText says whether a function serves, or how far it is.
func stateText(f *control.FunctionStatus) string {
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
		text += ", a shadow stands by"
	case shadows > 1:
		text += fmt.Sprintf(", %d shadows stand by", shadows)
	}
	return text
}

// reasons are why no share meets a function's objective, how often a process of it hung,
// and what else went wrong with its processes, each once. They are sentences of any
// length: too much for a column.
func reasons(f *control.FunctionStatus) []string {
	var all []string
	if f.BoundWhy != "" {
		all = append(all, f.BoundWhy)
	}
	if f.Hangs > 0 {
		all = append(all, fmt.Sprintf("processes that were killed because a request had no answer after %v ms (hang_timeout): %d", f.HangTimeoutMillis, f.Hangs))
	}
	for i := range f.Instances {
		for _, p := range f.Instances[i].Processes {
			if p.Reason != "" && !slices.Contains(all, p.Reason) {
				all = append(all, p.Reason)
			}
		}
	}
	return all
}
