package profiler

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
)

// measured returns a profile with knees at 60 and 70 %.
func measured() profile.Profile {
	p := profile.Profile{Header: profile.Header{Version: profile.Version, Model: "fashion", GPU: "a formula", Unit: profile.Percent, Total: 100, PersistentMiB: 1.5, EphemeralMiB: 0.5}}
	for share := 10; share <= 100; share += 10 {
		p.Points = append(p.Points,
			profile.Point{Share: share, Batch: 1, Processes: 1, Throughput: float64(min(share, 70)), Latency: time.Millisecond},
			profile.Point{Share: share, Batch: 8, Processes: 1, Throughput: 2 * float64(min(share, 80)), Latency: 4 * time.Millisecond})
	}
	p.Header.Knees = profile.Knees(p.Points)
	return p
}

func TestWriteKneesShipped(t *testing.T) {
	find := zoo.Registry{Cache: t.TempDir()}
	card, err := find.Find("fashion")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(card.File)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "profiles")
	place, err := FindPlace(card, find.Shipped(card), out, false)
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	if err := place.WriteKnees(&output, card, measured()); err != nil {
		t.Fatal(err)
	}
	copied, err := (zoo.Registry{Dirs: []string{out}, Cache: find.Cache}).Find("fashion")
	if err != nil {
		t.Fatal(err)
	}
	// The objective is 10 ms: batches of 8 fit into half of it.
	if copied.KneePercent != 70 || len(copied.Knees) != 2 || copied.Knees[0] != (models.Knee{Batch: 1, Percent: 60}) {
		t.Errorf("the copy's knees are %v and %v", copied.KneePercent, copied.Knees)
	}
	if after, err := os.ReadFile(card.File); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the shipped card changed, %v", err)
	}
	if want := "is built in; use it with `models: [" + out + "]`"; !strings.Contains(output.String(), want) {
		t.Errorf("said\n%s\nwant %s", &output, want)
	}
}

func TestWriteKneesKeepsCard(t *testing.T) {
	out := t.TempDir()
	card, err := (zoo.Registry{Cache: t.TempDir()}).Find("fashion")
	if err != nil {
		t.Fatal(err)
	}
	place, err := FindPlace(card, true, out, true)
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	if err := place.WriteKnees(&output, card, measured()); err != nil || !strings.Contains(output.String(), "knee_percent: 70\nknees: [{batch: 1, percent: 60}, {batch: 8, percent: 70}]\n") {
		t.Errorf("said\n%s\n%v", &output, err)
	}
	if _, err := os.Stat(filepath.Join(out, "fashion")); !os.IsNotExist(err) {
		t.Errorf("a copy was made: %v", err)
	}
}
