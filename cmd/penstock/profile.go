package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/profiler"
)

func profileCommand() *cobra.Command {
	q := profiler.Request{Version: version}
	cmd := &cobra.Command{
		Use:   "profile MODEL",
		Short: "Measure a model at each share, batch size and number of processes, and find its knees",
		Long: `Measures the throughput and the mean batch time of a model at each share of a device, each
batch size and each number of processes. The processes run as in a node, under a real quota
(the share is that of all processes together), and always have pictures waiting. MODEL is the
name or the file of a card.

Each point is warmed up until its batches are full, then measured in windows until the 95 %
confidence interval of its mean throughput is within --precision. Points that cannot help are
left out: those after two points in a row that gained less than 2 %, and those that need at
least as much memory as a point that ran out of it.

The profile, MODEL.csv, is written next to the card. At the end the command prints the keys with
the knees. An unfinished profile is MODEL.csv.partial: after Ctrl-C the same command continues
from it.`,
		Example: `  penstock profile fashion
  penstock profile fashion --device cpu --shares 20,40,60,80,100 --batches 1,8 --processes 1,2 --out profiles
  penstock profile fashion --device cuda --sizes   # MIG's sizes`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Model = args[0]
			if q.Quick {
				q.Quicken(cmd.Flags().Changed)
			}
			err := q.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if errors.Is(err, profiler.ErrInterrupted) {
				return exitStatus(interrupted)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&q.Device, "device", configs.DeviceAuto, "cuda, cuda:N, a GPU's UUID, cpu, or auto: the first GPU, else the CPU")
	cmd.Flags().StringVar(&q.Models, "models", "", "folder of cards, searched before the built-in models")
	cmd.Flags().IntSliceVar(&q.Shares, "shares", nil, "shares to measure, in percent (with --sizes, in GPCs); 10,20,...,100 if left out")
	cmd.Flags().IntSliceVar(&q.Batches, "batches", nil, "batch sizes; the card's ladder if left out")
	cmd.Flags().IntSliceVar(&q.Processes, "processes", []int{1, 2, 3, 4, 5}, "numbers of processes within a share")
	cmd.Flags().BoolVar(&q.Sizes, "sizes", false, "measure at the sizes of MIG instances: in the idle ones of a GPU in MIG mode, else by MPS percentages of as many multiprocessors")
	cmd.Flags().BoolVar(&q.Cut, "cut", false, "with --sizes: cut the GPU into an instance of each size, and cut it as before at the end (needs root)")
	cmd.Flags().DurationVar(&q.Window, "window", 250*time.Millisecond, "length of a window; longer if ten batches take longer")
	cmd.Flags().Float64Var(&q.Precision, "precision", 5, "half the confidence interval of a stable point, in percent of the mean")
	cmd.Flags().IntVar(&q.Windows, "windows", 20, "max number of windows per point")
	cmd.Flags().StringVar(&q.Out, "out", "", "folder for the profile; next to the card if left out, ./profiles for a built-in model")
	cmd.Flags().BoolVar(&q.Quick, "quick", false, "measure for a minute: three shares, the smallest and the largest batch, one process, short windows")
	cmd.Flags().BoolVar(&q.Again, "again", false, "discard earlier measurements")
	return cmd
}

// interrupted is the exit status of a program that Ctrl-C ended (128 + SIGINT).
const interrupted = 130
