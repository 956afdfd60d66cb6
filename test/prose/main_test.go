package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// has returns a folder with as many hard places, in a number of words.
func has(places, words int) folder {
	f := folder{words: words}
	for i := range places {
		f.places = append(f.places, place{sentence{path: "a.go", line: i + 1, text: "Nobody knows."}, &rule{name: "a rule", advice: "rewrite"}})
	}
	return f
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name     string
		ceilings map[string]int
		folder   folder
		fails    bool
	}{
		{name: "at its ceiling", ceilings: map[string]int{"a": 2}, folder: has(2, 10)},
		{name: "below its ceiling", ceilings: map[string]int{"a": 2}, folder: has(1, 10)},
		{name: "above its ceiling", ceilings: map[string]int{"a": 2}, folder: has(3, 10_000), fails: true},
		{name: "new and easy to read", folder: has(3, 1000)},
		{name: "new and hard to read", folder: has(4, 1000), fails: true},
		{name: "new and small", folder: has(1, 100), fails: true},
		{name: "gone", ceilings: map[string]int{"a": 0, "b": 1}, folder: has(0, 10)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			err := check(&out, test.ceilings, map[string]folder{"a": test.folder})
			if (err != nil) != test.fails {
				t.Errorf("error %v, want one: %v", err, test.fails)
			}
			if test.fails && !strings.Contains(out.String(), "a.go:1: a rule: rewrite\n\tNobody knows.\n") {
				t.Errorf("the output has no sentence, rule or advice:\n%s", out.String())
			}
		})
	}
}

func TestLowered(t *testing.T) {
	folders := map[string]folder{
		"lower": has(1, 1000),
		"same":  has(2, 1000),
		"above": has(3, 1000),
		"new":   has(9, 1000),
		"empty": has(0, 0),
	}
	got := lowered(map[string]int{"lower": 2, "same": 2, "above": 2, "gone": 2}, folders)
	want := map[string]int{"lower": 1, "same": 2, "above": 2, "new": 3}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	read, err := parseCeilings(formatCeilings(want))
	if err != nil || !maps.Equal(read, want) {
		t.Errorf("written and read again: %v, %v, want %v", read, err, want)
	}
}

func TestParseCeilings(t *testing.T) {
	for _, line := range []string{"a", "a b", "a -1", "a 1.5"} {
		if _, err := parseCeilings(line); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", line)) {
			t.Errorf("%q: error %v, want one that quotes the line", line, err)
		}
	}
}

func TestContains(t *testing.T) {
	for name, want := range map[string]bool{"a/b": true, "a/b/c.go": true, "a/bc": false, "a": false} {
		if contains([]string{"a/b/"}, name) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
	if !contains([]string{"."}, "a") {
		t.Error(". does not contain a")
	}
}
