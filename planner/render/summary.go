package render

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/plan"
)

// line is a name and its value.
type line struct{ Name, Value string }

// summary is the plan's key figures, without its notes.
func summary(p *plan.Plan, list []board) []line {
	count := map[string]int{}
	var used, total [3]int // under MIG, under MPS, of a CPU
	for _, b := range list {
		n, kind := b.last-b.first+1, 0
		switch {
		case b.gpu.Name == cpu:
			kind = 2
		case b.gpu.Percent:
			kind = 1
		}
		count[b.gpu.Name] += n
		used[kind] += n * b.gpcs
		total[kind] += n * b.gpu.GPCs
	}
	var gpus, sms, sizes []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		gpus = append(gpus, fmt.Sprintf("%d × %s", count[name], name))
		if name != cpu {
			sms = append(sms, fmt.Sprintf("%s %d", name, p.SMsPerGPU[name]))
		}
	}
	for kind, unit := range []string{"GPCs", "steps of SMs", "% of the CPU"} {
		if total[kind] > 0 {
			sizes = append(sizes, fmt.Sprintf("%d of %d %s", used[kind], total[kind], unit))
		}
	}
	fragmentation := formatPercent(p.ExternalFragmentation)
	if len(sms) > 0 {
		fragmentation += " (SMs a GPU: " + strings.Join(sms, ", ") + ")"
	}
	optimal := "not proved"
	switch {
	case p.Optimal:
		optimal = "proved: no plan within these latency bounds has fewer GPUs"
	case p.LowerBound > 0:
		optimal = fmt.Sprintf("not proved; no plan has fewer than %d GPUs", p.LowerBound)
	}
	return []line{
		{"policy", p.Policy},
		{"GPUs", strings.Join(gpus, ", ")},
		{"used", strings.Join(sizes, ", ")},
		{"internal slack", formatPercent(p.InternalSlack)},
		{"external fragmentation", fragmentation},
		{"optimal", optimal},
		{"planned in", formatDecimal(p.DelayMS) + " ms"},
	}
}

// parts describes the segments of each service: "2 × 3g, 1 × 1g".
func parts(list []board) map[string]string {
	type part struct {
		name  string
		gpcs  int
		count int
	}
	byService := map[string][]part{}
	for _, b := range list {
		for _, c := range b.cells {
			if c.segment == nil {
				continue
			}
			name := sizeName(b.gpu, c.size)
			have := byService[c.segment.Service]
			i := slices.IndexFunc(have, func(p part) bool { return p.name == name })
			if i < 0 {
				i, have = len(have), append(have, part{name: name, gpcs: c.size.SMs})
			}
			have[i].count += b.last - b.first + 1
			byService[c.segment.Service] = have
		}
	}
	label := map[string]string{}
	for service, have := range byService {
		slices.SortStableFunc(have, func(a, b part) int { return b.gpcs - a.gpcs })
		var words []string
		for _, p := range have {
			words = append(words, fmt.Sprintf("%d × %s", p.count, p.name))
		}
		label[service] = strings.Join(words, ", ")
	}
	return label
}
