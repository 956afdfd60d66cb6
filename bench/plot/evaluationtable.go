package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/bench/evaluate"
)

func milli(v float64) string  { return short(v) + " ms" }
func rate(v float64) string   { return number(v) + "/s" }
func tenths(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// state says how much of a report there is.
func (e *evaluation) state() string {
	failed := 0
	var runs []float64 // of each variant on each case
	for _, c := range e.Cases {
		for _, v := range c.Variants {
			count, _ := e.failed(c.Name, v)
			failed += count
			runs = append(runs, float64(len(e.results(c.Name, v))))
		}
	}
	s := spreadOf(runs)
	text := fmt.Sprintf("%.0f runs of each", s.least)
	if s.least != s.most {
		text = fmt.Sprintf("%.0f to %.0f runs of each", s.least, s.most)
	}
	text += fmt.Sprintf(", seed %d", e.Seed)
	if left := e.Left - failed; left > 0 {
		text += fmt.Sprintf("; **%d measurements are still to be made**", left)
	}
	if failed > 0 {
		text += fmt.Sprintf("; **%d failed**", failed)
	}
	return text
}

// versions are those of Penstock that measured it. The report names the last alone.
func (e *evaluation) versions() string {
	var all []string
	for _, r := range e.Results {
		if v := cmp.Or(r.Penstock, e.Machine.Penstock); v != "" && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return strings.Join(all, ", ")
}

// evaluationMachineTable names where each report was measured, and how much of it there is.
func evaluationMachineTable(dir string) (string, error) {
	list := [][]string{{"report", "paper", "measured", "GPU", "driver, CUDA, ONNX Runtime", "CPU", "Penstock"}}
	for _, f := range evaluationFigures {
		e, err := readEvaluation(dir, f.name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		where := e.Machine
		where.Penstock = e.versions()
		list = append(list, machineRow(f.name, e.Paper, e.Device, e.state(), where))
	}
	row, err := weightsMachine(dir)
	if err != nil {
		return "", err
	}
	if row != nil {
		list = append(list, row)
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	return rows(list...), nil
}

// machineRow says where a report was measured.
func machineRow(name, paper, device, state string, m bench.Machine) []string {
	gpu := device
	if len(m.GPUs) > 0 {
		gpu = fmt.Sprintf("%s, %d GB", m.GPUs[0].Name, m.GPUs[0].MemoryBytes/1e9)
	}
	day, _, _ := strings.Cut(m.Date, "T")
	return []string{"[" + name + "](" + name + ".json)", paper, day + ": " + state, gpu, joined(m.Driver, m.CUDA, m.ONNXRuntime), fmt.Sprintf("%s, %d cores", m.CPU, m.CPUs), m.Penstock}
}

// joined is what there is, with commas.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// loadsTable has goodput of every case, load and variant, then latency, then what is to be
// said of Penstock beside each baseline.
func loadsTable(name string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		e, err := readEvaluation(dir, name)
		if err != nil {
			return "", err
		}
		cases := e.of(evaluate.KindLoads)
		variants := e.measuredVariants(cases)
		head := []string{"", "offered"}
		for _, v := range variants {
			head = append(head, e.label(v))
		}
		goods, lates := [][]string{head}, [][]string{head}
		slow := false
		for _, c := range cases {
			for _, level := range e.levels(c.Name) {
				first := []string{c.Name, ""}
				good, late := slices.Clone(first), slices.Clone(first)
				for _, v := range variants {
					loads := e.loads(c.Name, v, level)
					if len(loads) > 0 && good[1] == "" {
						good[1] = fmt.Sprintf("%.0f %%: %s", 100*level, rate(loads[0].OfferedRPS))
						late[1] = good[1]
					}
					mark := ""
					if behind(loads) {
						mark, slow = " †", true
					}
					if count, _ := e.failed(c.Name, v); len(loads) == 0 && count > 0 {
						good, late = append(good, "failed"), append(late, "failed")
						continue
					}
					good = append(good, spreadBy(loads, goodput).text(number, "")+mark)
					late = append(late, fmt.Sprintf("%s / %s", plainOr(spreadBy(loads, middle).median), spreadBy(loads, tail).text(short, "")))
				}
				goods, lates = append(goods, good), append(lates, late)
			}
		}
		if len(goods) == 1 {
			return "", fs.ErrNotExist
		}
		text := "Goodput, requests answered within the objective a second: median of the runs (least–most).\n\n" + rows(goods...)
		if slow {
			text += "\n† In some of these runs the sender did not keep up; those do not count in the comparison.\n"
		}
		text += "\n<details><summary>Latency of the ok answers, ms: p50 / p99 of the slowest function</summary>\n\n" + rows(lates...) + "\n</details>\n"
		if each := e.byFunction(cases, variants, head); len(each) > 1 {
			text += "\n<details><summary>Goodput of each function</summary>\n\n" + rows(each...) + "\n</details>\n"
		}
		if verdicts := e.verdicts(); len(verdicts) > 0 {
			text += "\n- " + strings.Join(verdicts, "\n- ") + "\n"
		}
		return text, nil
	}
}

// byFunction has a row for each function of the cases that have several.
func (e *evaluation) byFunction(cases []evaluate.CaseSetting, variants, head []string) [][]string {
	list := [][]string{head}
	for _, c := range cases {
		if len(c.Functions) < 2 {
			continue
		}
		for _, level := range e.levels(c.Name) {
			for i, f := range c.Functions {
				row := []string{c.Name + ", " + f.Name, ""}
				for _, v := range variants {
					loads := e.loads(c.Name, v, level)
					own := func(by func(*evaluate.FunctionLoad) float64) spread {
						return spreadBy(loads, func(l *evaluate.Load) float64 {
							if i >= len(l.Functions) || l.Functions[i].Name != f.Name {
								return math.NaN()
							}
							return by(&l.Functions[i])
						})
					}
					if offered := own(func(f *evaluate.FunctionLoad) float64 { return f.OfferedRPS }); row[1] == "" && offered.runs > 0 {
						row[1] = fmt.Sprintf("%.0f %%: %s", 100*level, rate(offered.median))
					}
					if count, _ := e.failed(c.Name, v); len(loads) == 0 && count > 0 {
						row = append(row, "failed")
						continue
					}
					row = append(row, own(func(f *evaluate.FunctionLoad) float64 { return f.GoodputRPS }).text(number, ""))
				}
				list = append(list, row)
			}
		}
	}
	return list
}

func plainOr(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return short(v)
}

// efficacy is the paper's numbers for one row of Table 2 or 3.
type efficacy struct {
	name, ours                string // as the paper has it, and the case here
	plain, batching, combined float64
}

// Table 2 and Table 3 of the paper: GUE of default MPS, MPS + SLAB and GSLICE.
var (
	paperTable2 = []efficacy{
		{"Alexnet", "alexnet", 235.75, 382.4, 579.41},
		{"Mobilenet", "mobilenetv2", 330.0, 341.2, 379.55},
		{"ResNet-50", "resnet50", 29.08, 42.4, 47.93},
		{"VGG-19", "vgg19", 4.96, 5.11, 5.25},
		{"VGG-16", "vgg16", 3.79, 11.13, 12.49},
		{"GNMT", "gnmt", 1.97, 6.66, 6.74},
	}
	paperTable3 = []efficacy{
		{"Alexnet & ResNet-50", "C1", 38.82, 72.69, 94.04},
		{"Alexnet & VGG-19", "C2", 6.39, 15.76, 44.79},
		{"3 IFs", "C3", 3.38, 7.83, 24.59},
		{"4 IFs", "C4", 2.01, 7.29, 19.98},
	}
)

// efficacyTable puts the paper's efficacies beside ours at the load next to capacity, from
// those of the reports that there are.
func efficacyTable(paper []efficacy, names ...string) func(dir string) (string, error) {
	return func(dir string) (string, error) {
		var reports []*evaluation
		for _, name := range names {
			e, err := readEvaluation(dir, name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
			if err == nil {
				reports = append(reports, e)
			}
		}
		list := [][]string{{"", "paper: default MPS", "MPS + SLAB", "GSLICE", "GSLICE over default MPS", "here, offered", "default MPS", "MPS + SLAB", "Penstock", "Penstock over default MPS"}}
		for _, p := range paper {
			i := slices.IndexFunc(reports, func(e *evaluation) bool { return len(e.levels(p.ours)) > 0 })
			if i < 0 {
				continue
			}
			e, levels := reports[i], reports[i].levels(p.ours)
			level := slices.MinFunc(levels, func(a, b float64) int { return cmp.Compare(math.Abs(a-1), math.Abs(b-1)) })
			row := []string{p.name, short(p.plain), short(p.batching), short(p.combined), fmt.Sprintf("%+.0f %%", 100*(p.combined/p.plain-1)), fmt.Sprintf("%.0f %%", 100*level)}
			var first, last spread
			for _, v := range []string{"mps", "mps-slab", "penstock"} {
				s := spreadBy(e.loads(p.ours, v, level), func(l *evaluate.Load) float64 { return l.GUE })
				row = append(row, s.text(short, ""))
				if v == "mps" {
					first = s
				}
				last = s
			}
			list = append(list, append(row, gained(last, first)))
		}
		if len(list) == 1 {
			return "", fs.ErrNotExist
		}
		return rows(list...), nil
	}
}
