package sharing

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

func TestPercentageSteps(t *testing.T) {
	for _, c := range []struct {
		sms     int
		minimum float64
		begin   []float64
	}{
		{132, 5, []float64{6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22, 24, 25, 27, 28, 30}},
		{132, 10, []float64{10, 12, 13}},
		{16, 5, []float64{12, 24, 37, 49, 62, 74, 87, 99, 100}},
		{208, 5, []float64{5, 6, 7, 8, 9, 10, 11}},
		{1, 5, []float64{100}},
		{0, 5, []float64{100}},
	} {
		got := percentageSteps(c.sms, c.minimum)
		if len(got) < len(c.begin) || !slices.Equal(got[:len(c.begin)], c.begin) || !slices.IsSorted(got) || got[len(got)-1] != 100 {
			t.Errorf("%d multiprocessors, at least %v %%: %v, want it to begin with %v and end with 100", c.sms, c.minimum, got, c.begin)
		}
	}
}

// The file's results are for one GPU, one driver and one content of the model's file.
func TestPercentagesFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "model.onnx")
	must.OK(t, os.WriteFile(file, []byte("model"), 0o600))
	weights := filepath.Join(dir, "model.onnx.data")
	must.OK(t, os.WriteFile(weights, []byte("weights"), 0o600))
	card, other := &models.Card{Model: file, Data: []string{weights}}, &models.Card{File: filepath.Join(dir, "card.yaml")}
	gpu := &control.GPU{UUID: "GPU-1", SMs: 132, Driver: "580"}
	opened := func(gpu *control.GPU) *percentages {
		p := &percentages{cache: dir}
		p.open(gpu)
		return p
	}
	wrong := func(p *percentages, card *models.Card) []float64 {
		return p.of(card).Wrong
	}

	p := opened(gpu)
	p.judge(card, 24, true)
	p.judge(card, 30, false)
	p.judge(card, 30, true) // what was wrong once is not trusted again
	p.judge(other, 40, false)
	p = opened(gpu)
	if m := p.of(card); !slices.Equal(m.Right, []float64{24}) || !slices.Equal(m.Wrong, []float64{30}) || !slices.Equal(wrong(p, other), []float64{40}) {
		t.Errorf("read %+v", p.known)
	}
	p.judge(card, 24, false) // a larger batch was wrong
	if m := p.of(card); len(m.Right) > 0 || !slices.Equal(m.Wrong, []float64{30, 24}) {
		t.Errorf("%+v, want 24 %% to be wrong now", m)
	}

	updated := *gpu
	updated.Driver = "590"
	if got := wrong(opened(&updated), card); got != nil {
		t.Errorf("another driver: %v", got)
	}
	for _, name := range []string{file, weights} {
		must.OK(t, os.WriteFile(name, []byte("another file"), 0o600))
		p := opened(gpu)
		if got := wrong(p, card); got != nil {
			t.Errorf("another %s: %v", name, got)
		}
		p.judge(card, 30, false)
	}
	opened(gpu).judge(card, 50, false)
	if !slices.Equal(wrong(opened(gpu), card), []float64{30, 50}) {
		t.Errorf("%v, want the results of the other file", wrong(opened(gpu), card))
	}

	for _, text := range []string{"", "{", "null", `{"format":2}`, `{"format":1,"uuid":"GPU-1","driver":"580","models":null}`} {
		must.OK(t, os.WriteFile(filepath.Join(dir, percentagesFile(gpu.UUID)), []byte(text), 0o600))
		p := opened(gpu)
		before := wrong(p, card)
		if p.judge(card, 60, false); before != nil || !slices.Equal(wrong(opened(gpu), card), []float64{60}) {
			t.Errorf("%q: %+v, want it to begin again", text, p.known)
		}
	}
	if p := (&percentages{cache: filepath.Join(dir, "missing")}); true {
		p.open(gpu)
		if p.judge(card, 70, false); len(wrong(p, card)) != 1 {
			t.Error("without a folder it learns nothing")
		}
	}
}
