package libml

import (
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Answers are what a process says to pictures that come at once, for tests of
// frameworks, which this package's own cannot import.
func Answers(t *testing.T, card *models.Card, build Build, pictures [][]byte) [][]byte {
	t.Helper()
	b := newBed(t, card)
	c := b.start(1, build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50})
	c.await(control.Ready)
	for i, p := range pictures {
		b.publish(uint32(i), p, nil)
	}
	b.channel.SetEpoch(1)
	answers := make([][]byte, len(pictures))
	for _, slot := range b.replies(len(pictures)) {
		if got := b.status(slot); got != wire.StatusOK {
			t.Errorf("picture %d is %v, want ok", slot, got)
		}
		answers[slot] = append([]byte(nil), b.channel.ResultBytes(slot)...)
	}
	c.order(control.Order{Do: control.DoDrain})
	if err := c.end(); err != nil {
		t.Error(err)
	}
	return answers
}
