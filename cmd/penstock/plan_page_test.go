package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/plan"
)

var update = flag.Bool("update", false, "write docs/planning.md's listings anew")

// delays match the parts of a listing that differ in each run.
var delays = regexp.MustCompile(`(?m)^(planned in +)[0-9.]+ ms$`)

// Each listing in docs/planning.md is the output of the command above it. It is the
// whole output, or, after "...", the part from the next line on. A command that
// writes to a file prints nothing.
func TestPageListings(t *testing.T) {
	page, err := filepath.Abs("../../docs/planning.md")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(filepath.Dir(page))
	text := mustRead(t, page)
	dir := t.TempDir()
	for _, name := range []string{"plan", "examples"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	listings := 0
	filled := regexp.MustCompile("(?s)```\n\\$ penstock plan .*?```\n").ReplaceAllStringFunc(text, func(block string) string {
		listings++
		body := strings.TrimSuffix(strings.TrimPrefix(block, "```\n"), "```\n")
		var commands, output strings.Builder
		rest := body
		for strings.HasPrefix(rest, "$ ") {
			command, after, _ := strings.Cut(rest, "\n")
			fmt.Fprintln(&commands, command)
			args := strings.Fields(strings.TrimPrefix(command, "$ penstock"))
			rest = after
			into := ""
			if n := len(args); n > 2 && args[n-2] == ">" {
				args, into = args[:n-2], args[n-1]
			}
			out, err := penstock(t, args...)
			if err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			if into != "" {
				if err := os.WriteFile(into, []byte(out), 0o600); err != nil {
					t.Fatal(err)
				}
				continue
			}
			output.WriteString(out)
		}
		want := output.String()
		if from, cut := strings.CutPrefix(rest, "...\n"); cut {
			title, _, _ := strings.Cut(from, "\n")
			_, after, found := strings.Cut(want, "\n"+title+"\n")
			if !found {
				t.Fatalf("%s prints no line %q", commands.String(), title)
			}
			want = "...\n" + title + "\n" + after
		}
		if delays.ReplaceAllString(want, "$1") == delays.ReplaceAllString(rest, "$1") {
			return block
		}
		if !*update {
			t.Errorf("%sprints\n%s\nthe page has (go test ./cmd/penstock -update writes it)\n%s", commands.String(), want, rest)
		}
		return "```\n" + commands.String() + want + "```\n"
	})
	if listings < 2 {
		t.Fatalf("found %d listings; the test reads the wrong page", listings)
	}
	if *update {
		if err := os.WriteFile(page, []byte(filled), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPageTriplets checks the example's services and the page's worked example for
// one of them.
func TestPageTriplets(t *testing.T) {
	text := mustRead(t, "../../docs/planning.md")
	if rows := mustRead(t, "../../examples/plan/services.csv"); !strings.Contains(text, rows) {
		t.Errorf("the page does not show the example's services:\n%s", rows)
	}
	profiles, err := readProfiles(published)
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := plan.Lookup("a100-80")
	if err != nil {
		t.Fatal(err)
	}
	people := plan.Service{Name: "people", Model: "resnet50", RateRPS: 900, SLOMS: 120}
	points, err := (&plan.Problem{GPU: gpu, Profiles: profiles}).Feasible(gpu, people)
	if err != nil {
		t.Fatal(err)
	}
	best := map[int]plan.Point{}
	for _, p := range points {
		if p.ThroughputRPS > best[p.GPCs].ThroughputRPS {
			best[p.GPCs] = p
		}
	}
	for _, size := range gpu.Sizes {
		p := best[size.GPCs]
		row := fmt.Sprintf("| %d | %d × %d | %.0f | %.0f | %.0f |", p.GPCs, p.Batch, p.Processes, p.ThroughputRPS, p.ThroughputRPS/float64(p.GPCs), p.LatencyMS)
		if !strings.Contains(text, row) {
			t.Errorf("the page does not have %s", row)
		}
	}
}
