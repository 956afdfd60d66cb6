package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/check"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
)

func modelsCommand() *cobra.Command {
	var flags nodeFlags
	var profiles string
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the models that a function may run",
		Long: `Lists the cards of the configuration's folders and the built-in ones. The memory is
from the profile next to the card, or in the folder of --profiles: what a process holds, plus
what its largest batch needs.`,
		Example: `  penstock models
  penstock models --profiles profiles`,
		Args: noVerb,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := flags.load()
			if err != nil {
				return err
			}
			var cards []*models.Card
			var problems []error
			for _, dir := range c.ModelFolders() {
				found, err := models.ReadDir(dir)
				cards, problems = append(cards, found...), append(problems, err)
			}
			for _, name := range zoo.Names() {
				card, err := check.Registry(c).Find(name)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				cards = append(cards, card)
			}
			t := table.NewWriter()
			t.SetStyle(table.StyleLight)
			t.SetOutputMirror(cmd.OutOrStdout())
			t.AppendHeader(table.Row{"model", "version", "framework", "request", "batches", "slo", "knee", "memory", "decoder", "card"})
			elsewhere, err := profilesIn(profiles)
			problems = append(problems, err)
			for _, card := range cards {
				measured, err := profileOf(card, elsewhere)
				problems = append(problems, err)
				t.AppendRow(table.Row{card.Name, card.Version, cmp.Or(card.Framework, strings.Join(card.Command, " ")),
					fmt.Sprintf("%d B", card.Input.WireBytes()), batchesText(card), card.SLO, kneeText(card, measured),
					memoryText(measured), card.Decoder.Name, card.Dir})
			}
			t.Render()
			return errors.Join(problems...)
		},
	}
	cmd.AddCommand(inspectCommand())
	flags.register(cmd)
	cmd.Flags().StringVar(&profiles, "profiles", "", "folder of profiles, for models without a profile next to their card")
	return cmd
}

// profilesIn reads a folder of profiles; without a folder there are none.
func profilesIn(dir string) (map[string]profile.Profile, error) {
	if dir == "" {
		return nil, nil
	}
	return profile.ReadFolder(os.DirFS(dir), ".")
}

// profileOf is the profile next to a card, else the one in elsewhere, else
// none.
func profileOf(card *models.Card, elsewhere map[string]profile.Profile) (profile.Profile, error) {
	measured, err := profile.ReadFile(filepath.Join(card.Dir, card.Name+".csv"))
	if errors.Is(err, fs.ErrNotExist) {
		return elsewhere[card.Name], nil
	}
	return measured, err
}

// batchesText has the batch sizes.
func batchesText(card *models.Card) string {
	if card.AutoBatches {
		return "auto"
	}
	return fmt.Sprint(card.Batches)
}

// kneeText is the card's knee, else that of its profile for its objective.
func kneeText(card *models.Card, measured profile.Profile) string {
	percent := card.KneePercent
	if percent == 0 {
		knee, ok := measured.KneeFor(card.SLO)
		if !ok {
			return "-"
		}
		percent = measured.Header.Percent(knee.Share)
	}
	return fmt.Sprintf("%.0f %%", percent)
}

// memoryText is the memory that a process needs for its largest batch.
func memoryText(measured profile.Profile) string {
	if h := measured.Header; h.PersistentMiB > 0 {
		return fmt.Sprintf("%.1f + %.1f MiB", h.PersistentMiB, h.EphemeralMiB)
	}
	return "-"
}
