package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/research/bench"
)

func ingestCommand(print printer) *cobra.Command {
	var duration, soak time.Duration
	var source string
	var ports bool
	cmd := &cobra.Command{
		Use: "ingest", Short: "Whole requests a second through source and aggregation, beside a bare receive loop",
		Long: `Measures requests of 147 and of 507 fragments of 1 KB through source and aggregation,
answered at once, beside a loop that receives the same and does nothing with it.

--source dpdk measures a port of memory that makes its frames as it is polled, all on
one core; --ports adds kernel sockets and the virtual ports that this machine has, each
with a sender at its other end (as root: it makes network namespaces); --soak runs that
long and counts whether every mbuf came back. The exit status is 1 when one did not.`,
		Example: `  penstock-lab ingest --duration 5s -o json
  penstock-lab ingest --source dpdk --ports
  penstock-lab ingest --source dpdk --soak 1h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case duration <= 0:
				return fmt.Errorf("--duration %s: want a positive duration", duration)
			case soak < 0:
				return fmt.Errorf("--soak %s: want 0 or more", soak)
			case source != "udp" && source != "dpdk":
				return fmt.Errorf("--source %q: want udp or dpdk", source)
			case source == "udp" && (soak > 0 || ports):
				return fmt.Errorf("--soak and --ports are of --source dpdk")
			case ports && os.Geteuid() != 0:
				return fmt.Errorf("--ports makes network namespaces: run it as root")
			case source == "dpdk":
				return ingestDPDK(cmd.Context(), print, duration, soak, ports)
			}
			r, err := bench.RunIngest(cmd.Context(), duration)
			if err != nil {
				return err
			}
			var rows []table.Row
			for _, c := range r.Cases {
				rows = append(rows,
					table.Row{fmt.Sprintf("%d × %d B: datagrams", c.Fragments, c.FragmentBytes), fmt.Sprintf("%.2f M/s", c.DatagramsPerSecond/1e6)},
					table.Row{"whole requests' bytes", fmt.Sprintf("%.2f GB/s", c.BytesPerSecond/1e9)},
					table.Row{"bare GRO receive loop", fmt.Sprintf("%.2f GB/s", c.BareBytesPerSecond/1e9)},
					table.Row{"ratio", fmt.Sprintf("%.2f", c.Ratio)},
					table.Row{"allocations a datagram", c.AllocsPerDatagram},
					table.Row{"lost", c.Lost})
			}
			return print(r, rows)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&duration, "duration", 3*time.Second, "how long each measurement takes")
	f.StringVar(&source, "source", "udp", "udp or dpdk")
	f.BoolVar(&ports, "ports", false, "of dpdk: measure kernel sockets, af_packet, tap, af_xdp and memif, too")
	f.DurationVar(&soak, "soak", 0, "of dpdk: then run for that long, and count the mbufs")
	return cmd
}

func ingestDPDK(ctx context.Context, print printer, duration, soak time.Duration, ports bool) error {
	r, err := bench.RunIngestDPDK(ctx, bench.DPDKOptions{
		Each: duration, Soak: soak, Ports: ports, Machine: testbed.ThisMachine(version),
		Progress: func(what string) { fmt.Fprintln(os.Stderr, "penstock-lab ingest:", what) },
	})
	if err != nil {
		return err
	}
	rows := []table.Row{{"one core, " + r.Memory, "datagrams", "bare bursts", "ratio", "headers read", "ratio", "allocations a datagram", "lost"}}
	for _, c := range r.OneCore {
		rows = append(rows, table.Row{fmt.Sprintf("%d × %d B, %s written", c.Fragments, c.FragmentBytes, c.Frames),
			fmt.Sprintf("%.2f M/s", c.DatagramsPerSecond/1e6), fmt.Sprintf("%.2f M/s", c.BareDatagramsPerSecond/1e6),
			fmt.Sprintf("%.2f", c.Ratio), fmt.Sprintf("%.2f M/s", c.ReadDatagramsPerSecond/1e6), fmt.Sprintf("%.2f", c.RatioRead),
			c.AllocsPerDatagram, c.Lost})
	}
	if len(r.Ports) > 0 {
		rows = append(rows, table.Row{"port", "received", "sent", "lost", "allocations a datagram", "sender"})
	}
	for _, p := range r.Ports {
		if p.Lacks != "" {
			rows = append(rows, table.Row{p.Port, "not on this machine: " + p.Lacks})
			continue
		}
		rows = append(rows, table.Row{p.Port, fmt.Sprintf("%.2f M/s", p.ReceivedPerSecond/1e6), fmt.Sprintf("%.2f M/s", p.SentPerSecond/1e6),
			fmt.Sprintf("%.2f %%", p.LostPercent), fmt.Sprintf("%.4f", p.AllocsPerDatagram), p.Sender})
	}
	if s := r.Soak; s != nil {
		rows = append(rows,
			table.Row{"soak", "datagrams", "requests", "incomplete", "missed frames", "mbufs not back"},
			table.Row{time.Duration(s.Seconds * float64(time.Second)).Round(time.Second), s.Datagrams, s.Requests, s.Incomplete, s.Missed,
				fmt.Sprintf("%d of %d", s.MbufsAbsent, s.Mbufs)})
	}
	if err := print(r, rows); err != nil {
		return err
	}
	if r.Soak != nil && r.Soak.MbufsAbsent > 0 {
		return exitStatus(1)
	}
	return nil
}
