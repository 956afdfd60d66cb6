package tabular

import (
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
)

var columns = []Column{{Name: "function", Left: true}, {Name: "p99 ms"}, {Name: "state", Left: true}, {Name: "model", Left: true}}

func row(name string) []string { return []string{name, "12.31", "serves, shadow ready", "face v1"} }

func TestRender(t *testing.T) {
	long := strings.Repeat("long-name-", 12)
	for _, c := range []struct {
		name   string
		width  int
		rows   [][]string
		tables int
	}{
		{"not a terminal", 0, [][]string{row("face")}, 1},
		{"wide terminal", 200, [][]string{row("face"), row("fashion")}, 1},
		{"exact width", 54, [][]string{row("face")}, 1},
		{"one column less", 53, [][]string{row("face")}, 2},
		{"narrow terminal", 24, [][]string{row("face")}, 3},
		{"long name", 80, [][]string{row(long)}, 3},
		{"no rows", 80, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Render(c.width, columns, c.rows)
			if n := strings.Count(got, "╭"); n != c.tables {
				t.Errorf("%d tables, want %d", n, c.tables)
			}
			width := c.width
			if width == 0 {
				width = defaultWidth
			}
			if n := text.LongestLineLen(got); n > width {
				t.Errorf("%d columns wide, want at most %d", n, width)
			}
			for _, r := range c.rows {
				for _, cell := range r[1:] {
					if c.width == 24 {
						cell, _, _ = strings.Cut(cell, ",") // the rest is on the next line
					}
					if !strings.Contains(got, cell) {
						t.Errorf("cell %q is missing", cell)
					}
				}
			}
			if len(c.rows) > 0 && strings.Count(got, "long-name-") < strings.Count(c.rows[0][0], "long-name-") {
				t.Error("the name is cut")
			}
			if t.Failed() {
				t.Logf("\n%s", got)
			}
		})
	}
}

func TestRenderOrder(t *testing.T) {
	got := Render(40, columns, [][]string{row("face")})
	first, second, _ := strings.Cut(got, "╰")
	if !strings.Contains(first, "p99 ms") || strings.Contains(first, "model") || !strings.Contains(second, "model") {
		t.Errorf("the first columns are not in the first table\n%s", got)
	}
	if !strings.Contains(second, "function") {
		t.Errorf("the second table does not name its rows\n%s", got)
	}
}

func TestRenderOne(t *testing.T) {
	columns := []Column{{Name: "function", Left: true}, {Name: "late", Count: true}, {Name: "busy", Count: true}, {Name: "lost"}, {Name: "unanswered", Count: true}, {Name: "p99 ms"}}
	for _, c := range []struct {
		name  string
		width int
		rows  [][]string
		want  string // the header
	}{
		{"zeros", 80, [][]string{{"face", "0", "0", "0", "0", "1.50"}, {"detect", "3", "0", "0", "0", "1.50"}}, "│ function │ late │ lost │ p99 ms │"},
		{"no room for figures", 40, [][]string{{"face", "1", "2", "0", "4", "1.50"}}, "│ function │ late │ busy │ lost │ unanswered │"},
		{"no room for counts", 20, [][]string{{"face", "1", "2", "0", "4", "1.50"}}, "│ function │ late │ busy │ lost │ unanswered │"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := RenderOne(c.width, columns, c.rows)
			if !strings.Contains(got, c.want+"\n") || strings.Count(got, "╭") != 1 {
				t.Errorf("want %s in one table:\n%s", c.want, got)
			}
		})
	}
}
