package main

import (
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"

	"github.com/penstock/penstock/bench"
)

// weightsReport is the name of what `penstock bench weights` wrote.
const weightsReport = "weights"

// paperTable1 is the paper's: standalone (SA) and with parameters shared (PS), load time in
// ms, GPU memory in MB, instances on 16 GB.
var paperTable1 = map[string]struct{ loadSA, loadPS, memorySA, memoryPS, fitSA, fitPS float64 }{
	"alexnet":   {781, 97, 1037, 795, 15, 18},
	"resnet50":  {430, 89, 917, 805, 17, 18},
	"resnet152": {747, 103, 1101, 805, 14, 18},
	"vgg19":     {1561, 107, 1389, 825, 11, 17},
}

// What an instance costs: until it stands by, until it serves (milliseconds), and of the
// GPU's memory (MB).
func loads(w *bench.WeightsInstance) float64  { return w.LoadMillis }
func starts(w *bench.WeightsInstance) float64 { return w.LoadMillis + w.WakeMillis }
func memory(w *bench.WeightsInstance) float64 { return float64(w.Bytes) / 1e6 }

// ofRuns is the spread over an instance's runs.
func ofRuns(w *bench.WeightsInstance, by func(*bench.WeightsInstance) float64) spread {
	if len(w.Runs) == 0 {
		return spreadOf([]float64{by(w)})
	}
	var all []float64
	for i := range w.Runs {
		all = append(all, by(&w.Runs[i]))
	}
	return spreadOf(all)
}

// drawWeights shows what an instance with all batch sizes costs, with weights of its own
// and with shared ones.
func drawWeights(dir string) error {
	r, err := read[bench.Weights](dir, weightsReport)
	if err != nil {
		return err
	}
	colours := []color.Color{light, green}
	s := sheet{title: fmt.Sprintf("Shared weights, instances with all batch sizes (%s)", r.Device), high: 7 * vg.Centimeter, rows: [][]*plot.Plot{nil},
		legend: []entry{{"weights of its own", light, false}, {"shared weights", green, false}}}
	var groups []string
	for _, m := range r.Models {
		groups = append(groups, m.Model)
	}
	for _, kind := range []struct {
		title, unit string
		by          func(*bench.WeightsCase) spread
	}{
		{"Load", "ms", func(c *bench.WeightsCase) spread { return ofRuns(&c.Ladder, loads) }},
		{"Load and wake", "ms", func(c *bench.WeightsCase) spread { return ofRuns(&c.Ladder, starts) }},
		{"GPU memory of an instance", "MB", func(c *bench.WeightsCase) spread { return ofRuns(&c.Ladder, memory) }},
		{fmt.Sprintf("Instances in %.0f GiB", float64(r.BudgetBytes)/(1<<30)), "", func(c *bench.WeightsCase) spread { return spreadOf([]float64{float64(c.Fit)}) }},
	} {
		p := small(kind.title, "", kind.unit)
		values := make([][]spread, 2)
		most := 1.0
		for i := range r.Models {
			for k, c := range []*bench.WeightsCase{&r.Models[i].Private, &r.Models[i].Shared} {
				v := kind.by(c)
				values[k] = append(values[k], v)
				most = max(most, v.most)
			}
		}
		if err := spreadBars(p, 0, groups, colours, values); err != nil {
			return err
		}
		p.Y.Min, p.Y.Max = 0, most*1.08
		s.rows[0] = append(s.rows[0], p)
	}
	return s.save(dir, weightsReport)
}

// weightsTable is Table 1, the paper's beside ours.
func weightsTable(dir string) (string, error) {
	r, err := read[bench.Weights](dir, weightsReport)
	if err != nil {
		return "", err
	}
	pair := func(own, shared float64, write func(float64) string) string {
		return fmt.Sprintf("%s → %s (%s×)", write(own), write(shared), short(own/shared))
	}
	times := func(m *bench.WeightsModel, by func(*bench.WeightsInstance) float64) float64 {
		return ofRuns(&m.Private.Ladder, by).median / ofRuns(&m.Shared.Ladder, by).median
	}
	of := func(m *bench.WeightsModel, by func(*bench.WeightsInstance) float64) string {
		own, shared := ofRuns(&m.Private.Ladder, by), ofRuns(&m.Shared.Ladder, by)
		return fmt.Sprintf("%s → %s (%s×)", own.text(number, ""), shared.text(number, ""), short(times(m, by)))
	}
	fit := func(own, shared float64) string {
		if own == 0 {
			return "–"
		}
		return fmt.Sprintf("%.0f → %.0f (%+.0f %%)", own, shared, 100*(shared/own-1))
	}
	list := [][]string{{"model", "paper: load, ms", "memory, MB", "instances, 16 GB", "here: load, ms", "load and wake, ms", "memory, MB", "memory with one batch size, MB", "weights, MB once", fmt.Sprintf("instances, %.0f GiB", float64(r.BudgetBytes)/(1<<30))}}
	megabytes := func(b int64) float64 { return float64(b) / 1e6 }
	var first []string
	var faster, sooner, more []float64
	for i := range r.Models {
		m := &r.Models[i]
		faster = append(faster, times(m, loads))
		sooner = append(sooner, times(m, starts))
		if m.Private.Fit > 0 {
			more = append(more, 100*(float64(m.Shared.Fit)/float64(m.Private.Fit)-1))
		}
		row := []string{m.Model, "", "", ""}
		if p, ok := paperTable1[m.Model]; ok {
			row = []string{m.Model, pair(p.loadSA, p.loadPS, number), pair(p.memorySA, p.memoryPS, number), fit(p.fitSA, p.fitPS)}
		}
		list = append(list, append(row,
			of(m, loads), of(m, starts), of(m, memory), pair(memory(&m.Private.One), memory(&m.Shared.One), number),
			number(megabytes(m.WeightsBytes)), fit(float64(m.Private.Fit), float64(m.Shared.Fit))))
		first = append(first, fmt.Sprintf("%s %s and %s ms", m.Model, number(m.Prepared.LoadMillis+m.Prepared.WakeMillis), number(m.Uploaded.WakeMillis)))
	}
	if len(list) == 1 {
		return "", errors.New("the report has no models")
	}
	runs := fmt.Sprintf("Medians of %d runs on %s (least–most), instances with all batch sizes, every process a client of MPS. \"Load\" is from a process's start to a shadow that has the model "+
		"and has not touched the GPU, \"wake\" from there to every batch size linked, checked and configured; a context alone takes %s ms of it.", r.Runs, r.Device, number(r.Models[0].Shared.One.ContextMillis))
	said := fmt.Sprintf("\n- An instance loads %s to %s times as fast; the paper's does 5 to 15 times (8 to 10, it says). With waking, which the paper leaves out, it is %s to %s times.\n",
		short(slices.Min(faster)), short(slices.Max(faster)), short(slices.Min(sooner)), short(slices.Max(sooner)))
	if len(more) > 0 {
		said += fmt.Sprintf("- %+.0f to %+.0f %% instances fit; the paper has 5 to 54 %% more.\n", slices.Min(more), slices.Max(more))
	}
	return runs + "\n\n" + rows(list...) + said + "\nThe very first instance, for which the model is prepared (start to serving), and the first on a device, for which the weights are put there (wake): " + strings.Join(first, "; ") + ".\n", nil
}

// weightsMachine is the report's row in the table of machines; none where there is no
// report.
func weightsMachine(dir string) ([]string, error) {
	r, err := read[bench.Weights](dir, weightsReport)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return machineRow(weightsReport, "Table 1", r.Device, fmt.Sprintf("%d runs of each", r.Runs), r.Machine), nil
}
