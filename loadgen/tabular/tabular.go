// Package tabular prints rows for people within the width of a terminal.
package tabular

import (
	"cmp"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// Width is the number of columns of a terminal, 0 if f is not a terminal.
func Width(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// WidthOf returns a function that returns the current number of columns, nil if f is not a terminal.
func WidthOf(f *os.File) func() int {
	if Width(f) == 0 {
		return nil
	}
	return func() int { return cmp.Or(Width(f), defaultWidth) }
}

// defaultWidth is the width for an output that is not a terminal.
const defaultWidth = 80

// minCell is the narrowest column that a long cell is wrapped to.
const minCell = 8

// Column is a column's header and alignment.
type Column struct {
	Name  string
	Left  bool // numbers are aligned to the right
	Count bool // for RenderOne: the column is left out if each cell is "0"; else it is always shown
}

// Render draws rows as one table if it fits in width, else as several. Columns are
// in the order of their importance: the first table has as many as fit. The first
// column names the row and is in each table. A width of 0 is defaultWidth. If two
// columns alone are too wide, Render wraps long text. Each row has one cell per
// column.
func Render(width int, columns []Column, rows [][]string) string {
	var tables []string
	for from := 1; from < len(columns) || from == 1; {
		table, to := render(width, columns, rows, from, from+1)
		tables = append(tables, table)
		from = max(to, 2)
	}
	return strings.Join(tables, "\n")
}

// RenderOne is Render with one table. It leaves out Count columns that have only zeros, and columns
// behind the last Count column that do not fit. The others are shown even if they do not fit, because
// the counts of a row add up.
func RenderOne(width int, columns []Column, rows [][]string) string {
	zeros := func(i int) bool {
		return columns[i].Count && !slices.ContainsFunc(rows, func(row []string) bool { return row[i] != "0" })
	}
	var kept []Column
	shown := 0 // so many columns are shown in any case
	cells := make([][]string, len(rows))
	for i := range columns {
		if zeros(i) {
			continue
		}
		kept = append(kept, columns[i])
		if columns[i].Count {
			shown = len(kept)
		}
		for k, row := range rows {
			cells[k] = append(cells[k], row[i])
		}
	}
	table, _ := render(width, kept, cells, 1, shown)
	return table
}

// render draws a table of the first column, the columns from from to shown, and as many others as fit.
// to is the column after them.
func render(width int, columns []Column, rows [][]string, from, shown int) (table string, to int) {
	if width <= 0 {
		width = defaultWidth
	}
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = text.LongestLineLen(c.Name)
		for _, row := range rows {
			widths[i] = max(widths[i], text.LongestLineLen(row[i]))
		}
	}

	// A cell has a space on both sides and a line on its left. One more line ends the row.
	used, to := 1+widths[0]+3, from
	for to < len(columns) && (to < shown || used+widths[to]+3 <= width) {
		used += widths[to] + 3
		to++
	}
	return draw(columns, rows, widths, from, to, used-width), to
}

// draw renders the first column and the columns from up to to. excess is how much
// their width exceeds the terminal's, if it is positive.
func draw(columns []Column, rows [][]string, widths []int, from, to, excess int) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.Style().Format.Header = text.FormatDefault

	shown := []int{0}
	for i := from; i < to; i++ {
		shown = append(shown, i)
	}
	widest := shown[0]
	for _, i := range shown {
		if columns[i].Left && widths[i] > widths[widest] { // numbers are never wrapped
			widest = i
		}
	}

	var header table.Row
	var configs []table.ColumnConfig
	for at, i := range shown {
		header = append(header, columns[i].Name)
		c := table.ColumnConfig{Number: at + 1}
		if !columns[i].Left {
			c.Align, c.AlignHeader = text.AlignRight, text.AlignRight
		}
		if excess > 0 && i == widest {
			c.WidthMax, c.WidthMaxEnforcer = max(widths[i]-excess, minCell), text.WrapSoft
		}
		configs = append(configs, c)
	}
	t.AppendHeader(header)
	t.SetColumnConfigs(configs)
	for _, row := range rows {
		var cells table.Row
		for _, i := range shown {
			cells = append(cells, row[i])
		}
		t.AppendRow(cells)
	}
	return t.Render()
}
