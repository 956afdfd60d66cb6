package serve

import (
	"bytes"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Answers returns the answers of a process on the CPU to pictures that arrive at
// once. It is for tests of frameworks, which this package's own tests cannot import.
func Answers(t *testing.T, card *models.Card, build framework.Build, pictures [][]byte) [][]byte {
	t.Helper()
	return newHarness(t, card).answers(build, pictures, nil)
}

// GPUAnswers returns the answers of a process on a GPU. Meanwhile the process moves
// to groups 0 and 1 of its multiprocessors.
func GPUAnswers(t *testing.T, device string, groupSMs []int, card *models.Card, build framework.Build, pictures [][]byte) [][]byte {
	t.Helper()
	h := &harness{Function: functiontest.NewSized(t, card, 2*card.OutputBytes()), device: device, split: groupSMs}
	return h.answers(build, pictures, []int{0, 1})
}

func (h *harness) answers(build framework.Build, pictures [][]byte, moveTo []int) [][]byte {
	h.TB.Helper()
	t := h.TB
	c := h.start(1, build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50})
	c.await(control.Ready)
	for i, p := range pictures {
		h.Publish(uint32(i), p, nil)
	}
	h.Channel.SetEpoch(1)
	answers := make([][]byte, len(pictures))
	for _, slot := range h.Replies(len(pictures)) {
		if got := h.Status(slot); got != wire.StatusOK {
			t.Errorf("picture %d is %v, want ok", slot, got)
		}
		answers[slot] = h.Payload(slot)
	}
	if moveTo != nil {
		c.moveTo(moveTo...)
		c.awaitGroups(moveTo...)
		h.Publish(0, pictures[0], nil)
		again := h.Replies(1)[0]
		if !bytes.Equal(h.Payload(again), answers[0]) {
			t.Error("after the move the first picture is answered otherwise")
		}
	}
	c.order(control.Order{Do: control.DoDrain})
	if err := c.end(); err != nil {
		t.Error(err)
	}
	return answers
}
