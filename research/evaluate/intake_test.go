package evaluate

import (
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// fast has plausible capacities of the models on an H200, in requests per second.
var fast = map[string]float64{alexnet: 60000, mobilenet: 15000, resnet50: 10500, resnet152: 4900, resnext50: 8500, vgg16: 7100, vgg19: 6400, gnmt: 27000}

// intakeOf returns a case's intake with the capacities in fast and pictures of 150
// KB.
func intakeOf(c *Case) intake {
	r := &runner{report: &Report{}}
	for model, perSecond := range fast {
		r.report.Capacity = append(r.report.Capacity, Capacity{Model: model, PerSecond: perSecond})
	}
	return r.intake(c, cardsOf(c))
}

// cardsOf returns cards with the models' real sizes, by function.
func cardsOf(c *Case) map[string]*models.Card {
	cards := map[string]*models.Card{}
	for _, f := range c.Functions {
		in := models.Input{Height: 224, Width: 224, Channels: 3, WireType: models.U8}
		if f.Model == gnmt {
			in = models.Input{Height: 1, Width: 5, Channels: 1, WireType: models.F32}
		}
		cards[f.Name] = &models.Card{Input: in}
	}
	return cards
}

// withRules changes the rules for one test.
func withRules(t *testing.T, change func(*intakeRules)) {
	before := rules
	t.Cleanup(func() { rules = before })
	change(&rules)
}

func checkSeveralReceivers(t *testing.T) {
	withRules(t, func(r *intakeRules) { r.BytesPerReceiver = 1 })
}

func TestIntake(t *testing.T) {
	everyCase(t, func(t *testing.T, _ *Figure, c *Case, _ string) {
		if c.Kind == kindBare {
			return
		}
		in := intakeOf(c)
		if bits.OnesCount(uint(in.slots)) != 1 || in.slots > configs.MaxSlots {
			t.Errorf("%d slots", in.slots)
		}
		const nodeMiB = 8 << 10
		if in.slabMiB*len(c.Functions) > nodeMiB {
			t.Errorf("%d functions have %d MiB each, want at most %d MiB of all", len(c.Functions), in.slabMiB, nodeMiB)
		}
		if len(in.receivers) != len(c.Functions) {
			t.Errorf("receivers %v of %d functions", in.receivers, len(c.Functions))
		}
		cards := cardsOf(c)
		for _, f := range c.Functions {
			n := in.receivers[f.Name]
			if n < 1 || n > rules.MaxReceivers || n > configs.MaxReceivers {
				t.Errorf("%s has %d receivers", f.Name, n)
			}
			// The fullest of 4 receivers may have half of the sockets, and so half of
			// the requests in flight.
			wire := cards[f.Name].Input.WireBytes()
			if part := in.slabMiB << 20 / n; part < in.slots*wire/min(n, 2) {
				t.Errorf("%s: a receiver's part is %d MiB, %d slots of %d bytes", f.Name, part>>20, in.slots, wire)
			}
			if c.Kind == kindClosed {
				continue
			}
			perSecond := c.peak(&f) * f.Weight * fast[f.Model]
			if len(c.Functions) > 1 { // in a mix, all functions together have 3.6 GB/s at level 1
				perSecond = min(perSecond, c.peak(&f)*f.Weight*3.6e9/float64(wire))
			}
			if late := perSecond * f.SLO.Seconds(); float64(in.slots) < late {
				t.Errorf("%s: %d slots, and %.0f requests come within the objective", f.Name, in.slots, late)
			}
			// One thread receives 3.6 GB/s.
			if bytes := perSecond * float64(wire); bytes/float64(n) > 3.6e9 {
				t.Errorf("%s: %d receivers for %.1f GB/s", f.Name, n, bytes/1e9)
			}
		}
	})
}

func TestReceiversPeak(t *testing.T) {
	loads := func(model string, weight float64, levels ...float64) Case {
		f := one(model, 25*ms)
		f[0].Weight = weight
		return Case{Kind: kindLoads, Functions: f, Levels: levels}
	}
	line := Case{Kind: kindTimeline, Functions: one(resnet50, 25*ms),
		Events: []Cue{{0, cueBegin, resnet50, 0.1}, {time.Second, cueRate, resnet50, 1.3}, {0, cueBegin, alexnet, 9}}}
	for name, c := range map[string]struct {
		c    Case
		want int
	}{
		"a light load":          {loads(resnet50, 1, 0.1, 0.5), 1},
		"more than 1 GB/s":      {loads(resnet50, 1, 0.1, 1.3), 2}, // 10,000 x 1.3 x 150,528 bytes
		"a part of a mix":       {loads(resnet50, 0.25, 0.1, 1.3), 1},
		"as many as there are":  {loads(alexnet, 1, 0.1, 1.3), 4},
		"small requests":        {loads(gnmt, 1, 1.3), 1},
		"the fastest of a line": {line, 2},
		"a closed loop":         {Case{Kind: kindClosed, Functions: one(gnmt, time.Second)}, 4},
	} {
		r := &runner{report: &Report{Capacity: []Capacity{{Model: resnet50, PerSecond: 10000}, {Model: alexnet, PerSecond: 60000}, {Model: gnmt, PerSecond: 27000}}}}
		in := r.intake(&c.c, cardsOf(&c.c))
		if got := in.receivers[c.c.Functions[0].Name]; got != c.want {
			t.Errorf("%s: %d receivers, want %d", name, got, c.want)
		}
		if again := r.intake(&c.c, cardsOf(&c.c)); !reflect.DeepEqual(again, in) {
			t.Errorf("%s: %+v, and then %+v", name, in, again)
		}
	}
}

func TestManySockets(t *testing.T) {
	for _, c := range []struct {
		receivers  int
		perSecond  float64
		open, loop int
	}{{1, 0, 1, 2}, {1, 3999, 1, 2}, {1, 9000, 3, 2}, {1, 1e6, 4, 2}, {2, 10, 16, 16}, {3, 10, 24, 24}, {4, 1e6, 32, 32}} {
		if open, loop := flows(c.receivers, c.perSecond), loopFlows(c.receivers); open != c.open || loop != c.loop {
			t.Errorf("%d receivers, %.0f/s: %d sockets, %d of a closed loop, want %d and %d", c.receivers, c.perSecond, open, loop, c.open, c.loop)
		}
	}
}

// A report that was measured by other rules is not continued.
func TestSettingsIntake(t *testing.T) {
	f, err := Find("fig8")
	must.OK(t, err)
	seen := map[string]string{}
	add := func(what string) {
		t.Helper()
		print, err := f.fingerprint(Options{})
		must.OK(t, err)
		if same, is := seen[print]; is {
			t.Errorf("%s: the settings are those of %s", what, same)
		}
		seen[print] = what
	}
	add("the rules as they are")
	kind := reflect.TypeFor[intakeRules]()
	for i := range kind.NumField() {
		t.Run(kind.Field(i).Name, func(t *testing.T) {
			withRules(t, func(r *intakeRules) {
				if v := reflect.ValueOf(r).Elem().Field(i); v.CanInt() {
					v.SetInt(v.Int() + 1)
				} else {
					v.SetFloat(v.Float() + 1)
				}
			})
			add(fmt.Sprintf("another %s", kind.Field(i).Name))
		})
	}
}

// A report is continued if nothing has changed for its own variants.
func TestSettingsVariants(t *testing.T) {
	f, err := Find("fig8")
	must.OK(t, err)
	before, err := f.fingerprint(Options{})
	must.OK(t, err)
	for i := range variants {
		v := &variants[i]
		t.Run(v.name, func(t *testing.T) {
			old := *v
			t.Cleanup(func() { *v = old })
			v.label += ", told otherwise"
			same, err := f.fingerprint(Options{})
			must.OK(t, err)
			if same != before {
				t.Error("another label changes the settings")
			}
			v.streams++
			after, err := f.fingerprint(Options{})
			must.OK(t, err)
			used := slices.ContainsFunc(f.Cases, func(c Case) bool { return slices.Contains(c.Variants, v.name) })
			if changed := after != before; changed != used {
				t.Errorf("the figure has it: %v; its settings change with it: %v", used, changed)
			}
		})
	}
}
