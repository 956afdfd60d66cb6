package profiler

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/profiler/sweep"
)

// builtPenstock builds the binary that nodes run, and returns its path.
func builtPenstock(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "penstock")
	if out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "../cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("build penstock: %v\n%s", err, out)
	}
	return binary
}

func TestModelCannotStart(t *testing.T) {
	dir := t.TempDir()
	card, err := (zoo.Registry{Cache: dir}).Find("fashion")
	must.OK(t, err)
	card.Model = filepath.Join(dir, "junk.onnx")
	must.OK(t, os.WriteFile(card.Model, []byte("junk"), 0o600))
	p, err := New(t.Context(), Options{
		Setup: testbed.Setup{Binary: builtPenstock(t), Device: configs.DeviceCPU}, Card: card, Scale: PercentScale(),
		Grid: profile.Sweep{Batches: []int{1}, Processes: []int{1}},
	})
	must.OK(t, err)
	defer p.Close()
	_, err = p.Start(t.Context(), sweep.Cell{Share: 100, Batch: 1, Processes: 1})
	if err == nil || !strings.Contains(err.Error(), "a process cannot start: ") || !strings.Contains(err.Error(), "junk.onnx") {
		t.Error(err)
	}
}

// A real model on the CPU, in processes with real quotas. It takes only seconds, so
// the test checks only figures that cannot vary.
func TestProfileFashion(t *testing.T) {
	binary := builtPenstock(t)
	card, err := (zoo.Registry{Cache: t.TempDir()}).Find("fashion")
	must.OK(t, err)
	p, err := New(t.Context(), Options{
		Setup: testbed.Setup{Binary: binary, Device: configs.DeviceCPU}, Card: card, Scale: PercentScale(),
		Grid: profile.Sweep{Batches: []int{8}, Processes: []int{2}},
	})
	must.OK(t, err)
	defer p.Close()
	began := time.Now()
	r, err := sweep.Run(t.Context(), p, sweep.Options{File: filepath.Join(t.TempDir(), "fashion.csv"), Header: profile.Header{
		Version: profile.Version, Model: "fashion", Device: "cpu", Unit: profile.Percent, Total: 100,
		Sweep: &profile.Sweep{Shares: []int{20, 100}, Batches: []int{8}, Processes: []int{1, 2},
			WindowSeconds: 0.5, PrecisionPercent: 20, MinWindows: 3, MaxWindows: 6},
	}})
	must.OK(t, err)
	for _, q := range r.Profile.Points {
		t.Logf("%+v", q)
		if q.OOM || q.Latency <= 0 || q.MemoryMiB <= 0 {
			t.Errorf("%+v", q)
		}
	}
	t.Logf("%d points in %s, shares held by %s", r.New, time.Since(began), p.HeldBy())
	// The values depend on the machine's other load. If that starves the load, it does not fill the
	// batches of a cell, and the profile omits the cell.
	if len(r.Profile.Points)+len(r.Left) != 4 || len(r.Left) == 0 && len(r.Profile.Header.Knees) != 1 || p.HeldBy() == "" {
		t.Errorf("%d points, left out %v, knees %v, shares held by %q", len(r.Profile.Points), r.Left, r.Profile.Header.Knees, p.HeldBy())
	}
}

// A model of 1 KB is never busy: the node cannot feed it fast enough.
func TestProfileTinyModel(t *testing.T) {
	dir := t.TempDir()
	path := tinymodel.Card{Name: "tiny", Version: 1, Height: 8, Width: 8, Outputs: 4,
		Model: tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 1, 8, 8).Encode()}.Write(t, dir)
	card, err := models.ReadCard(path)
	must.OK(t, err)
	p, err := New(t.Context(), Options{
		Setup: testbed.Setup{Binary: builtPenstock(t), Device: configs.DeviceCPU}, Card: card, Scale: PercentScale(),
		Grid: profile.Sweep{Batches: []int{1}, Processes: []int{1}},
	})
	must.OK(t, err)
	defer p.Close()
	r, err := sweep.Run(t.Context(), p, sweep.Options{File: filepath.Join(dir, "tiny.csv"), Header: profile.Header{
		Version: profile.Version, Model: "tiny", Device: "cpu", Unit: profile.Percent, Total: 100,
		Sweep: &profile.Sweep{Shares: []int{20, 100}, Batches: []int{1}, Processes: []int{1},
			WindowSeconds: 0.1, PrecisionPercent: 20, MinWindows: 3, MaxWindows: 6, Quick: true},
	}})
	must.OK(t, err)
	t.Logf("%+v", r.Profile.Points)
	if len(r.Profile.Points) != 2 || len(r.Left) != 0 || len(r.Profile.Header.Knees) != 1 {
		t.Errorf("%d points, left out %v, knees %v", len(r.Profile.Points), r.Left, r.Profile.Header.Knees)
	}
}

func TestExplain(t *testing.T) {
	for text, want := range map[string]bool{
		"CUDA_ERROR_OUT_OF_MEMORY: out of memory":                         true,
		"CUDA failure 2: out of memory ; GPU=0":                           true,
		"onnxruntime: Failed to allocate memory for requested buffer":     true,
		"mmap: cannot allocate memory":                                    true,
		"terminate called after throwing an instance of 'std::bad_alloc'": true,
		"killed by signal 9 (not by Penstock)":                            true,
		"model takes 3 channels, the card has 4":                          false,
		"no room in the house":                                            false,
	} {
		if got := errors.Is(explain(errors.New(text)), sweep.ErrOutOfMemory); got != want {
			t.Errorf("%s: out of memory is %t", text, got)
		}
	}
	if err := explain(errors.New("its process cannot start: model answers wrongly on this GPU: output y")); !errors.Is(err, sweep.ErrWrongAnswers) {
		t.Errorf("%v, want the sweep to leave the share out", err)
	}
}

func TestDigest(t *testing.T) {
	find := zoo.Registry{Cache: t.TempDir()}
	card, err := find.Find("fashion")
	must.OK(t, err)
	digest := func(change func(*models.Card)) string {
		c := *card
		change(&c)
		d, err := digestOf(&c)
		must.OK(t, err)
		return d
	}
	same := digest(func(*models.Card) {})
	if other := digest(func(c *models.Card) { c.KneePercent, c.SLO, c.File, c.Batches = 30, time.Hour, "elsewhere", []int{1} }); other != same {
		t.Error("knee, objective, ladder or place change the digest")
	}
	if other := digest(func(c *models.Card) { c.Threads++ }); other == same {
		t.Error("the number of threads does not change the digest")
	}
	if other := digest(func(c *models.Card) { c.Model = c.File }); other == same {
		t.Error("another model file does not change the digest")
	}
}
