package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
)

func checkCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "check CONFIG",
		Short: "Say what would keep a node from running with a configuration",
		Long: `Checks all that "penstock up" needs of a configuration: its text, that each model is found and
loads, that functions may read it, that ports are free, that the shares fit, and that the device is there. It changes
nothing and needs no running node; ports that a running node with the same runtime folder
has count as free. All problems are printed, a line each: file, line, column, and what would
be right. The exit status is then 1.`,
		Example: `  penstock check /etc/penstock/node.yaml`,
		Args:    arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.config = args[0]
			c, _, err := flags.read()
			if err != nil {
				return err
			}
			notes, err := check.Node(cmd.Context(), c)
			if err != nil {
				return err
			}
			for _, note := range append(c.Warnings, notes...) {
				fmt.Fprintln(cmd.OutOrStdout(), note)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: a node can run with it: functions: %d\n", args[0], len(c.Functions))
			return nil
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
