package main

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/bench/planner"
)

// planned is a report whose numbers are made up.
func planned(t *testing.T, dir string) {
	r := planner.Report{GPU: "made-up GPU", LimitSeconds: 10, Policies: []string{"penstock", "parvagpu", "igniter"}}
	for i, policy := range r.Policies {
		for _, n := range []int{1, 10, 100, 1000} {
			if policy == "igniter" && n > 100 {
				r.Missing = append(r.Missing, planner.Missing{Policy: policy, Services: n, Why: "made up"})
				continue
			}
			r.Delays = append(r.Delays, planner.Delay{Result: planner.Result{Policy: policy, Services: n, GPUs: n / 2, DelayMS: float64(n*(i+1)) / 7}})
		}
		for _, scenario := range []string{"S1", "S2", "S3", "S4"} {
			for _, grow := range []planner.Grow{planner.GrowServices, planner.GrowRates} {
				for times := 1; times <= 10; times++ {
					c := planner.Count{Scenario: scenario, Grow: grow, Times: times, Result: planner.Result{Policy: policy, GPUs: times * (9 + i), DelayMS: float64(times)}}
					if policy == "penstock" {
						c.LowerBound, c.Optimal = times*9-1, times == 1
					}
					r.Counts = append(r.Counts, c)
				}
			}
		}
	}
	delays, counts := r, r
	delays.Counts, counts.Delays, counts.Missing = nil, nil, nil
	put(t, dir, "delays", delays)
	put(t, dir, "counts", counts)
}

func TestThePlannersReportBecomesFiguresAndTables(t *testing.T) {
	dir := folder(t, "planner")
	page, err := os.ReadFile("../../docs/benchmarks/planner.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+".md", page, 0o600); err != nil {
		t.Fatal(err)
	}
	planned(t, dir)
	if err := drawAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, s := range pages["planner"].sections {
		for _, name := range s.figures {
			file, err := os.Open(filepath.Join(dir, name+".png"))
			if err != nil {
				t.Error(err)
				continue
			}
			if img, err := png.DecodeConfig(file); err != nil || img.Width < 600 {
				t.Errorf("%s: %d pixels wide, %v", name, img.Width, err)
			}
			file.Close()
		}
	}
	filled, err := os.ReadFile(dir + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| services | penstock | parvagpu | igniter |\n",
		"| 1,000 | 143 ms / 500 | 286 ms / 500 | – |\n",
		"| S3 | 1 | **9** | 10 | 11 | 8 |\n",
		"| S3 | 10 | 90 | 100 | 110 | 89 |\n",
		"| igniter | 11 | 11 | 11 | 11 | 9.1 % | 34.6 % | – |  |\n",
		"| igniter | 1 | 1,000 services: made up |\n",
		"| penstock | 90.0 % | 90.0 % | 80 | 80 | 0 | 8 | 0.0 % | 0.0 % |\n",
	} {
		if !strings.Contains(string(filled), want) {
			t.Errorf("the page does not have the row %q", want)
		}
	}
	if keep := os.Getenv("PENSTOCK_KEEP_FIGURES"); keep != "" {
		if err := os.CopyFS(keep, os.DirFS(filepath.Dir(dir))); err != nil {
			t.Fatal(err)
		}
	}
}
