package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/kubetest/tools"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Isolated(m.Run)) }

func TestBench(t *testing.T) {
	program := filepath.Join(t.TempDir(), "penstock-operator")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/penstock-operator").CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, out)
	}
	var table strings.Builder
	o := options{program: program, chart: "../chart", nodes: 20, gpus: 2, segments: 90, functions: 30, steady: 5 * time.Second, limit: 2 * time.Minute}
	r, err := run(t.Context(), &table, o)
	if errors.Is(err, kubetest.ErrUnsupported) || errors.Is(err, tools.ErrMissing) {
		t.Skip(err)
	}
	must.OK(t, err)
	t.Log("\n" + table.String())

	if len(r.bound) != o.segments || len(r.rates()) == 0 {
		t.Errorf("%d segments were bound, want %d: rates %v", len(r.bound), o.segments, r.rates())
	}
	if len(r.written) > 0 {
		t.Errorf("writes in %s in which nothing happened: %v", o.steady, r.written)
	}
	for what, min := range map[string]float64{"post pods": 1, "post pods/binding": 1, "post resourceclaims": 1, "put resourceclaims/status": 2} {
		if each := r.wrote[what] / float64(o.segments); each < min {
			t.Errorf("%.2f writes of %q per segment, want %g", each, what, min)
		}
	}
	for _, name := range []string{"operator", "kube-apiserver"} {
		if p := r.steadyUse.programs[name]; p.peak < 20<<20 || r.binding.programs[name].cpu == 0 {
			t.Errorf("%s used %+v", name, p)
		}
	}
}

func TestRates(t *testing.T) {
	begin := time.Now()
	r := &result{}
	for i := range 250 { // 10 per second, then 5
		at := time.Duration(i) * 100 * time.Millisecond
		if i > 200 {
			at += time.Duration(i-200) * 100 * time.Millisecond
		}
		r.bound = append(r.bound, begin.Add(at))
	}
	if got := r.rates(); len(got) != 2 || got[0] != 10 || got[1] != 10 {
		t.Errorf("rates %v, want two of 10: the last window is not complete", got)
	}
	r.bound = r.bound[:50]
	if got := r.rates(); len(got) != 1 || got[0] < 10 || got[0] > 10.3 {
		t.Errorf("rates %v, want about 10", got)
	}
}
