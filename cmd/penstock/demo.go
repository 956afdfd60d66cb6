package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/demo"
	"github.com/penstock/penstock/configs"
)

func demoCommand() *cobra.Command {
	var camera, lanes, open bool
	o := demo.Options{Version: version}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run three models on real pictures, then overload one of them",
		Long: `Runs ` + "`penstock up`" + ` with the built-in configuration and ` + "`penstock load`" + ` against it.
In the second half one function receives twice the requests that it can answer, and the
others still meet their objectives.

With --device cuda it runs on a GPU.

With --camera it runs until Ctrl-C, with a page at http://127.0.0.1:9651 that answers the camera of
your browser. A button gives another function ten times its load, another kills the process that
serves the camera.

With --lanes it runs 42 functions in one worker whose memory holds a third of their models
(docs/lanes.md). One function moves to its own process and back. The exit status is 1 if a request
was lost or an answer differs from that of the same model run in this process.`,
		Example: `  penstock demo --duration 30s --out out
  penstock demo --device cuda
  penstock demo --lanes
  penstock demo --camera --open`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if open && !camera {
				return errors.New("--open opens the page of --camera; want both")
			}
			switch {
			case camera && lanes:
				return errors.New("--camera and --lanes: want one of them")
			case camera:
				return demo.Camera(cmd.Context(), o, open)
			case lanes:
				if !cmd.Flags().Changed("duration") {
					o.Duration = demo.LanesDuration
				}
				return demo.Lanes(cmd.Context(), o)
			}
			return demo.Overload(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Device, "device", configs.DeviceCPU, "cpu, cuda, cuda:N or a GPU's UUID")
	cmd.Flags().StringVar(&o.Functions, "functions", "", "configuration in place of the built-in one, with functions of the same names")
	cmd.Flags().MarkHidden("functions") // for tests: the built-in models need ONNX Runtime on the device
	cmd.Flags().DurationVar(&o.Duration, "duration", 30*time.Second, "measured time of both halves; 1m0s with --lanes")
	cmd.Flags().StringVar(&o.Out, "out", "out", "folder for the log, and for the pictures with the results drawn on them")
	cmd.Flags().BoolVar(&camera, "camera", false, "show the page, until Ctrl-C")
	cmd.Flags().BoolVar(&lanes, "lanes", false, "run many models in one process")
	cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	cmd.Flags().StringVarP(&o.Output, "output", "o", "table", "table, json or csv")
	return cmd
}
