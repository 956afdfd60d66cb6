package serve

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// mixing is a framework that answers as fake does, and then mixes the rows of a batch.
type mixing struct {
	*functiontest.Fake
	mix func(rows [][]float32) // a batch's answers to output 0; it changes them
}

func (m *mixing) build(card *models.Card) (framework.Framework, error) {
	_, err := m.Fake.Build(card)
	return m, err
}

func (m *mixing) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (int64, error) {
	bytes, err := m.Fake.ConfigureBatch(slot, n, inputs, outputs)
	m.Mu.Lock()
	defer m.Mu.Unlock()
	b := m.Batches[functiontest.Key{slot, n}]
	compute := b.Compute
	b.Compute = func() {
		compute()
		out := b.Outputs[0]
		rows := make([][]float32, n)
		for i := range rows {
			rows[i] = answer.Floats(models.F32, out[i*len(out)/n:][:len(out)/n])
		}
		m.mix(rows)
		for at, v := range slices.Concat(rows...) {
			binary.LittleEndian.PutUint32(out[4*at:], math.Float32bits(v))
		}
	}
	return bytes, err
}

// mixes are models whose answers depend on other pictures of the batch.
var mixes = map[string]func(rows [][]float32){
	"batch on the second axis": func(rows [][]float32) {
		n, each := len(rows), len(rows[0])
		for at, v := range slices.Concat(rows...) { // element e of image i is written to e*n + i
			to := at%each*n + at/each
			rows[to/each] = slices.Clone(rows[to/each])
			defer func() { rows[to/each][to%each] = v }()
		}
	},
	"rows swapped": func(rows [][]float32) {
		if len(rows) > 1 {
			rows[0], rows[len(rows)-1] = rows[len(rows)-1], rows[0]
		}
	},
	"mean of the batch": func(rows [][]float32) {
		var mean float32
		for _, r := range rows {
			mean += r[1] / float32(len(rows))
		}
		for _, r := range rows {
			r[1] = mean
		}
	},
}

func TestMixedRows(t *testing.T) {
	cards := map[string][]int{"sizes": {1, 2, 4, 8}, "one size": {4}}
	for name, mix := range mixes {
		for batches, sizes := range cards {
			for device, newHarness := range map[string]func(testing.TB, *models.Card) *harness{"cpu": newHarness, "gpu": newGPUHarness} {
				t.Run(name+", "+batches+", "+device, func(t *testing.T) {
					card := functiontest.Card()
					card.Batches = sizes
					h := newHarness(t, card)
					c := h.start(1, (&mixing{h.Fake(), mix}).build, nil)
					c.order(control.Order{Do: control.DoWake, SharePercent: 50})
					err := c.end()
					if !errors.Is(err, answer.ErrMixed) || !strings.Contains(err.Error(), `output "a"`) || !strings.Contains(err.Error(), "batch_axis") {
						t.Errorf("ends with %v, want an error about output a", err)
					}
				})
			}
		}
	}
}

// picky is a framework that fails on pictures that are not blank.
type picky struct {
	*functiontest.Fake
	err   error
	input []byte
}

func (p *picky) build(card *models.Card) (framework.Framework, error) {
	_, err := p.Fake.Build(card)
	return p, err
}

func (p *picky) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (int64, error) {
	p.input = inputs[0].Bytes()
	return p.Fake.ConfigureBatch(slot, n, inputs, outputs)
}

func (p *picky) InferBatch(slot, n int) error {
	if err := p.Fake.InferBatch(slot, n); err != nil || slices.Max(p.input) == 0 {
		return err
	}
	return p.err
}

// A model that takes one picture runs a picture that is not blank. A failure of the picture alone is none of
// the model.
func TestSampleFails(t *testing.T) {
	for _, c := range []struct {
		err  error
		ends bool
	}{{functiontest.ErrFake, true}, {&framework.ImagesError{Images: []int{0}, Err: functiontest.ErrFake}, false}} {
		card := functiontest.Card()
		card.Batches = []int{1}
		h := newHarness(t, card)
		p := h.start(1, (&picky{Fake: h.Fake(), err: c.err}).build, nil)
		p.order(control.Order{Do: control.DoWake, SharePercent: 50})
		if !c.ends {
			p.await(control.Ready)
			p.drained()
		} else if err := p.end(); !errors.Is(err, functiontest.ErrFake) {
			t.Errorf("ends with %v, want %v", err, c.err)
		}
	}
}

// choosy is a framework that has no answer for the first image of a batch.
type choosy struct{ *functiontest.Fake }

func (c *choosy) build(card *models.Card) (framework.Framework, error) {
	_, err := c.Fake.Build(card)
	return c, err
}

func (c *choosy) InferBatch(slot, n int) error {
	if err := c.Fake.InferBatch(slot, n); err != nil {
		return err
	}
	return &framework.ImagesError{Images: []int{0}, Err: errors.New("too many rows")}
}

// A sample without an answer does not end a process.
func TestChoosy(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	m := &choosy{h.Fake()}
	c := h.start(1, m.build, nil)
	c.order(control.Order{Do: control.DoWake, Level: 3, GuaranteePercent: 30})
	c.await(control.Ready)
	c.drained()
}

// A process that begins with its smallest size compares the others before it uses them.
func TestMixedRowsPartially(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	m := &mixing{h.Fake(), mixes["rows swapped"]}
	c := h.start(1, m.build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50, PartialWarmUp: true})
	h.Channel.SetEpoch(1)
	c.await(control.Active)
	if err := c.end(); !errors.Is(err, answer.ErrMixed) {
		t.Errorf("ends with %v, want an error about mixed answers", err)
	}
}

// A process compares sizes that it adds with one batch per call.
func TestCompareNext(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.wake.PartialWarmUp = true
	f := h.Fake()
	p := h.linked(f)
	sizes := h.Card.Batches
	for _, n := range sizes[1:] {
		_, err := p.configure(1, n, p.memory.tensors[1])
		must.OK(t, err)
	}
	var want []int
	for _, n := range sizes[1:] {
		want = append(want, n, n, n) // in three orders
	}
	for i := range want {
		compared, err := p.CompareNext(1, sizes)
		if must.OK(t, err); compared != (i == len(want)-1) {
			t.Errorf("after %d batches all sizes are compared: %v", i+1, compared)
		}
		if ran, _ := f.History(); !slices.Equal(ran, want[:i+1]) {
			t.Fatalf("ran batches of %v, want %v", ran, want[:i+1])
		}
	}
}

// A process compares nothing if an earlier one with the same file has done so.
func TestRowsWereCompared(t *testing.T) {
	for _, same := range []bool{true, false} {
		h := newHarness(t, functiontest.Card())
		h.Card.Model = filepath.Join(t.TempDir(), "model")
		must.OK(t, os.WriteFile(h.Card.Model, []byte("a model"), 0o600))
		file, err := (&process{card: h.Card}).readModelFile()
		must.OK(t, err)
		h.grant = func(a *control.Attached) {
			if a.Compared = file.stamp; !same {
				a.Compared = "7 00000000"
			}
		}
		f := h.Fake()
		c := h.start(1, f.Build, nil)
		c.order(control.Order{Do: control.DoWake, SharePercent: 50})
		c.await(control.Ready)
		want := 1 + 2*4 // the largest size first, then each size twice
		if !same {
			want = 1 + 4 + 3*3 // each picture alone, one of them twice, and three orders of 2, 4 and 8
		}
		f.Mu.Lock()
		ran := f.Steps["infer"]
		f.Mu.Unlock()
		if ran != want {
			t.Errorf("same file: %v: ran %d batches, want %d", same, ran, want)
		}
		c.drained()
	}
}

// A model whose answers change from run to run, or a little with the batch size, is served.
func TestRowsThatMayDiffer(t *testing.T) {
	runs := 0
	for name, mix := range map[string]func(rows [][]float32){
		"rounding": func(rows [][]float32) {
			for _, r := range rows {
				r[0] *= 1 + 1e-5*float32(len(rows))
			}
		},
		"random numbers": func(rows [][]float32) {
			for _, r := range rows {
				runs++
				r[2] += float32(runs*7919%1000) * 100
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, functiontest.Card())
			c := h.start(1, (&mixing{h.Fake(), mix}).build, nil)
			c.order(control.Order{Do: control.DoWake, SharePercent: 50})
			c.await(control.Ready)
			c.drained()
		})
	}
}
