package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/libml/gpu"
)

// probeCommand measures stream priorities on a GPU; the orchestrator starts it. With --fill it is
// the other process of the measurement.
func probeCommand() *cobra.Command {
	var device string
	var fill bool
	cmd := &cobra.Command{
		Use:    "probe",
		Short:  "Measure whether stream priorities hold between processes (started by the orchestrator)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if fill {
				return gpu.Occupy(device, os.Stdin, os.Stdout)
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own binary: %w", err)
			}
			p, err := gpu.MeasurePriorities(device, func() *exec.Cmd {
				other := exec.Command(self, "probe", "--fill", "--device", device)
				other.Stderr = os.Stderr
				other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				return other
			})
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(p)
		},
	}
	cmd.Flags().StringVar(&device, "device", "cuda", "UUID of the GPU")
	cmd.Flags().BoolVar(&fill, "fill", false, "keep the GPU full until the end of standard input")
	return cmd
}
