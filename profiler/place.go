package profiler

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
)

// Place is the destination of a profile and its card's knees.
type Place struct {
	File string // the profile
	// card is the card that gets the knees. copied is true if that is a copy of a
	// shipped one that does not exist yet. Both are empty with --keep-card.
	card   string
	copied bool
}

// FindPlace finds the folder for the profile of a card. That is out or, if out is empty,
// the card's own folder, or ./profiles for a shipped card. With keepCard, the card stays
// unchanged. FindPlace fails before any measurement if files cannot be written there.
func FindPlace(card *models.Card, shipped bool, out string, keepCard bool) (p Place, err error) {
	dir := out
	switch {
	case dir != "":
	case shipped:
		dir = "profiles"
	default:
		dir = card.Dir
	}
	if dir != card.Dir {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return p, fmt.Errorf("make folder for the profile: %w", err)
		}
	}
	if err := writable(dir); err != nil {
		return p, fmt.Errorf("folder for the profile: %w; choose another with --out", err)
	}
	p.File = filepath.Join(dir, card.Name+".csv")
	if keepCard {
		return p, nil
	}
	p.card = card.File
	if p.copied = shipped; shipped {
		p.card = filepath.Join(dir, card.Name, filepath.Base(card.File))
	} else if err := writable(card.Dir); err != nil {
		return p, fmt.Errorf("card %s cannot be changed: %w; leave it unchanged with --keep-card", card.File, err)
	}
	return p, nil
}

// writable checks whether files can be created in a folder.
func writable(dir string) error {
	tmp, err := os.CreateTemp(dir, ".penstock-*")
	if err != nil {
		return err
	}
	return errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// WriteKnees prints the place of the profile and writes its knees into the card.
func (p *Place) WriteKnees(w io.Writer, card *models.Card, of profile.Profile) error {
	fmt.Fprintf(w, "profile: %s\n", p.File)
	knee, ok := of.KneeFor(card.SLO)
	if !ok {
		fmt.Fprintln(w, "card:    unchanged; a knee needs at least two shares")
		return nil
	}
	percent := func(share int) float64 {
		text := strconv.FormatFloat(of.Header.Percent(share), 'f', 1, 64)
		rounded, _ := strconv.ParseFloat(text, 64) // FormatFloat made the text
		return rounded
	}
	var knees []models.Knee
	for _, k := range of.Header.Knees {
		knees = append(knees, models.Knee{Batch: k.Batch, Percent: percent(k.Share)})
	}
	if p.card == "" {
		fmt.Fprintf(w, "card:    unchanged; its knees would be\n%s", models.KneeLines(percent(knee.Share), knees))
		return nil
	}
	if p.copied {
		if err := copyFolder(filepath.Dir(p.card), card.Dir); err != nil {
			return fmt.Errorf("copy card: %w", err)
		}
	}
	if err := models.WriteKnees(p.card, percent(knee.Share), knees); err != nil {
		return fmt.Errorf("%w\nthe profile is in %s; add these lines to the card:\n%s", err, p.File, models.KneeLines(percent(knee.Share), knees))
	}
	if p.copied {
		fmt.Fprintf(w, "card:    %s, a copy with the knees, because %s is built in; use it with `models: [%s]` in the configuration\n",
			p.card, card.Name, filepath.Dir(filepath.Dir(p.card)))
		return nil
	}
	fmt.Fprintf(w, "card:    %s, knee_percent %v\n", p.card, percent(knee.Share))
	return nil
}

func copyFolder(to, from string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
