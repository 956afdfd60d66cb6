package pages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/penstock/penstock/internal/testing/must"
)

var (
	link    = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	code    = regexp.MustCompile("`[^`\n]*`")
)

// markdown returns the paths of all pages, from the root of the tree.
func markdown(t *testing.T) []string {
	t.Helper()

	var pages []string
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(entry.Name(), ".") && path != "."
		if entry.IsDir() && (hidden || path == "bin" || path == "out") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return nil
	})
	if err != nil || len(pages) == 0 {
		t.Fatalf("find pages: %d, %v", len(pages), err)
	}
	return pages
}

// anchor returns the fragment by which GitHub links to a heading.
func anchor(title string) string {
	title = link.ReplaceAllString(title, "$1")
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case unicode.IsLetter(r), unicode.IsNumber(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

// anchors returns the fragments of a page.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()

	text, err := os.ReadFile(path)
	must.OK(t, err)
	found := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		found[anchor(h[1])] = true
	}
	return found
}

// TestLinks follows the links of all pages to files of the tree, and to their headings.
func TestLinks(t *testing.T) {
	for _, page := range markdown(t) {
		text, err := os.ReadFile(root + page)
		must.OK(t, err)
		prose := code.ReplaceAllString(fenced.ReplaceAllString(string(text), ""), "")
		for _, found := range link.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(found[2], "://") {
				continue
			}
			file, fragment, _ := strings.Cut(found[2], "#")
			target := filepath.Join(root, filepath.Dir(page), file)
			if file == "" {
				target = filepath.Join(root, page)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: no file for link %s", page, found[2])
				continue
			}
			if fragment != "" && !anchors(t, target)[fragment] {
				t.Errorf("%s: no heading for link %s", page, found[2])
			}
		}
	}
}

func TestAnchor(t *testing.T) {
	for title, want := range map[string]string{
		"On a GPU":                            "on-a-gpu",
		"What `SO_REUSEPORT` means":           "what-so_reuseport-means",
		"late":                                "late",
		"Guarantees ([tables](results/x.md))": "guarantees-tables",
	} {
		if got := anchor(title); got != want {
			t.Errorf("anchor(%q) is %q, want %q", title, got, want)
		}
	}
}
