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

// page is what page.html shows. Whatever a file of somebody else's named is a
// string here, and html/template escapes it for the place where it stands.
type page struct {
	Title    string
	Summary  []line
	Notes    []string
	Boards   []pageBoard
	Sections []pageSection
}

type pageBoard struct {
	Number, Model, Used string
	Columns             template.CSS // made of numbers alone
	Ruler               []int        // the slots' numbers, where another model of GPU begins
	Cells               []pageCell
}

type pageCell struct {
	Column, Slots        int // CSS counts columns from 1
	Lost                 bool
	Service, Point, Load string // Service is empty where there is none
	Title                string
	Hue                  int
	LoadPercent          int
}

type pageSection struct {
	Section
	Numeric []bool
	Hues    []int // of the services, where they are what the rows are; else none
}

// HTML writes a plan as one page that loads nothing: what it comes to, each GPU as
// its slots, the services, and what more there is to say. A service has one colour
// everywhere. GPUs in a row that look the same are drawn once.
func HTML(w io.Writer, p *plan.Plan, more ...Section) error {
	list, err := boards(p)
	if err != nil {
		return err
	}
	pg := page{Title: fmt.Sprintf("Plan: %d services on %d GPUs", len(p.Services), p.GPUs), Summary: summary(p, list), Notes: p.Notes}
	hue := map[string]int{}
	var hues []int
	for i, s := range p.Services {
		// Steps of the golden angle keep any number of neighbours apart.
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

// columns are a GPU's slots as a CSS grid; a slot that no segment begins at is
// narrow.
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
