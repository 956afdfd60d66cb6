package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/functions"
	"github.com/penstock/penstock/control"
)

// listCommand is `penstock if list`: the functions of the node whose runtime folder
// folder says.
func listCommand(folder func() string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the functions of the running node, and how they are",
		Long: `Lists the functions of the running node. "guarantee" is the part of the device's time that
a function can count on, "use" what it used lately, and "demoted" the part of its use beyond
the guarantee, at the lowest priority. Nothing is reserved: time that a function does not use
belongs to the others. With "policy: gslice" the table has "share" instead: the sum over a
function's instances, with the multiprocessors that its processes count on a GPU.
"batch" is how many requests its batches may have now.
Of the answered requests some failed: their clients were told so, and the node's log says
why. Lost requests were accepted and never answered; there must be none. Below the table stands
why a function's objective is not guaranteed, and what went wrong.`,
		Example: `  penstock if list
  penstock if list -o json | jq '.functions[].port'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("output %q: want table or json", output)
			}
			status, err := control.ReadStatus(cmd.Context(), folder())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output == "json" {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				return e.Encode(status)
			}
			functions.Write(out, &status, outputWidth())
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}
