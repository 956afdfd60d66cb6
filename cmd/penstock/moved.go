package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// benchMoved is the old command; it prints the name of the new one. Remove it
// after 0.1.0.
func benchMoved() *cobra.Command {
	return &cobra.Command{
		Use: "bench", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			return fmt.Errorf("bench has moved to penstock-lab; run make lab && %s", strings.Join(append([]string{"bin/penstock-lab"}, args...), " "))
		},
	}
}
