package render

import (
	"io"
	"strings"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/penstock/penstock/plan"
)

// Section is an addition to a plan: sentences and a table below them. Either may
// be missing.
type Section struct {
	Title string
	Text  []string
	Head  []string
	Rows  [][]string
}

// services is the table of a plan's services.
func services(p *plan.Plan, list []board) Section {
	s := Section{Title: "Services", Head: []string{"service", "model", "rate/s", "SLO ms", "bound ms", "segments", "assigned/s", "load"}}
	label := parts(list)
	for _, a := range p.Services {
		s.Rows = append(s.Rows, []string{a.Service, a.Model, formatExact(a.RateRPS), formatExact(a.SLOMS), formatDecimal(a.LatencyBoundMS),
			label[a.Service], formatDecimal(a.AssignedRPS), formatPercent(a.RateRPS / a.AssignedRPS)})
	}
	return s
}

// numeric reports, for each column, whether all its values begin with a digit.
// Such a column is aligned right.
func (s Section) numeric() []bool {
	all := make([]bool, len(s.Head))
	for i := range s.Head {
		all[i] = len(s.Rows) > 0
		for _, r := range s.Rows {
			// "1 × 3g" is a list of segments, not a number.
			all[i] = all[i] && r[i] != "" && (r[i][0] >= '0' && r[i][0] <= '9' || r[i][0] == '-') && s.Head[i] != "segments"
		}
	}
	return all
}

// printable removes the characters that would control a terminal, such as cursor
// moves.
func printable(label string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '�'
	}, label)
}

func (s Section) write(w io.Writer) {
	if len(s.Head) == 0 {
		return
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.SetOutputMirror(w)
	row := func(cells []string) (r table.Row) {
		for _, c := range cells {
			r = append(r, printable(c))
		}
		return r
	}
	t.AppendHeader(row(s.Head))
	var columns []table.ColumnConfig
	for i, numeric := range s.numeric() {
		if numeric {
			columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignLeft})
		}
	}
	t.SetColumnConfigs(columns)
	for _, r := range s.Rows {
		t.AppendRow(row(r))
	}
	t.Render()
}
