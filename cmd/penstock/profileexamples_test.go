package main

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/penstock/penstock/models/zoo"
)

// A reader of `penstock profile` has only the built-in models.
func TestProfileExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/planning.md")
	if err != nil {
		t.Fatal(err)
	}
	printed := regexp.MustCompile(`(?m)^(?:\$| ) *penstock profile (\S+)`)
	for where, text := range map[string]string{"docs/planning.md": string(page), "--help": profileCommand().Example} {
		found := printed.FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s has no command", where)
		}
		for _, f := range found {
			if !slices.Contains(zoo.Names(), f[1]) {
				t.Errorf("%s profiles %s, want one of %v", where, f[1], zoo.Names())
			}
		}
	}
}
