// Package pages tests the documentation. Each listing in docs/models.md and docs/libml names the file that it
// is copied from, and links lead to files and headings. Other tests build and run the files (test/e2e).
package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/models/zoo"
)

const root = "../../"

// added matches a command that adds a function to a node.
var added = regexp.MustCompile(`bin/penstock if add (\S+) --model (\S+) --port ([0-9]+)`)

// A node can have the functions of all pages and examples at the same time.
func TestExamplesDiffer(t *testing.T) {
	names, ports, n := map[string]string{}, map[string]string{}, 0
	var files []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/libml/*.md", "examples/*/*.*"} {
		found, err := filepath.Glob(root + pattern)
		must.OK(t, err)
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.OK(t, err)
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

// TestModelsDiffer checks the names of the examples' cards. "penstock if list" and folders of cards
// tell models apart by name. Each example's name must therefore differ from those of the other
// examples and of the shipped models. A page must add each model under its own name.
func TestModelsDiffer(t *testing.T) {
	paths, err := filepath.Glob(root + "examples/*/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no example has a card: %v", err)
	}
	cards := map[string]string{}
	for _, name := range zoo.Names() {
		cards[name] = "the shipped " + name
	}
	names := map[string]string{}
	for _, path := range paths {
		name, file := nameOf(t, path), strings.TrimPrefix(path, root)
		if other, taken := cards[name]; taken {
			t.Errorf("%s: the name %s is that of %s", file, name, other)
		}
		cards[name], names[file] = file, name
	}
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/libml/*.md", "examples/*/*.*"} {
		files, err := filepath.Glob(root + pattern)
		must.OK(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must.OK(t, err)
			for _, found := range added.FindAllStringSubmatch(string(text), -1) {
				if function, card := found[1], found[2]; names[card] != function {
					t.Errorf("%s: adds %s of %s, which is called %s", file, function, card, names[card])
				}
			}
		}
	}
}

// nameOf returns the name of a card. The file of its model need not exist.
func nameOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.OK(t, err)
	doc, err := document.Parse(path, text)
	must.OK(t, err)
	return doc.Root().Peek("name")
}

// listing is a fenced block of a page.
type listing struct {
	line     int
	language string
	file     string // from the root of the tree
	text     string
}

// listings returns the fenced blocks that name a language: "```c examples/c/fashion.c". open is a
// block without an end.
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

func TestListings(t *testing.T) {
	pages, err := filepath.Glob(root + "docs/libml/*.md")
	must.OK(t, err)
	for _, page := range append(pages, root+"docs/models.md") {
		text, err := os.ReadFile(page)
		must.OK(t, err)
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
