package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
	"github.com/penstock/penstock/cmd/penstock/doctor"
)

func doctorCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can and cannot do, and how to mend it",
		Long: `Checks what Penstock builds on and says of each thing that is missing what it costs
and which command mends it. The exit status is 1 when a node could not run here.`,
		Example: `  penstock doctor`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := flags.load()
			if err != nil {
				return err
			}
			o := doctor.Options{Config: c}
			if flags.config != "" {
				o.CheckConfig = func(ctx context.Context) ([]string, error) { return check.Node(ctx, c) }
			}

			report := doctor.Examine(cmd.Context(), o)
			report.Print(cmd.OutOrStdout())
			if !report.Healthy() {
				return exitStatus(1)
			}
			return nil
		},
	}
	flags.register(cmd)
	return cmd
}
