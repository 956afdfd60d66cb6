package main

import (
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
)

func checkCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "check CONFIG",
		Short: "Check whether a node can run with a configuration",
		Long: `Checks all that "penstock up" needs: the text of the configuration, that each model exists and
loads, that functions may read it, that ports are free, that the shares fit, and that the
device exists. It changes nothing and needs no running node. Ports of a running node with the
same file or runtime folder count as free. Prints all problems, one per line with file, line and
column, and what to write instead. The exit status is 1 if there are any.`,
		Example: `  penstock check /etc/penstock/node.yaml`,
		Args:    arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.config = args[0]
			c, _, err := flags.read()
			if err != nil {
				return printReport(cmd, check.Problems(err))
			}
			return printReport(cmd, check.Configuration(cmd.Context(), c))
		},
	}
	cmd.Flags().StringVar(&flags.dir, "runtime-dir", "", "folder for the sockets between this node's processes")
	flags.cmd = cmd
	return cmd
}

func loadModelCommand() *cobra.Command {
	return &cobra.Command{
		Use: check.LoadVerb + " CARD", Hidden: true, Args: arguments(1),
		RunE: func(_ *cobra.Command, args []string) error { return check.LoadModel(args[0]) },
	}
}

func gpusCommand() *cobra.Command {
	return &cobra.Command{
		Use: check.GPUsVerb + " FOLDER", Hidden: true, Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			gpus, err := check.GPUs(args[0])
			if err != nil {
				return err
			}
			return writeJSON(cmd.OutOrStdout(), gpus)
		},
	}
}
