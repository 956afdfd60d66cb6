package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manCommand writes the manual pages; `make man` runs it.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write a manual page for each verb", Hidden: true, Args: arguments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("make folder of manual pages: %w", err)
			}
			cmd.Root().DisableAutoGenTag = true // else each page ends with the date
			err := doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "1", Source: "Penstock " + version, Manual: "Penstock"}, args[0])
			if err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			return nil
		},
	}
}
