package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/demo"
	"github.com/penstock/penstock/configs"
)

func demoCommand() *cobra.Command {
	var camera, open bool
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
serves the camera.`,
		Example: `  penstock demo --duration 30s --out out
  penstock demo --device cuda
  penstock demo --camera --open`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if open && !camera {
				return errors.New("--open opens the page of --camera; want both")
			}
			if camera {
				return demo.Camera(cmd.Context(), o, open)
			}
			return demo.Overload(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.Device, "device", configs.DeviceCPU, "cpu, cuda, cuda:N or a GPU's UUID")
	cmd.Flags().StringVar(&o.Functions, "functions", "", "configuration in place of the built-in one, with functions of the same names")
	cmd.Flags().MarkHidden("functions") // for tests: the built-in models need ONNX Runtime on the device
	cmd.Flags().DurationVar(&o.Duration, "duration", 30*time.Second, "measured time of both halves")
	cmd.Flags().StringVar(&o.Out, "out", "out", "folder for the log, and for the pictures with the results drawn on them")
	cmd.Flags().BoolVar(&camera, "camera", false, "show the page, until Ctrl-C")
	cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	outputFlag(cmd, &o.Output, "table", "json")
	return cmd
}
