package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/weights"
)

// weightsCommand is the weight server, which the orchestrator starts. With --load it is
// the process that the weight server starts to load a file onto the GPU.
func weightsCommand() *cobra.Command {
	var socket string
	var load bool
	var linger time.Duration
	cmd := &cobra.Command{
		Use:    "weights",
		Short:  "Hold weights in a GPU's memory for inference functions (started by the orchestrator)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if load {
				return weights.Load()
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own binary: %w", err)
			}
			out := json.NewEncoder(os.Stdout)
			return weights.Serve(cmd.Context(), weights.Options{
				Socket: socket, Loader: []string{self, "weights", "--load"}, Linger: linger,
				Log:    zerolog.New(os.Stderr).With().Timestamp().Logger(),
				Report: func(h control.WeightsHeld) { _ = out.Encode(h) }, // the report may have no reader
			})
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "socket to listen on")
	cmd.Flags().BoolVar(&load, "load", false, "load the file of descriptor 3 onto the GPU, and return the memory's descriptor on descriptor 4")
	cmd.Flags().DurationVar(&linger, "linger", 0, "how long to keep unused weights; a minute if left out")
	return cmd
}
