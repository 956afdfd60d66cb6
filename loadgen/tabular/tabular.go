// Package tabular prints rows for people within the width of a terminal.
package tabular

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// defaultWidth is the width for an output that is not a terminal.
const defaultWidth = 80

// minCell is the narrowest column that a long cell is wrapped to.
const minCell = 8

// Column is a column's header and alignment.
type Column struct {
	Name string
	Left bool // numbers are aligned to the right
}

// Render draws rows as one table if it fits in width, else as several. Columns are
// in the order of their importance: the first table has as many as fit. The first
// column names the row and is in each table. A width of 0 is defaultWidth. If two
// columns alone are too wide, Render wraps long cells. Each row has one cell per
// column.
func Render(width int, columns []Column, rows [][]string) string {
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

	var tables []string
	for from := 1; from < len(columns) || from == 1; {
		// A cell has a space on both sides and a line on its left. One more line
		// ends the row.
		used, to := 1+widths[0]+3, from
		for to < len(columns) && (to == from || used+widths[to]+3 <= width) {
			used += widths[to] + 3
			to++
		}
		tables = append(tables, draw(columns, rows, widths, from, to, used-width))
		from = max(to, 2)
	}
	return strings.Join(tables, "\n")
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
		if widths[i] > widths[widest] {
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
