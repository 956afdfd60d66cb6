package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/research/bench"
)

// deviceFlags are the flags that all benchmarks of a device share.
type deviceFlags struct{ device, models string }

func (d *deviceFlags) register(cmd *cobra.Command, device string) {
	cmd.Flags().StringVar(&d.device, "device", device, "cuda, cuda:N, a GPU's UUID, or cpu")
	cmd.Flags().StringVar(&d.models, "models", "", "folder of cards, searched before the built-in models")
}

// cpuSetup is the set-up of a benchmark on this machine's CPUs.
func cpuSetup() (bench.Setup, error) {
	flags := deviceFlags{device: configs.DeviceCPU}
	return flags.options()
}

// options checks that the device exists and describes the machine.
func (d *deviceFlags) options() (bench.Setup, error) {
	o := bench.Setup{Setup: testbed.Setup{Device: d.device, Models: d.models, Machine: testbed.ThisMachine(version)}}
	var err error
	if o.Binary, o.Lab, err = programs(); err != nil {
		return o, err
	}
	if err := testbed.CheckDevice(d.device); err != nil {
		return o, fmt.Errorf("--device %s: %w", d.device, err)
	}
	last := ""
	o.Progress = func(what string) {
		// On a terminal, and only there, a progress line overwrites the previous one.
		if isTerminal(os.Stderr) {
			fmt.Fprintf(os.Stderr, "\r%-*s", len(last), what)
			last = what
		} else if !counting.MatchString(what) {
			fmt.Fprintln(os.Stderr, what)
		}
	}
	return o, nil
}

// counting matches a line that only reports progress.
var counting = regexp.MustCompile(`[0-9]+ of [0-9]+$`)

// memoryName says which memory the benchmarks of workers measure on a device.
func memoryName(device string) string {
	if device == configs.DeviceCPU {
		return "anonymous memory"
	}
	return "GPU memory"
}

func positive(flag string, n int) error {
	if n < 1 {
		return fmt.Errorf("%s %d: want at least 1", flag, n)
	}
	return nil
}

func swapCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var swaps, batch, restarts, streams, functions int
	var change, model string
	var from, to float64
	cmd := &cobra.Command{
		Use: "swap", Short: "How long the stream stands still when a share changes under load",
		Long: `On the CPU a model that computes nothing is swapped for its shadow, beside a bare futex
wake. On a GPU a real model's share changes by shadow or by partition, beside stop and
start, and the second around each change is compared with one without.`,
		Example: `  penstock-lab swap -n 1000 -o json
  penstock-lab swap --device cuda --change partition --model resnet50 --models models -n 1000`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("-n", swaps); err != nil {
				return err
			}
			if restarts < 0 {
				return fmt.Errorf("--restarts %d: want 0 or more", restarts)
			}
			if flags.device == configs.DeviceCPU && model == "" {
				if change != string(configs.ChangeShadow) {
					return fmt.Errorf("--change %s: on the CPU the swap of shadows is measured; --device cuda has the others", change)
				}
				return swapOnCPU(cmd, print, swaps, restarts)
			}
			for flag, n := range map[string]int{"--batch": batch, "--functions": functions} {
				if err := positive(flag, n); err != nil {
					return err
				}
			}
			if most := max(from, to) * float64(functions); most > 100 {
				return fmt.Errorf("--functions %d at %v %% each are %v %%: want at most 100", functions, max(from, to), most)
			}
			o, err := flags.options()
			if err != nil {
				return err
			}
			if model == "" {
				model = "resnet50"
			}
			r, err := bench.RunMoves(cmd.Context(), bench.MovesOptions{Setup: o, Change: configs.Change(change), Model: model, Batch: batch,
				Number: swaps, Restarts: restarts, Functions: functions, From: from, To: to, Streams: streams})
			if err != nil {
				return err
			}
			var rows []table.Row
			add := func(m bench.MovesCase) {
				rows = append(rows,
					table.Row{m.How + ": moves", fmt.Sprintf("%d, and %d that found no work waiting", m.Moves, m.Unloaded)},
					table.Row{"idle", micros(m.Idle)},
					table.Row{"order to served", fmt.Sprintf("p50 %.0f  p99 %.0f ms", m.Takes.P50, m.Takes.P99)},
					table.Row{"requests, lost", fmt.Sprintf("%d, %d", m.Requests, m.Lost)},
					table.Row{"p99 of a steady second", fmt.Sprintf("%.2f ms", m.SteadyP99.P50)},
					table.Row{"p99 of the second around", fmt.Sprintf("p50 %.2f  max %.2f ms", m.AroundP99.P50, m.AroundP99.Max)})
			}
			add(r.Change)
			if r.Restart != nil {
				add(*r.Restart)
			}
			return print(r, rows)
		},
	}
	flags.register(cmd, configs.DeviceCPU)
	cmd.Flags().IntVarP(&swaps, "number", "n", 1000, "how many changes")
	cmd.Flags().StringVar(&change, "change", string(configs.ChangeShadow), "shadow or partition")
	cmd.Flags().StringVar(&model, "model", "", "the model on a GPU; resnet50 if left out")
	cmd.Flags().IntVar(&batch, "batch", 8, "its largest batch")
	cmd.Flags().IntVar(&streams, "streams", 0, "batches in flight, 1 or 2; 0 leaves it to libml")
	cmd.Flags().IntVar(&functions, "functions", 1, "how many functions of the model move, each by itself, at the same time")
	cmd.Flags().IntVar(&restarts, "restarts", 10, "how many changes by stop and start to compare with")
	cmd.Flags().Float64Var(&from, "from", 60, "one share, in percent")
	cmd.Flags().Float64Var(&to, "to", 40, "the other share, in percent")
	return cmd
}

func swapOnCPU(cmd *cobra.Command, print printer, swaps, restarts int) error {
	penstock, _, err := programs()
	if err != nil {
		return err
	}
	progress := func(done int) {
		if isTerminal(os.Stderr) {
			fmt.Fprintf(os.Stderr, "\rswap %d of %d", done, swaps)
			if done == swaps {
				fmt.Fprintln(os.Stderr)
			}
		}
	}
	r, err := bench.RunSwap(cmd.Context(), penstock, swaps, restarts, progress)
	if err != nil {
		return err
	}
	return print(r, []table.Row{
		{"swaps", r.Swaps},
		{"idle", micros(r.Idle)},
		{"floor: bare futex wake", micros(r.Floor)},
		{"requests, answered, lost", fmt.Sprintf("%d, %d, %d", r.Requests, r.Answered, r.Lost)},
		{"the same by stop and start", fmt.Sprintf("%.1f ms", r.RestartIdleMillis)},
	})
}

func bareCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var model string
	var batch, streams int
	var duration time.Duration
	cmd := &cobra.Command{
		Use: "bare", Short: "A framework in a closed loop, with nothing of Penstock around it",
		Example: `  penstock-lab bare --device cuda --model resnet50 --models models --batch 8`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, n := range map[string]int{"--batch": batch, "--streams": streams} {
				if err := positive(flag, n); err != nil {
					return err
				}
			}
			o, err := flags.options()
			if err != nil {
				return err
			}
			r, err := bench.RunBare(cmd.Context(), o, frameworks.New, model, batch, streams, duration)
			if err != nil {
				return err
			}
			return print(r, []table.Row{
				{"images", fmt.Sprintf("%.0f/s", r.ImagesPerSecond)},
				{fmt.Sprintf("a batch of %d", r.Batch), micros(r.Time)},
			})
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringVar(&model, "model", "resnet50", "a card's name or file")
	cmd.Flags().IntVar(&batch, "batch", 1, "images a batch")
	cmd.Flags().IntVar(&streams, "streams", 1, "batches in flight together")
	cmd.Flags().DurationVar(&duration, "duration", 2*time.Second, "how long")
	return cmd
}

func overheadCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.OverheadOptions
	cmd := &cobra.Command{
		Use: "overhead", Short: "UDP in to reply out through a whole node, beside the bare framework at the same batch",
		Example: `  penstock-lab overhead --models models
  penstock-lab overhead --device cpu --model face --batch 1 --batch 8`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, n := range map[string]int{"--batch": slices.Min(o.Batches), "--ports": slices.Min(o.Ports), "--flows": o.Flows, "--receivers": o.Receivers, "--volleys": o.Volleys} {
				if err := positive(flag, n); err != nil {
					return err
				}
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			r, err := bench.RunOverhead(cmd.Context(), o)
			if err != nil && len(r.Cases) == 0 {
				return err
			}
			rows := []table.Row{{"model", "batch", "bare", "overlapped", "busy_poll", "penstock", "ports", "ratio", "of two", "mean batch", "limit", "added", "with gather"}}
			for _, c := range r.Cases {
				for _, w := range c.Ways {
					for _, t := range w.Throughput {
						rows = append(rows, table.Row{c.Model, c.Batch, fmt.Sprintf("%.0f/s", c.BareImagesPerSecond), fmt.Sprintf("%.0f/s", c.BareOverlappedImagesPerSecond),
							fmt.Sprintf("%g ms", w.BusyPollMillis), fmt.Sprintf("%.0f/s", t.ImagesPerSecond), t.Ports, fmt.Sprintf("%.3f", t.Ratio), fmt.Sprintf("%.3f", t.RatioOverlapped), fmt.Sprintf("%.1f", t.MeanBatch), t.Limit,
							fmt.Sprintf("%.0f/%.0f µs", w.Latency.Added.P50, w.Latency.Added.P99), fmt.Sprintf("%.0f/%.0f µs", w.Latency.AddedWithGather.P50, w.Latency.AddedWithGather.P99)})
					}
				}
			}
			return errors.Join(err, print(r, rows)) // what was measured before it failed
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringArrayVar(&o.ModelNames, "model", []string{"resnet50", "mobilenetv2", "detect", "yolov8n"}, "a card's name or file; again for more")
	cmd.Flags().IntSliceVar(&o.Batches, "batch", []int{1, 8, 32}, "batch sizes")
	cmd.Flags().DurationVar(&o.Duration, "duration", 2*time.Second, "how long each throughput is measured")
	cmd.Flags().IntVar(&o.Volleys, "volleys", 300, "how many batches the latency is measured with")
	cmd.Flags().IntSliceVar(&o.Ports, "ports", []int{1, 2, 4}, "numbers of ports to try until one is enough")
	cmd.Flags().IntVar(&o.Flows, "flows", 2, "sockets that send to each port")
	cmd.Flags().IntVar(&o.Receivers, "receivers", 1, "threads that receive from each port; it needs more flows")
	cmd.Flags().DurationSliceVar(&o.BusyPoll, "busy-poll", []time.Duration{0, 10 * time.Millisecond}, "settings of busy_poll, each measured")
	return cmd
}

func limitCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.LimitOptions
	var changes []string
	cmd := &cobra.Command{
		Use: "limit", Short: "Throughput under each limit, alone and beside an aggressor that has the rest",
		Example: `  penstock-lab limit --models models --model vgg19
  penstock-lab limit --models models --aggressor vgg19 --change partition`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("--batch", o.Batch); err != nil {
				return err
			}
			for _, p := range o.Percents {
				if !(p >= 1 && p <= 100) {
					return fmt.Errorf("--percent %v: want 1 to 100", p)
				}
			}
			for _, c := range changes {
				o.Changes = append(o.Changes, configs.Change(c))
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			r, err := bench.RunLimit(cmd.Context(), o)
			if err != nil {
				return err
			}
			rows := []table.Row{{"by", "limit", "SMs", "alone", "beside", "p99 alone", "p99 beside"}}
			for _, s := range r.Series {
				for _, p := range s.Points {
					row := table.Row{s.Change, fmt.Sprintf("%.1f %%", p.Percent), p.SMs, fmt.Sprintf("%.0f/s", p.Alone.ImagesPerSecond), "", fmt.Sprintf("%.2f ms", p.Alone.Latency.P99/1000), ""}
					if p.Loaded != nil {
						row[4], row[6] = fmt.Sprintf("%.0f/s", p.Loaded.ImagesPerSecond), fmt.Sprintf("%.2f ms", p.Loaded.Latency.P99/1000)
					}
					rows = append(rows, row)
				}
			}
			return print(r, rows)
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringVar(&o.Model, "model", "vgg19", "a card's name or file")
	cmd.Flags().IntVar(&o.Batch, "batch", 8, "its largest batch")
	cmd.Flags().StringVar(&o.Aggressor, "aggressor", bench.Spin, "what the neighbour runs: spin, or a model")
	cmd.Flags().StringSliceVar(&changes, "change", []string{string(configs.ChangeShadow), string(configs.ChangePartition)}, "shadow (MPS percentages), partition, on the CPU in-place")
	cmd.Flags().Float64SliceVar(&o.Percents, "percent", []float64{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}, "limits, where they are percentages")
	cmd.Flags().DurationVar(&o.Duration, "duration", 1500*time.Millisecond, "how long each is measured")
	return cmd
}

func startCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.StartOptions
	cmd := &cobra.Command{
		Use: "start", Short: "How long functions take until they serve, and until they have all batch sizes",
		Example: `  penstock-lab start --models models --model resnet50 --model mobilenetv2 -n 5`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("-n", o.Number); err != nil {
				return err
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			r, err := bench.RunStart(cmd.Context(), o)
			if err != nil {
				return err
			}
			var rows []table.Row
			for _, m := range r.Models {
				rows = append(rows, table.Row{m.Model + ": serves", seconds(m.Serves)}, table.Row{fmt.Sprintf("%s: all of %v", m.Model, m.Batches), seconds(m.All)})
			}
			return print(r, rows)
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringArrayVar(&o.ModelNames, "model", []string{"resnet50", "mobilenetv2", "detect"}, "a card's name or file; again for more")
	cmd.Flags().IntVarP(&o.Number, "number", "n", 5, "how many starts of each model")
	return cmd
}

// seconds sums up times in seconds.
func seconds(all []float64) string {
	median, smallest, largest := bench.Spread(all)
	return fmt.Sprintf("%.2f (%.2f to %.2f) s", median, smallest, largest)
}

func faultCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.FaultOptions
	cmd := &cobra.Command{
		Use: "fault", Short: "How long a node is without answers when a neighbour's kernel faults",
		Example: `  penstock-lab fault --models models -n 10`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("-n", o.Number); err != nil {
				return err
			}
			if !(o.RatePerSecond > 0) {
				return fmt.Errorf("--rate %v: want requests a second", o.RatePerSecond)
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			r, err := bench.RunFault(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, []table.Row{
				{"faults", len(r.Faults)},
				{"longest silence of a function", fmt.Sprintf("p50 %.0f  max %.0f ms", r.Silence.P50, r.Silence.Max)},
				{"requests, ok, failed", fmt.Sprintf("%d, %d, %d", r.Requests, r.Answers.OK, r.Answers.Failed)},
				{"without an answer, never sent", fmt.Sprintf("%d, %d", r.Answers.Unanswered, r.Answers.Unsent)},
			})
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringArrayVar(&o.ModelNames, "model", []string{"resnet50", "mobilenetv2", "detect"}, "a card's name or file; again for more")
	cmd.Flags().IntVarP(&o.Number, "number", "n", 10, "how many faults")
	cmd.Flags().Float64Var(&o.RatePerSecond, "rate", 400, "requests a second to each function")
	return cmd
}
