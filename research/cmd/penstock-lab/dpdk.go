package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/research/bench"
)

func dpdkCommand(print printer) *cobra.Command {
	var flags deviceFlags
	o := bench.DPDKNodeOptions{}
	cmd := &cobra.Command{
		Use: "dpdk", Short: "A whole node behind a port of DPDK, beside one behind kernel sockets",
		Long: `Starts a node for each source, sends it pictures one at a time and many at once, checks
every answer, and counts the time from the first byte sent to the answer received.

  udp    kernel sockets over loopback
  memif  DPDK in this process, shared memory between it and the node's port
  tap    a kernel socket, through a TAP device that is the node's port

The model null computes nothing and answers with a digest of every byte that was gathered.
Run it as root; on huge pages where there are enough.`,
		Example: `  penstock-lab dpdk --device cuda --models models -o json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("--in-flight", o.InFlight); err != nil {
				return err
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			r, err := bench.RunDPDKNode(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, dpdkNodeRows(r))
		},
	}
	flags.register(cmd, configs.DeviceCPU)
	f := cmd.Flags()
	f.StringSliceVar(&o.ModelNames, "model", []string{bench.NullModel, "face"}, "models; null is one that computes nothing")
	f.StringSliceVar(&o.Sources, "source", []string{"udp", "memif", "tap"}, "udp, memif, tap")
	f.DurationSliceVar(&o.BusyPoll, "busy-poll", []time.Duration{0}, "the node's busy_poll, a node for each")
	f.DurationVar(&o.Alone, "alone", 2*time.Second, "how long to send one at a time")
	f.DurationVar(&o.Loaded, "loaded", 2*time.Second, "how long to keep --in-flight in flight")
	f.IntVar(&o.InFlight, "in-flight", 12, "requests in flight under load")
	f.StringSliceVar(&o.Drivers, "drivers", driversHere(), "libraries of DPDK's drivers, where DPDK's package is not installed (PENSTOCK_DPDK_DRIVERS)")
	return cmd
}

func driversHere() []string {
	if here := os.Getenv("PENSTOCK_DPDK_DRIVERS"); here != "" {
		return strings.Split(here, ",")
	}
	return nil
}

func dpdkNodeRows(r bench.DPDKNode) (rows []table.Row) {
	for _, w := range r.Ways {
		name := fmt.Sprintf("%s, busy_poll %v ms", w.Source, w.BusyPollMillis)
		if w.Lacks != "" {
			rows = append(rows, table.Row{name, "not measured: " + w.Lacks})
			continue
		}
		rows = append(rows, table.Row{name, fmt.Sprintf("%s, %.0f MiB mapped read-only, %d of %d mbufs held", w.Memory, w.MappedMiB, w.MbufsHeld, w.Mbufs)})
		for _, f := range w.Functions {
			for _, t := range []bench.DPDKNodeTraffic{f.Alone, f.Loaded} {
				rows = append(rows, table.Row{fmt.Sprintf("  %s, %d in flight", f.Model, t.InFlight),
					fmt.Sprintf("%.0f/s, %d answered, %d wrong, %d refused, %d unanswered; end to end %s", t.ImagesPerSecond, t.Requests, t.Wrong, t.Refused, t.Unanswered, micros(t.EndToEnd))})
			}
		}
	}
	return rows
}
