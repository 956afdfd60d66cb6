package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/research/bench"
)

func gatherCommand(print printer) *cobra.Command {
	var device string
	var n int
	var pairs bool
	cmd := &cobra.Command{
		Use: "gather", Short: "GB/s at which a GPU collects packets into a tensor, beside a contiguous copy, a copy a packet, and the CPU",
		Example: `  penstock-lab gather
  penstock-lab gather --pairs -n 200
  penstock-lab gather --device cuda:1 -o json`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 {
				return fmt.Errorf("-n %d: want at least 1", n)
			}
			if err := testbed.CheckDevice(device); err != nil {
				return err
			}
			if pairs {
				r, err := bench.RunGatherPairs(cmd.Context(), version, device, n)
				if err != nil {
					return err
				}
				rows := []table.Row{{"pictures", "tensor", "kernel", "alignment", "gather", "contiguous copy", "gather / copy", "10 to 90 % of pairs"}}
				for _, c := range r.Cases {
					rows = append(rows, table.Row{fmt.Sprintf("%d of %s", c.Pictures, c.Picture), c.Tensor, c.Kernel, c.Alignment, fmt.Sprintf("%.1f µs", c.GatherMicros),
						fmt.Sprintf("%.1f µs", c.CopyMicros), fmt.Sprintf("%.3f", c.Ratio), fmt.Sprintf("%.3f to %.3f", c.Spread[0], c.Spread[1])})
				}
				return print(r, rows)
			}
			r, err := bench.RunGather(cmd.Context(), version, device, n)
			if err != nil {
				return err
			}
			rows := []table.Row{{"packets", "tensor", "pictures", "alignment", "gather", "contiguous copy", "ratio", "copy a packet", "CPU and one copy", "seen after"}}
			for _, c := range r.Cases {
				tensor := c.Tensor
				if c.Normalised {
					tensor += ", normalised"
				}
				rows = append(rows, table.Row{c.Wire, tensor, c.Pictures, c.Alignment, fmt.Sprintf("%.1f GB/s", c.GigabytesPerSecond),
					fmt.Sprintf("%.1f GB/s", c.CopyGBPerSecond), fmt.Sprintf("%.2f", c.Ratio), fmt.Sprintf("%.2f GB/s", c.FragmentCopyGBPerSecond),
					fmt.Sprintf("%.1f GB/s", c.CPUCopyGBPerSecond), fmt.Sprintf("%.0f µs", c.Seen.P50)})
			}
			for _, p := range r.Partitions {
				rows = append(rows, table.Row{r.Cases[0].Wire, r.Cases[0].Tensor, 32, fmt.Sprintf("%d multiprocessors", p.SMs), fmt.Sprintf("%.1f GB/s", p.GigabytesPerSecond)})
			}
			return print(r, rows)
		},
	}
	cmd.Flags().StringVar(&device, "device", "cuda", "cuda, cuda:N or a GPU's UUID")
	cmd.Flags().IntVarP(&n, "number", "n", 30, "how often each figure is measured")
	cmd.Flags().BoolVar(&pairs, "pairs", false, "only gather and copy, in turns: of the card's pictures, and of a camera's, which are sampled")
	return cmd
}
