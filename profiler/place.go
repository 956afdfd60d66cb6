package profiler

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
)

// FindPlace returns the file for the profile of a card. Its folder is out or, if out is empty,
// the card's own folder, or ./profiles for a shipped card. FindPlace fails before any
// measurement if files cannot be written there.
func FindPlace(card *models.Card, shipped bool, out string) (file string, err error) {
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
			return "", fmt.Errorf("make folder for the profile: %w", err)
		}
	}
	if err := writable(dir); err != nil {
		return "", fmt.Errorf("folder for the profile: %w; choose another with --out", err)
	}
	return filepath.Join(dir, card.Name+".csv"), nil
}

// writable checks whether files can be created in a folder.
func writable(dir string) error {
	tmp, err := os.CreateTemp(dir, ".penstock-*")
	if err != nil {
		return err
	}
	return errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// PrintKnees prints the keys with a profile's knees: those of the card or that of its functions,
// because a shipped card cannot be edited.
func PrintKnees(w io.Writer, card *models.Card, shipped bool, of profile.Profile) {
	knee, ok := of.KneeFor(card.SLO)
	if !ok {
		fmt.Fprintln(w, "knee:    not known; it needs at least two shares")
		return
	}
	percent := func(share int) string {
		return strings.TrimSuffix(strconv.FormatFloat(of.Header.Percent(share), 'f', 1, 64), ".0")
	}
	if shipped {
		fmt.Fprintf(w, "knee:    with `policy: gslice` add `share_percent: %s` to functions of %s, whose card is built in\n", percent(knee.Share), card.Name)
		return
	}
	var knees []string
	for _, k := range of.Header.Knees {
		knees = append(knees, fmt.Sprintf("{batch: %d, percent: %s}", k.Batch, percent(k.Share)))
	}
	fmt.Fprintf(w, "knee:    with `policy: gslice` functions start at it if these lines are in %s:\nknee_percent: %s\nknees: [%s]\n",
		card.File, percent(knee.Share), strings.Join(knees, ", "))
}
