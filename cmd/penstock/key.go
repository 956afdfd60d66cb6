package main

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
)

func keyCommand() *cobra.Command {
	var functions, operations []string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "key NAME",
		Short: "Make a key for a client of the gateway",
		Long: `Prints a new secret for a client, and the key for the file that gateway.keys of the configuration
names. The key has only the hash of the secret: the secret cannot be shown again. A running node
follows the file (docs/security.md).`,
		Example: `  penstock key line-3 --functions detect,face
  penstock key grafana --operations look --valid 8760h`,
		Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			secret, until := rand.Text(), ""
			if valid > 0 {
				until = ", until: " + time.Now().Add(valid).UTC().Format(time.RFC3339)
			}
			key := fmt.Sprintf("- {name: %s, sha256: %x%s, functions: [%s], operations: [%s]}",
				args[0], sha256.Sum256([]byte(secret)), until, `"`+strings.Join(functions, `", "`)+`"`, strings.Join(operations, ", "))
			if _, err := configs.DecodeKeys("new key", []byte("keys:\n"+key)); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "secret: %s\nkey:\n%s\n", secret, key)
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&functions, "functions", []string{configs.AllFunctions}, "names or patterns of functions, like cam-*")
	cmd.Flags().StringSliceVar(&operations, "operations", []string{string(configs.OperationInfer)}, "infer, look (the page, statistics, metrics), change")
	cmd.Flags().DurationVar(&valid, "valid", 0, "how long the key is valid; without end if left out")
	return cmd
}
