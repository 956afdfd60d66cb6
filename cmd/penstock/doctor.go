package main

import (
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
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
				return printReport(cmd, check.Problems(err))
			}
			report := check.Machine(cmd.Context(), c)
			if flags.config != "" {
				report = append(report, check.Configuration(cmd.Context(), c)...)
			}
			return printReport(cmd, report)
		},
	}
	flags.register(cmd)
	return cmd
}

// printReport prints the findings of doctor or check. The exit status is 1 if a node cannot run.
func printReport(cmd *cobra.Command, r check.Report) error {
	r.Print(cmd.OutOrStdout())
	if !r.Healthy() {
		return exitStatus(1)
	}
	return nil
}
