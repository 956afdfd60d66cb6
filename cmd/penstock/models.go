package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
)

// registry is where a configuration's models are found: its folders, then the
// models that come with Penstock.
func registry(c configs.Config) zoo.Registry {
	return zoo.Registry{Dirs: c.Models, Cache: c.RuntimeDir}
}

func modelsCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:     "models",
		Short:   "List the models that a function may run",
		Example: `  penstock models --config node.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := flags.load("models")
			if err != nil {
				return err
			}
			var cards []*models.Card
			var problems []error
			for _, dir := range c.Models {
				found, err := models.ReadDir(dir)
				cards, problems = append(cards, found...), append(problems, err)
			}
			for _, name := range zoo.Names() {
				card, err := registry(c).Find(name)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				cards = append(cards, card)
			}
			t := table.NewWriter()
			t.SetStyle(table.StyleLight)
			t.SetOutputMirror(cmd.OutOrStdout())
			t.AppendHeader(table.Row{"model", "version", "framework", "request", "batches", "slo", "knee", "decoder", "card"})
			for _, card := range cards {
				knee := "-"
				if card.KneePercent > 0 {
					knee = fmt.Sprintf("%.0f %%", card.KneePercent)
				}
				t.AppendRow(table.Row{card.Name, card.Version, cmp.Or(card.Framework, strings.Join(card.Command, " ")),
					fmt.Sprintf("%d B", card.Input.WireBytes()), fmt.Sprint(card.Batches), card.SLO, knee, card.Decoder.Name, card.Dir})
			}
			t.Render()
			return errors.Join(problems...)
		},
	}
	flags.register(cmd)
	return cmd
}
