// Command prose checks that comments and documentation are easy to read.
//
//	go run ./test/prose            check each folder's number of hard places against ceilings.txt
//	go run ./test/prose PATH...    list the hard places of files and folders
//	go run ./test/prose -lower     lower the ceilings to what the tree has now
//
// A hard place is a sentence that breaks a rule of rules.txt. Ceilings only go down: -lower
// never raises one. A folder without a ceiling may have newFolderRate per 1,000 words.
package main

import (
	"cmp"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed rules.txt
var rulesFile string

const ceilingsPath = "test/prose/ceilings.txt"

// newFolderRate is how many hard places per 1,000 words a folder without a ceiling may have.
const newFolderRate = 3.5

// place is a sentence that breaks a rule.
type place struct {
	sentence
	rule *rule
}

func (p place) String() string {
	return fmt.Sprintf("%s:%d: %s: %s\n\t%s", p.path, p.line, p.rule.name, p.rule.advice, p.text)
}

// folder is the prose of the files directly in a folder.
type folder struct {
	words  int
	places []place
}

func main() {
	lower := flag.Bool("lower", false, "lower the ceilings to what the tree has now")
	flag.Parse()

	if err := run(os.Stdout, *lower, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, lower bool, paths []string) error {
	rules, err := parseRules(rulesFile)
	if err != nil {
		return err
	}
	folders, err := readTree(rules)
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		return list(out, folders, paths)
	}

	text, err := os.ReadFile(ceilingsPath)
	if err != nil {
		return err
	}
	ceilings, err := parseCeilings(string(text))
	if err != nil {
		return err
	}
	if lower {
		return os.WriteFile(ceilingsPath, []byte(formatCeilings(lowered(ceilings, folders))), 0o644)
	}
	return check(out, ceilings, folders)
}

// readTree reads all files that git knows or would add, and finds their hard places.
func readTree(rules []*rule) (map[string]folder, error) {
	listed, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("list files with git ls-files: %w", err)
	}
	folders := map[string]folder{}
	for file := range strings.SplitSeq(strings.Trim(string(listed), "\x00"), "\x00") {
		read := reader(file)
		if read == nil {
			continue
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, but not yet in the index
		}
		if err != nil {
			return nil, err
		}
		f := folders[path.Dir(file)]
		for _, s := range sentences(file, read(string(text))) {
			f.words += s.words
			for _, r := range rules {
				if r.breaks(s) {
					f.places = append(f.places, place{s, r})
				}
			}
		}
		folders[path.Dir(file)] = f
	}
	return folders, nil
}

// list prints the hard places in files, and in folders and everything below them.
func list(out io.Writer, folders map[string]folder, paths []string) error {
	words, places := 0, 0
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		f := folders[name]
		if contains(paths, name) {
			words += f.words
		}
		for _, p := range f.places {
			if contains(paths, p.path) {
				places++
				fmt.Fprintln(out, p)
			}
		}
	}
	fmt.Fprintf(out, "%d hard places", places)
	if words > 0 {
		fmt.Fprintf(out, " in %d words, %.1f per 1,000", words, 1000*float64(places)/float64(words))
	}
	fmt.Fprintln(out)
	return nil
}

// contains reports whether one of paths is name or a folder above it.
func contains(paths []string, name string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		p = path.Clean(p)
		return p == "." || p == name || strings.HasPrefix(name, p+"/")
	})
}

// check fails if a folder has more hard places than its ceiling.
func check(out io.Writer, ceilings map[string]int, folders map[string]folder) error {
	above := 0
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		f := folders[name]
		ceiling := ceilingOf(ceilings, name, f.words)
		if len(f.places) <= ceiling {
			continue
		}
		above++
		for _, p := range f.places {
			fmt.Fprintln(out, p)
		}
		fmt.Fprintf(out, "%s: %d hard places, ceiling %d\n\n", name, len(f.places), ceiling)
	}
	if above > 0 {
		return fmt.Errorf("%d folders have more hard places than %s allows; rewrite the sentences above", above, ceilingsPath)
	}
	return nil
}

func ceilingOf(ceilings map[string]int, name string, words int) int {
	if ceiling, ok := ceilings[name]; ok {
		return ceiling
	}
	return int(newFolderRate * float64(words) / 1000)
}

// lowered returns a ceiling for each folder: what it has now, but never more than before.
func lowered(ceilings map[string]int, folders map[string]folder) map[string]int {
	now := map[string]int{}
	for name, f := range folders {
		if f.words > 0 {
			now[name] = min(len(f.places), ceilingOf(ceilings, name, f.words))
		}
	}
	return now
}

// parseCeilings reads lines of a folder and its ceiling. A line that begins with # is a comment.
func parseCeilings(text string) (map[string]int, error) {
	ceilings := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, number, ok := strings.Cut(line, " ")
		ceiling, err := strconv.Atoi(strings.TrimSpace(number))
		if !ok || err != nil || ceiling < 0 {
			return nil, fmt.Errorf("%s:%d: %q is not a folder and a number", ceilingsPath, i+1, line)
		}
		ceilings[name] = ceiling
	}
	return ceilings, nil
}

func formatCeilings(ceilings map[string]int) string {
	var b strings.Builder
	b.WriteString("# How many hard places each folder may have. `go run ./test/prose -lower` writes this file.\n")
	names := slices.SortedFunc(maps.Keys(ceilings), func(a, b string) int {
		return cmp.Or(cmp.Compare(ceilings[b], ceilings[a]), cmp.Compare(a, b))
	})
	for _, name := range names {
		fmt.Fprintf(&b, "%s %d\n", name, ceilings[name])
	}
	return b.String()
}
