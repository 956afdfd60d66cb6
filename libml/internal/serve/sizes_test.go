package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/models"
)

// The sizes of a card that leaves them to Penstock.
func TestAutoBatches(t *testing.T) {
	all := functiontest.Card().Batches
	for name, c := range map[string]struct {
		slo     time.Duration // 0: that of the card, an hour
		mix     string        // of mixes
		gpu     bool
		partial bool
		want    []int
	}{
		"CPU":                  {want: all},
		"CPU, mixed rows":      {mix: "rows swapped", want: all[:1]},
		"GPU":                  {gpu: true, want: all},
		"GPU, mixed rows":      {gpu: true, mix: "rows swapped", want: all[:1]},
		"CPU, slow":            {slo: time.Nanosecond, want: all[:1]},
		"CPU, slow, partially": {slo: time.Nanosecond, partial: true, want: all[:1]},
		"GPU, slow":            {gpu: true, slo: time.Nanosecond, want: all},
	} {
		t.Run(name, func(t *testing.T) {
			card := functiontest.Card()
			card.AutoBatches = true
			newHarness := map[bool]func(testing.TB, *models.Card) *harness{false: newHarness, true: newGPUHarness}[c.gpu]
			h := newHarness(t, card)
			if c.slo > 0 {
				h.SLO = c.slo
			}
			m := &mixing{h.Fake(), func([][]float32) {}}
			if c.mix != "" {
				m.mix = mixes[c.mix]
			}
			p := h.start(1, m.build, nil)
			p.order(control.Order{Do: control.DoWake, SharePercent: 50, PartialWarmUp: c.partial})
			if n := p.await(control.Ready); n.WarmingUp || !slices.Equal(n.Batches, c.want) {
				t.Errorf("ready with batches of %v, more to come: %v; want %v", n.Batches, n.WarmingUp, c.want)
			}
			h.Channel.SetEpoch(1)
			h.Publish(3, h.Picture(3), nil)
			h.Answered(h.Replies(1)[0], h.Picture(3))
		})
	}
}
