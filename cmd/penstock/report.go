package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/report"
)

func reportCommand() *cobra.Command {
	var out string
	var force bool
	cmd := &cobra.Command{
		Use:   "report RUN.json...",
		Short: "Compare finished runs in one HTML file",
		Long: `Writes one HTML file that shows runs side by side: a table, and per function latency, stages,
answers and rates. A browser opens it without a server, and it loads nothing.

A run is the output of "penstock load -o json".`,
		Example: `  penstock load --rate face=60 -o json > before.json
  penstock load --rate face=60 -o json > after.json
  penstock report before.json after.json -o compare.html`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("penstock report has no runs; want `penstock report RUN.json...`, the output of `penstock load -o json`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var r report.Report
			for _, file := range args {
				if err := r.Add(file); err != nil {
					return err
				}
			}
			if err := writeReport(&r, out, force); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), out)
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "report.html", "file to write")
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file if it exists")
	return cmd
}

func writeReport(r *report.Report, file string, force bool) (err error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(file, flags, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write report: %s exists; choose another file with -o, or overwrite it with --force", file)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() {
		if closed := f.Close(); err == nil && closed != nil {
			err = fmt.Errorf("write report: %w", closed)
		}
	}()
	return r.Page(version).Write(f)
}
