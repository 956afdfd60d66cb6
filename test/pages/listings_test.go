// Package pages holds what docs/libml.md and the pages below it show: each listing
// names the file that it is from, and stands there, byte for byte. What stands there is
// built and run by other tests (test/e2e).
package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../"

// added is a function that a reader is told to add to a node.
var added = regexp.MustCompile(`bin/penstock if add (\S+) --model (\S+) --port ([0-9]+)`)

// One node takes the functions of all pages and examples.
func TestNoTwoExamplesAreTheSameFunction(t *testing.T) {
	names, ports, n := map[string]string{}, map[string]string{}, 0
	var files []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/libml/*.md", "examples/*/*.*"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range added.FindAllStringSubmatch(string(text), -1) {
			n++
			name, card, port := found[1], found[2], found[3]
			if _, err := os.Stat(root + card); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if other, taken := names[name]; taken && other != card {
				t.Errorf("%s: function %s is of %s, and of %s on another page", file, name, card, other)
			}
			if other, taken := ports[port]; taken && other != card {
				t.Errorf("%s: port %s is of %s, and of %s on another page", file, port, card, other)
			}
			names[name], ports[port] = card, card
		}
	}
	if n == 0 {
		t.Error("no page adds a function")
	}
}

// listing is a fenced block of a page.
type listing struct {
	line     int
	language string
	file     string // from the root of the tree
	text     string
}

// listings are the fenced blocks that name a language: "```c examples/c/fashion.c". open is
// one that nothing ends.
func listings(page string) (list []listing, open *listing) {
	for i, line := range strings.SplitAfter(page, "\n") {
		fence, fenced := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case fenced && open == nil:
			open = &listing{line: i + 1}
			open.language, open.file, _ = strings.Cut(fence, " ")
		case fenced:
			if open.language != "" {
				list = append(list, *open)
			}
			open = nil
		case open != nil:
			open.text += line
		}
	}
	return list, open
}

func TestListingsAreTheExamples(t *testing.T) {
	pages, err := filepath.Glob(root + "docs/libml/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, root+"docs/libml.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all, open := listings(string(text))
		if open != nil {
			t.Errorf("%s:%d: nothing ends this listing", page, open.line)
		}
		if len(all) == 0 {
			t.Errorf("%s has no listing", page)
		}
		for _, l := range all {
			if l.file == "" {
				t.Errorf("%s:%d: a listing in %s says not which file it is from", page, l.line, l.language)
				continue
			}
			source, err := os.ReadFile(root + l.file)
			if err != nil {
				t.Errorf("%s:%d: %v", page, l.line, err)
				continue
			}
			if l.text == "" || !strings.Contains(string(source), l.text) {
				t.Errorf("%s:%d: this does not stand in %s:\n%s", page, l.line, l.file, l.text)
			}
		}
	}
}
