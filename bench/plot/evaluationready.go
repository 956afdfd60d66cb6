package main

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/penstock/penstock/bench/evaluate"
)

// enough of the whole device's throughput is where more multiprocessors buy little.
const enough = 0.9

// paperKnees are the knees of 2.1.3, for batches of one.
var paperKnees = map[string]string{"resnet50": "about 60 %", "vgg19": "after 70 %", "gnmt": "after 70 %", "alexnet": "30 %"}

// kneeTable has for each model and batch size the least part of the multiprocessors that
// was measured to give nine tenths of what all give.
func kneeTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig2-3")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "whole device", "knee, MPS percentage", "knee, SM groups", "paper's knee, V100"}}
	var against []string
	knees := 0
	for _, c := range e.of(evaluate.KindBare) {
		for _, f := range c.Functions {
			before := map[string]float64{}
			for _, b := range f.Batches {
				row := []string{f.Model, fmt.Sprint(b), "–"}
				var measured bool
				for _, v := range []string{"percentage", "groups"} {
					xs, all := e.byShare(c.Name, v, f.Model, b)
					const allOfIt = 99 // %: without it there is nothing that the others are parts of
					if len(xs) == 0 || xs[len(xs)-1] < allOfIt {
						row = append(row, "–")
						continue
					}
					measured = true
					const few = 3 // places say nothing of a knee between them
					whole := spreadBy(all[len(all)-1], speed)
					if v == "percentage" || row[2] == "–" {
						row[2] = fmt.Sprintf("%s, %s", whole.text(number, "/s"), milli(spreadBy(all[len(all)-1], batchMillis).median))
					}
					if len(xs) < few {
						row = append(row, "–")
						continue
					}
					at := slices.IndexFunc(all, func(p []evaluate.Point) bool { return spreadBy(p, speed).median >= enough*whole.median })
					knees++
					row = append(row, fmt.Sprintf("%.0f %%", xs[at]))
					if xs[at] < before[v] {
						against = append(against, fmt.Sprintf("%s at %d by %s", f.Model, b, e.label(v)))
					}
					before[v] = xs[at]
				}
				if !measured {
					continue
				}
				paper := ""
				if b == 1 {
					paper = paperKnees[f.Model]
				}
				list = append(list, append(row, paper))
			}
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	text := rows(list...)
	if knees > 0 {
		text += "\n- " + claim("A larger batch never has its knee at fewer multiprocessors", against) + "\n"
	}
	return text, nil
}

// paperTable5 is the paper's throughput (images/s) and latency (ms) by batch size.
var paperTable5 = []struct {
	name, model string
	batch       int
	rate, late  float64
}{
	{"ResNet-50", "resnet50", 8, 816, 9.75}, {"ResNet-50", "resnet50", 16, 1088, 14.5}, {"ResNet-50", "resnet50", 32, 1152, 25.9},
	{"VGG-19", "vgg19", 8, 264, 30.54}, {"VGG-19", "vgg19", 16, 400, 40.95}, {"VGG-19", "vgg19", 32, 512, 63.12},
}

// batchTable is Table 5.
func batchTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "table5")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "paper", "paper, a batch", "here, one stream", "a batch", "two streams", "a batch"}}
	speeds := map[string][]float64{} // by model, of one stream, batches ascending
	for _, p := range paperTable5 {
		row := []string{p.name, fmt.Sprint(p.batch), rate(p.rate), milli(p.late)}
		found := false
		for streams := 1; streams <= 2; streams++ {
			var points []evaluate.Point
			for _, c := range e.of(evaluate.KindBare) {
				points = append(points, e.ready(c, p.model, p.batch, streams)...)
			}
			found = found || len(points) > 0
			if streams == 1 {
				speeds[p.name] = append(speeds[p.name], spreadBy(points, speed).median)
			}
			row = append(row, spreadBy(points, speed).text(number, "/s"), spreadBy(points, batchMillis).text(short, " ms"))
		}
		if found {
			list = append(list, row)
		}
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	var against, grows []string
	for _, name := range slices.Sorted(maps.Keys(speeds)) {
		s := speeds[name]
		first, second := 100*(s[1]/s[0]-1), 100*(s[2]/s[1]-1)
		if math.IsNaN(first) || math.IsNaN(second) {
			continue
		}
		told := fmt.Sprintf("%s %+.0f %% and %+.0f %%", name, first, second)
		grows = append(grows, told)
		if first <= second {
			against = append(against, told)
		}
	}
	text := rows(list...)
	if len(grows) > 0 {
		text += fmt.Sprintf("\n- %s From 8 to 16 and from 16 to 32: %s.\n", claim("Throughput grows more from 8 to 16 than from 16 to 32", against), strings.Join(grows, "; "))
	}
	return text, nil
}

// streamsTable has what a second stream gives ready batches, and functions beside each
// other.
func streamsTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig5-7")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "batch", "one stream", "a batch", "two streams", "a batch", "gained", "a batch takes longer by"}}
	var against []string
	for _, c := range e.of(evaluate.KindBare) {
		for _, f := range c.Functions {
			before := math.NaN()
			for _, b := range f.Batches {
				one, two := e.ready(c, f.Model, b, 1), e.ready(c, f.Model, b, 2)
				if len(one)+len(two) == 0 {
					continue
				}
				r1, r2, t1, t2 := spreadBy(one, speed), spreadBy(two, speed), spreadBy(one, batchMillis), spreadBy(two, batchMillis)
				if more := r2.median / r1.median; more >= before {
					against = append(against, fmt.Sprintf("%s at %d", f.Model, b))
				} else {
					before = more
				}
				list = append(list, []string{f.Model, fmt.Sprint(b), r1.text(number, "/s"), t1.text(short, " ms"), r2.text(number, "/s"), t2.text(short, " ms"),
					gained(r2, r1), gained(t2, t1)})
			}
		}
	}
	beside := [][]string{{"", "function", "answered", "of alone", "p99"}}
	closed := e.of(evaluate.KindClosed)
	for _, c := range closed {
		for _, v := range c.Variants {
			all := e.results(c.Name, v)
			for _, f := range c.Functions {
				if len(all) == 0 {
					continue
				}
				beside = append(beside, []string{c.Name + ", " + e.label(v), f.Name, spreadBy(all, func(r *evaluate.Result) float64 { return answered(r, f.Name) }).text(number, "/s"),
					e.ofAlone(closed, f, all).text(tenths, " %"), spreadBy(all, func(r *evaluate.Result) float64 { return tailOf(r, f.Name) }).text(short, " ms")})
			}
		}
	}
	if len(list)+len(beside) == 2 {
		return "", fs.ErrNotExist
	}
	text := ""
	if len(list) > 1 {
		text = rows(list...) + "\n- " + claim("A second stream brings a larger batch less", against) + "\n"
	}
	if len(beside) > 1 {
		text += "\n" + rows(beside...)
	}
	return text, nil
}

// gained is how much more the first is, in percent.
func gained(a, b spread) string {
	if a.runs == 0 || b.runs == 0 || b.median == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.0f %%", 100*(a.median/b.median-1))
}

// tailOf is a function's p99 in a closed loop.
func tailOf(r *evaluate.Result, name string) float64 {
	for _, l := range r.Loads {
		for _, f := range l.Functions {
			if f.Name == name {
				return some(f.P99Millis)
			}
		}
	}
	return math.NaN()
}

// Table 4 of the paper: by how many percent GSLICE was better than the TensorRT server.
var paperTable4 = []struct {
	batch      int
	rate, late float64
}{{1, 73.85, -7.52}, {4, 31.43, 23.96}, {8, 50.83, 34.12}, {16, 92.34, 45.64}}

// readyTable stands in Table 4's place: batches as they come, on two streams, beside
// batches of a fixed size with a delay, at the highest load; the time is that of a ready
// batch, gather and infer.
func readyTable(dir string) (string, error) {
	e, err := readEvaluation(dir, "fig11")
	if err != nil {
		return "", err
	}
	list := [][]string{{"batches of at most", "paper over TensorRT server: throughput", "latency", "here, fixed with a delay", "a batch", "Penstock's way", "a batch", "throughput", "latency of a batch"}}
	for _, p := range paperTable4 {
		name := fmt.Sprintf("batches of at most %d", p.batch)
		levels := e.levels(name)
		if len(levels) == 0 {
			continue
		}
		high := levels[len(levels)-1]
		ready := func(l *evaluate.Load) float64 { return some(l.Functions[0].BatchMillis) }
		fixed, ours := e.loads(name, fmt.Sprintf("fixed-%d", p.batch), high), e.loads(name, "streams-2", high)
		f, o, ft, ot := spreadBy(fixed, goodput), spreadBy(ours, goodput), spreadBy(fixed, ready), spreadBy(ours, ready)
		better := "–"
		if ft.runs > 0 && ot.runs > 0 {
			better = fmt.Sprintf("%+.0f %%", 100*(1-ot.median/ft.median))
		}
		list = append(list, []string{fmt.Sprint(p.batch), fmt.Sprintf("%+.1f %%", p.rate), fmt.Sprintf("%+.1f %%", p.late), f.text(number, "/s"), ft.text(short, " ms"), o.text(number, "/s"), ot.text(short, " ms"), gained(o, f), better})
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	return rows(list...), nil
}
