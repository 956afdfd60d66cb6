package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/tabular"
	"github.com/penstock/penstock/wire"
)

// streamOptions are the flags of `penstock stream`.
type streamOptions struct {
	dir      string
	to       []string
	name     string
	live     bool
	hwaccel  string
	size     string
	format   string
	rate     float64
	output   string
	annotate string
}

// showEvery is the time between two updates of the line on the terminal.
const showEvery = 250 * time.Millisecond

func streamCommand() *cobra.Command {
	var o streamOptions
	cmd := &cobra.Command{
		Use:   "stream SOURCE --to FUNCTION,...",
		Short: "Send the frames of a video to functions of the running node",
		Long: `Decodes a video with ffmpeg and sends its frames to functions. SOURCE is what ffmpeg reads: a
file, an address (rtsp, rtp, srt, udp, tcp, rist, rtmp, http), an SDP file, a device like
/dev/video0, or - for standard input.

From a live source only the newest frame is sent, one at a time to each function; the others are
skipped and counted. From a file or standard input every frame is sent, unless --live is given:
then a file plays at its own pace.

Other users can read the command line of a process. Put addresses with passwords under streams: in
the configuration (docs/stream.md).`,
		Example: `  penstock stream door.mp4 --to face -o jsonl
  penstock stream rtsp://camera.local/main --to face,detect
  penstock stream street.mp4 --to detect --annotate out.mp4
  capture | penstock stream - --size 640x480 --pixel-format rgb24 --to face`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "runtime-dir", "", nodeUsage)
	f.StringSliceVar(&o.to, "to", nil, "functions, separated by commas")
	f.StringVar(&o.name, "name", "stream", "name of the stream in the output")
	f.BoolVar(&o.live, "live", false, "send only the newest frame; by default of all sources but files and standard input")
	f.StringVar(&o.hwaccel, "hwaccel", "", "ffmpeg's name of a hardware decoder, like vaapi; penstock doctor lists them")
	f.StringVar(&o.size, "size", "", "WIDTHxHEIGHT of raw frames on standard input; without it they are in a container")
	f.StringVar(&o.format, "pixel-format", "rgb24", "ffmpeg's name of the format of raw frames")
	f.Float64Var(&o.rate, "rate", 25, "raw frames per second")
	outputFlag(cmd, &o.output, "text", "jsonl")
	f.Lookup("output").Usage += ": one line per frame and function"
	f.StringVar(&o.annotate, "annotate", "", "video file, like out.mp4, to draw the boxes in")
	return cmd
}

// input checks the flags and returns the source to decode.
func (o *streamOptions) input(cmd *cobra.Command, source string) (in stream.Input, err error) {
	if len(o.to) == 0 || slices.Contains(o.to, "") {
		return in, errors.New("--to is missing; want the names of functions, like --to face,detect")
	}
	slices.Sort(o.to)
	o.to = slices.Compact(o.to)
	if err := stream.CheckName("--hwaccel", o.hwaccel); err != nil {
		return in, err
	}
	if in.Address, err = stream.ParseAddress(source); err != nil {
		return in, err
	}
	in.HWAccel, in.Live, in.Log = o.hwaccel, in.Address.Live(), zerolog.Nop()
	if cmd.Flags().Changed("live") {
		in.Live = o.live
	}
	if source == stream.Stdin && isTerminal(os.Stdin) {
		return in, errors.New("standard input is a terminal; want a video piped to it")
	}
	if o.size == "" {
		return in, nil
	}
	if source != stream.Stdin {
		return in, fmt.Errorf("--size describes raw frames on standard input, and the source is %s; want it left out", in.Address)
	}
	in.Raw = &stream.Raw{Format: o.format, Rate: o.rate}
	var rest string
	if n, _ := fmt.Sscanf(o.size+" ", "%dx%d%s", &in.Raw.Width, &in.Raw.Height, &rest); n != 2 || in.Raw.Width < 1 || in.Raw.Height < 1 {
		return in, fmt.Errorf("--size is %q, want WIDTHxHEIGHT, like 640x480", o.size)
	}
	if err := stream.CheckName("--pixel-format", o.format); err != nil {
		return in, err
	}
	if !(o.rate > 0) || math.IsInf(o.rate, 0) {
		return in, fmt.Errorf("--rate is %v, want frames per second, like 25", o.rate)
	}
	return in, nil
}

func (o *streamOptions) run(cmd *cobra.Command, source string) error {
	input, err := o.input(cmd, source)
	if err != nil {
		return err
	}
	set, err := nodeFunctions(cmd.Context(), o.dir)
	if err != nil {
		return err
	}
	for _, name := range o.to {
		f, err := set.Function(name)
		if err != nil {
			return err
		}
		if err := functions.CheckPhotos(&f.Card.Input); err != nil {
			return fmt.Errorf("stream to %s: %w", name, err)
		}
	}
	following, stop := context.WithCancel(context.Background())
	defer stop()
	go set.Run(following)

	monitor := stream.NewMonitor(o.to)
	options := stream.Options{Name: o.name, Input: input, To: o.to, Node: stream.Node{Functions: set}, Monitor: monitor}
	var annotator *stream.Annotator
	if o.annotate != "" {
		if annotator, err = stream.NewAnnotator(o.annotate, input.FFmpeg, o.to); err != nil {
			return err
		}
		options.Shown = func(f stream.Frame, d *stream.Decoder) error { return annotator.Write(f, d.Rate()) }
	}
	lines := json.NewEncoder(cmd.OutOrStdout())
	options.Observe = func(r stream.Result) error {
		if annotator != nil {
			annotator.Observe(r)
		}
		if o.output != "jsonl" {
			return nil
		}
		return lines.Encode(r.Line())
	}

	end := o.show(cmd.ErrOrStderr(), monitor)
	err = stream.Run(cmd.Context(), options)
	end()
	if annotator != nil {
		err = errors.Join(err, annotator.Close())
	}
	snapshot := monitor.Snapshot()
	if o.output == "text" && snapshot.Frames > 0 {
		fmt.Fprint(cmd.OutOrStdout(), snapshot.Summary())
	}
	return errors.Join(err, unanswered(snapshot))
}

// unanswered returns an error for each function that answered frames, but none with ok.
func unanswered(s stream.Snapshot) error {
	var errs []error
	for _, f := range s.Functions {
		if f.Err != nil && f.Answers[wire.StatusOK.String()] == 0 {
			errs = append(errs, fmt.Errorf("%s answered no frame; the last error was: %w", f.Name, f.Err))
		}
	}
	return errors.Join(errs...)
}

// show updates a status line on the terminal until end is called. JSON lines must not go to the
// same terminal.
func (o *streamOptions) show(to io.Writer, monitor *stream.Monitor) (end func()) {
	width := tabular.WidthOf(os.Stderr)
	if width == nil || o.output == "jsonl" && isTerminal(os.Stdout) {
		return func() {}
	}
	progress := loadgen.NewProgress(to, width)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(showEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				progress.Overwrite(monitor.Snapshot().String())
			case <-stop:
				progress.End()
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}
