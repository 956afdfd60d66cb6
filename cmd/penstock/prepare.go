package main

import (
	"errors"
	"log/slog"
	"os"
	"runtime"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/libml/onnx"
	modelstore "github.com/penstock/penstock/libml/onnx/prepared"
	"github.com/penstock/penstock/models"
)

// prepareCommand prepares one model for a GPU; the orchestrator starts it.
func prepareCommand() *cobra.Command {
	var card, device, dir string
	cmd := &cobra.Command{
		Use:    "prepare",
		Short:  "Prepare a model for shared weights (started by the orchestrator)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := models.ReadCard(card)
			if err != nil {
				return err
			}
			log := slog.New(zerolog.NewSlogHandler(zerolog.New(os.Stderr).With().Timestamp().Logger()))
			err = onnx.Prepare(c, device, dir, runtime.NumCPU(), log)
			if errors.Is(err, modelstore.ErrNotShareable) {
				return nil // processes that need the model read the error from the store
			}
			return err
		},
	}
	cmd.Flags().StringVar(&card, "card", "", "the model's card")
	cmd.Flags().StringVar(&device, "device", "", "UUID of the GPU")
	cmd.Flags().StringVar(&dir, "dir", "", "folder of prepared models")
	return cmd
}
