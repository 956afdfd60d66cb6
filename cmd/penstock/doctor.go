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
		Short: "Check what this machine can do, and how to add what is missing",
		Long: `Checks what Penstock needs and can use. For each missing part it prints the effect, and a
command that repairs it. The exit status is 1 if a node cannot run on this machine.`,
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
