package render

import (
	"bufio"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/penstock/penstock/plan"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("plan").Parse(pageText))

// page is the data of page.html. Names from input files are untrusted. They are
// plain strings here, and html/template escapes them for their context.
type page struct {
	Title    string
	Summary  []line
	Notes    []string
	Boards   []pageBoard
	Sections []pageSection
}

type pageBoard struct {
	Number, Model, Used string
	Columns             template.CSS // built from numbers only
	Ruler               []int        // the slots' numbers, if a new GPU model begins here
	Cells               []pageCell
}

type pageCell struct {
	Column, Slots        int // CSS counts columns from 1
	Lost                 bool
	Service, Point, Load string // Service is empty for a gap
	Title                string
	Hue                  int
	LoadPercent          int
}

type pageSection struct {
	Section
	Numeric []bool
	Hues    []int // of the services, if the rows are services; else none
}

// HTML writes a plan as one page that loads no other file: the summary, each GPU
// as its slots, the services, and further sections. A service has the same colour
// everywhere. Adjacent GPUs that look the same are drawn once.
func HTML(w io.Writer, p *plan.Plan, more ...Section) error {
	list, err := boards(p)
	if err != nil {
		return err
	}
	pg := page{Title: fmt.Sprintf("Plan: %d services on %d GPUs", len(p.Services), p.GPUs), Summary: summary(p, list), Notes: p.Notes}
	hue := map[string]int{}
	var hues []int
	for i, s := range p.Services {
		// Steps of the golden angle give neighbours different hues, for any number
		// of services.
		hues = append(hues, i*137%360)
		hue[s.Service] = hues[i]
	}
	of := services(p, list)
	pg.Sections = []pageSection{{Section: of, Numeric: of.numeric(), Hues: hues}}
	for _, s := range more {
		pg.Sections = append(pg.Sections, pageSection{Section: s, Numeric: s.numeric()})
	}
	for i, b := range list {
		shown := pageBoard{Number: b.number(), Model: b.gpu.Name, Used: b.used(), Columns: columns(b.gpu)}
		if !b.gpu.Percent && (i == 0 || list[i-1].gpu.Name != b.gpu.Name) {
			for slot := range b.gpu.Slots {
				shown.Ruler = append(shown.Ruler, slot)
			}
		}
		for _, c := range b.cells {
			shown.Cells = append(shown.Cells, pageCellOf(b, c, hue))
		}
		pg.Boards = append(pg.Boards, shown)
	}
	out := bufio.NewWriter(w)
	err = pageTemplate.Execute(out, pg)
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write HTML: %w", err)
	}
	return nil
}

func pageCellOf(b board, c cell, hue map[string]int) pageCell {
	shown := pageCell{Column: c.slot + 1, Slots: c.slots, Lost: c.lost}
	if s := c.segment; s != nil {
		shown.Service, shown.Point = s.Service, b.point(c)
		shown.Load = formatDecimal(s.LoadRPS) + " of " + formatDecimal(s.ThroughputRPS) + "/s"
		place := fmt.Sprintf("%s in slot %d, %d SMs", sizeName(b.gpu, c.size), c.slot, c.size.SMs)
		if b.gpu.Name == cpu {
			place = sizeName(b.gpu, c.size) + " of the CPU"
		}
		shown.Title = fmt.Sprintf("%s (%s): %s; batch %d, processes %d; %s ms a batch; load %s", s.Service, s.Model, place, s.Batch, s.Processes, formatDecimal(s.LatencyMS), shown.Load)
		shown.Hue = hue[s.Service]
		shown.LoadPercent = int(100*s.LoadRPS/s.ThroughputRPS + 0.5)
	}
	return shown
}

// columns returns a GPU's slots as a CSS grid. A slot in which no segment can
// begin is narrow.
func columns(g plan.GPU) template.CSS {
	list := make([]string, g.Slots)
	for slot := range list {
		list[slot] = "1fr"
		if !g.Sizes[0].MayStart(slot) {
			list[slot] = ".2fr"
		}
	}
	return template.CSS(strings.Join(list, " "))
}
