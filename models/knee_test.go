package models

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var measured = []Knee{{1, 12.5}, {8, 40}}

// written writes a card's text to a file and returns the file.
func written(t *testing.T, dir, text string) string {
	t.Helper()
	file := filepath.Join(dir, "card.yaml")
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := WriteKnees(file, 40, measured); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got, err := ReadCard(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.KneePercent != 40 || !reflect.DeepEqual(got.Knees, measured) {
		t.Errorf("knees are %v and %v", got.KneePercent, got.Knees)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(after)
}

func TestWriteKnees(t *testing.T) {
	const old = "knee_percent: 30\nknees: [{batch: 1, percent: 20}, {batch: 4, percent: 30}]\n"
	const lines = "knee_percent: 40\nknees: [{batch: 1, percent: 12.5}, {batch: 8, percent: 40}]\n"
	bare := "# the shapes\n" + strings.Replace(card, old, "", 1) + "# the end\n"
	for _, c := range []struct{ name, before, after string }{
		{"both are there", card, strings.Replace(card, old, lines, 1)},
		{"none is there", bare, strings.Replace(bare, "slo: 25ms\n", "slo: 25ms\n"+lines, 1)},
		{"one is there", strings.Replace(bare, "version: 3\n", "version: 3\nknee_percent: 7\n", 1), strings.Replace(bare, "version: 3\n", "version: 3\n"+lines, 1)},
		{"with a comment", strings.Replace(card, old, "knee_percent:  30 # by hand\n", 1), strings.Replace(card, old, strings.Replace(lines, "40\n", "40 # by hand\n", 1), 1)},
		{"over several lines", strings.Replace(card, old, "knees:\n  - {batch: 1, percent: 20}\n  # four\n  - batch: 4\n    percent: 30\n# threads\n", 1),
			strings.Replace(card, old, "knees: [{batch: 1, percent: 12.5}, {batch: 8, percent: 40}]\n# threads\n", 1)},
		{"the last line", strings.Replace(strings.Replace(bare, "slo: 25ms\n", "", 1), "# the end\n", "slo: 25ms", 1),
			strings.Replace(strings.Replace(bare, "slo: 25ms\n", "", 1), "# the end\n", "slo: 25ms\n"+lines, 1)},
		{"on another system", strings.ReplaceAll(bare, "\n", "\r\n"), strings.ReplaceAll(strings.Replace(bare, "slo: 25ms\n", "slo: 25ms\n"+lines, 1), "\n", "\r\n")},
	} {
		got := written(t, folder(t), c.before)
		want := c.after
		if c.name == "over several lines" { // knee_percent was missing
			want = strings.Replace(want, "slo: 25ms\n", "slo: 25ms\nknee_percent: 40\n", 1)
		}
		if got != want {
			t.Errorf("%s: wrote\n%s\nwant\n%s", c.name, got, want)
		}
	}
}

func TestWriteKneesJSON(t *testing.T) {
	const text = `{"name": "j", "version": 1, "framework": "null", "input": {"size": [2, 2, 1],
 "wire": {"type": "u8", "layout": "hwc"}, "tensor": {"type": "u8", "layout": "hwc"}},
 "outputs": [{"name": "y", "shape": [1]}], "slo": "1s"}
`
	dir := folder(t)
	once := written(t, dir, text)
	if want := strings.Replace(text, "{", `{"knee_percent": 40, "knees": [{"batch": 1, "percent": 12.5}, {"batch": 8, "percent": 40}], `, 1); once != want {
		t.Errorf("wrote\n%s\nwant\n%s", once, want)
	}
	if twice := written(t, dir, strings.Replace(once, "12.5", "99", 1)); twice != once {
		t.Errorf("wrote\n%s\nthe second time, want\n%s", twice, once)
	}
}

func TestWriteKneesKeepsMode(t *testing.T) {
	dir := folder(t)
	written(t, dir, card)
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink("card.yaml", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteKnees(link, 50, measured); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	if info, err := os.Stat(link); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the card's mode is %v, %v; want 0640", info.Mode(), err)
	}
}

func TestWriteKneesRefused(t *testing.T) {
	dir := folder(t)
	file := filepath.Join(dir, "card.yaml")
	// The objective's value is on its own line, so the knees do not fit after its key.
	text := strings.Replace(card, "slo: 25ms\nknee_percent: 30\nknees: [{batch: 1, percent: 20}, {batch: 4, percent: 30}]\n", "slo:\n  25ms\n", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteKnees(file, 40, measured); !errors.Is(err, errCannotEdit) {
		t.Errorf("%v, want that it cannot be edited", err)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != text {
		t.Errorf("it is\n%s now, %v", after, err)
	}
}
