package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/functions"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen/tabular"
)

// listCommand is `penstock if list`: it lists a node's functions. folder returns
// the node's runtime folder.
func listCommand(folder func() string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the functions of the running node and their state",
		Long: `Lists the functions of the running node. "guarantee" is the part of the device's time that a
function can count on, "use" is the part that it used lately, and "demoted" is the part of its
use above the guarantee, which runs at the lowest priority. Nothing is reserved: other functions
use the time that a function leaves. With "policy: gslice" the table has "share" instead: the
sum over a function's instances, with their number of multiprocessors on a GPU.

"batch" is the max size of its batches now. "failed" counts requests whose batch failed; the
node's log has the reason. "lost" counts requests that were accepted and never answered; it
must be 0. The lines below the table say why an objective is not guaranteed, and what failed.`,
		Example: `  penstock if list
  penstock if list -o json | jq '.functions[].port'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := control.ReadStatus(cmd.Context(), folder())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output == "json" {
				return writeJSON(out, status)
			}
			functions.Write(out, &status, tabular.Width(os.Stdout))
			return nil
		},
	}
	outputFlag(cmd, &output, "table", "json")
	return cmd
}
