package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/gateway/page"
)

// labFile is what a report needs of a result of penstock-lab (evaluate.Report in research/).
type labFile struct {
	Title    string `json:"title"`
	Quick    bool   `json:"quick"`
	Variants []struct {
		Name  string `json:"name"`
		Label string `json:"label"`
	} `json:"variants"`
	Results []labResult `json:"results"`
}

// labResult is a run of a variant on a case. A report shows loads and time lines, and leaves out
// measurements without requests.
type labResult struct {
	Case    string `json:"case"`
	Variant string `json:"variant"`
	Run     int    `json:"run"`
	Error   string `json:"error"`
	Loads   []struct {
		Level     float64       `json:"level"`
		Functions []labFunction `json:"functions"`
	} `json:"loads"`
	Timeline *struct {
		BinSeconds float64 `json:"bin_s"`
		Functions  []struct {
			Name  string      `json:"name"`
			Bins  []page.Bin  `json:"bins"`
			Total labFunction `json:"total"`
			Lost  uint64      `json:"lost"`
		} `json:"functions"`
	} `json:"timeline"`
}

type labFunction struct {
	page.Function
	WithinPercent float64 `json:"within_percent"`
}

func (f *labFunction) function() page.Function {
	f.Function.WithinPercent = f.WithinPercent
	return f.Function
}

// addLab adds the runs of a result of penstock-lab: a group per case.
func (r *Report) addLab(name string, text []byte) error {
	var lab labFile
	if err := json.Unmarshal(text, &lab); err != nil {
		return err
	}
	labels, order := map[string]string{}, map[string]int{}
	for i, v := range lab.Variants {
		labels[v.Name], order[v.Name] = v.Label, i
	}
	slices.SortStableFunc(lab.Results, func(a, b labResult) int {
		return cmp.Or(cmp.Compare(order[a.Variant], order[b.Variant]), cmp.Compare(a.Run, b.Run))
	})
	note := ""
	if lab.Quick {
		note = "quick: small models and short times"
	}

	added := 0
	for i := range lab.Results {
		result := &lab.Results[i]
		if result.Error != "" {
			continue
		}
		runs := result.runs(fmt.Sprintf("%s: %s, run %d", name, cmp.Or(labels[result.Variant], result.Variant), result.Run))
		if len(runs) == 0 {
			continue
		}
		g := r.group(fmt.Sprintf("%s: %s", lab.Title, result.Case))
		for _, run := range runs {
			run.Note = note
			g.Runs = append(g.Runs, run)
			added++
		}
	}
	if added == 0 {
		return errors.New("it has no complete run with requests; a report shows loads and time lines")
	}
	return nil
}

// runs returns a run per level of load, or one for a time line.
func (l *labResult) runs(name string) (runs []page.Run) {
	for i := range l.Loads {
		load := &l.Loads[i]
		run := page.Run{Name: name}
		if load.Level > 0 {
			run.Name += fmt.Sprintf(", load %g", load.Level)
		}
		for j := range load.Functions {
			run.Functions = append(run.Functions, load.Functions[j].function())
		}
		runs = append(runs, run)
	}
	if t := l.Timeline; t != nil {
		run := page.Run{Name: name}
		for i := range t.Functions {
			part := &t.Functions[i]
			f := part.Total.function()
			f.Name, f.Lost, f.Bins, f.BinSeconds = part.Name, &part.Lost, part.Bins, t.BinSeconds
			run.Functions = append(run.Functions, f)
		}
		runs = append(runs, run)
	}
	return runs
}
