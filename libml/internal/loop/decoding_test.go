package loop

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// manyClasses is a card whose images have large outputs.
func manyClasses() *models.Card {
	card := functiontest.Card()
	card.Outputs = []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{manyOutputBytes / 4}}}
	card.Decoder = models.Decoder{Name: "topk", Params: map[string]any{"k": int64(3)}}
	return card
}

// A batch is decoded on several threads, and each request gets its own answer or failure.
func TestDecoding(t *testing.T) {
	h := newHarness(t, manyClasses())
	l := h.loop(h.Fake())
	if n := len(l.decoding.decoders); n != 4 {
		t.Fatalf("%d decoders, want one per thread", n)
	}
	l.decoding.start()
	defer l.decoding.stop()
	reference, err := decode.New(h.Card)
	must.OK(t, err)
	const requests, poisoned = 6, 4
	for slot := range uint32(requests) {
		picture := h.Picture(byte(slot))
		if slot == poisoned {
			picture[0] = functiontest.Poison
		}
		h.Publish(slot, picture, nil)
	}
	l.Queue.State.Limit = requests
	for l.take(); len(l.Queue.Pending) > 0; {
		l.beginOne(t)
		_ = l.finish() // fails for the poisoned one
	}
	h.Replies(requests)
	for slot := range uint32(requests) {
		if slot == poisoned {
			if got := h.Status(slot); got != wire.StatusFailed {
				t.Errorf("the answer of NaN is %v", got)
			}
			continue
		}
		var output []byte
		for e := range h.Card.Outputs[0].Elements() {
			output = binary.LittleEndian.AppendUint32(output, math.Float32bits(functiontest.SumOf(h.Picture(byte(slot)))+float32(e)))
		}
		want, _, err := reference.Append(nil, [][]byte{output})
		must.OK(t, err)
		if got := h.Channel.ResultBytes(slot); h.Status(slot) != wire.StatusOK || !bytes.Equal(got, want) {
			t.Errorf("slot %d is answered %x, want %x", slot, got, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { l.decoding.run(&l.sizes[0], 0, 0) }); n > 0 {
		t.Errorf("decoding allocates %v times", n)
	}
}

const rows, scoreBelow = 64, 12 // the outputs of functiontest are the sum of the picture, plus the row

// rowsCard is a card of a detector.
func rowsCard() *models.Card {
	card := functiontest.Card()
	card.Outputs = []models.Tensor{{Name: "scores", Type: models.F32, Shape: []int64{rows, 1}}, {Name: "boxes", Type: models.F32, Shape: []int64{rows, 4}}}
	card.Decoder = models.Decoder{Name: "boxes", Params: map[string]any{
		"style": "ssd-anchors", "scale": int64(16384), "iou_threshold": 1.0, "max_boxes": int64(10), "score_threshold": 1 / (1 + math.Exp(-scoreBelow)),
		"grids": []any{map[string]any{"size": int64(8), "anchors": int64(1), "scores": "scores", "boxes": "boxes"}},
	}}
	return card
}

// On a GPU only the rows above the threshold are fetched, of each image its own.
func TestSelectedRows(t *testing.T) {
	card := rowsCard()
	h := newGPUHarness(t, card)
	l := h.loop(h.Fake())
	reference, err := decode.New(card)
	must.OK(t, err)
	const requests = 4
	pictures := make([][]byte, requests)
	for slot := range uint32(requests) {
		pictures[slot] = make([]byte, card.Input.WireBytes())
		pictures[slot][0] = byte(slot)
		h.Publish(slot, pictures[slot], nil)
	}
	l.Queue.State.Limit = requests
	l.take()
	l.beginOne(t)
	must.OK(t, l.finish())
	h.Replies(requests)
	for slot, picture := range pictures {
		selected, want := uint64(math.MaxUint64)<<(scoreBelow-slot), make([][]byte, len(card.Outputs))
		if got := binary.LittleEndian.Uint64(l.Tensors[0].Selected[0][rows/8*slot:]); got != selected {
			t.Errorf("image %d has rows %#x, want %#x", slot, got, selected)
		}
		for o := range want {
			for e := range card.Outputs[o].Elements() {
				want[o] = models.F32.Append(want[o], float64(functiontest.SumOf(picture)+float32(100*o+e)))
			}
		}
		payload, _, err := reference.Append(nil, want)
		must.OK(t, err)
		if got := h.Channel.ResultBytes(uint32(slot)); len(got) == 0 || !bytes.Equal(got, payload) {
			t.Errorf("slot %d is answered %x, want %x", slot, got, payload)
		}
	}
}

// A request gets no scores below those that it wants.
func TestLowestScore(t *testing.T) {
	card := functiontest.Card()
	card.Outputs = card.Outputs[:1]
	card.Decoder = models.Decoder{Name: "topk"}
	h := newHarness(t, card)
	l := h.loop(h.Fake())
	blank := make([]byte, card.Input.WireBytes()) // scores 2, 1 and 0
	h.Publish(0, blank, nil)
	h.Publish(1, blank, func(r *shm.Request, _ []shm.Fragment) { r.LowestScore = math.MaxUint16 })
	l.Queue.State.Limit = 2
	l.take()
	l.beginOne(t)
	must.OK(t, l.finish())
	h.Replies(2)
	for slot, want := range []int{3, 2} {
		got, err := wire.DecodeTopK(nil, h.Channel.ResultBytes(uint32(slot)))
		if err != nil || len(got) != want {
			t.Errorf("slot %d is answered %v, %v, want %d classes", slot, got, err, want)
		}
	}
}

// An image with small outputs is decoded before another thread would have woken.
func TestDecodersOfSmallOutputs(t *testing.T) {
	card := manyClasses()
	for _, c := range []struct{ elements, threads, want int }{{manyOutputBytes/4 - 1, 8, 1}, {manyOutputBytes / 4, 3, 3}, {manyOutputBytes / 4, 100, 8}, {manyOutputBytes / 4, 0, 1}} {
		card.Outputs[0].Shape = []int64{int64(c.elements)}
		if d, err := NewDecoders(card, c.threads); err != nil || len(d) != c.want {
			t.Errorf("%+v: %d decoders, %v", c, len(d), err)
		}
	}
}

func BenchmarkDecoding(b *testing.B) {
	for _, threads := range []int{1, 2} {
		b.Run(map[int]string{1: "one thread", 2: "two threads"}[threads], func(b *testing.B) {
			h := newHarness(b, manyClasses())
			l := h.loop(h.Fake())
			l.decoding = newDecoding(h.Card, l.Decoders[:threads])
			l.decoding.start()
			defer l.decoding.stop()
			const images = 8
			for b.Loop() {
				for first := 0; first < images; first += cap(l.decoding.rooms) {
					l.decoding.rooms = l.decoding.rooms[:cap(l.decoding.rooms)]
					for i := range l.decoding.rooms {
						l.decoding.rooms[i] = room{buffer: l.Ring.ResultBuffer(0)[:0]}
					}
					l.decoding.run(&l.sizes[0], 0, first)
				}
			}
		})
	}
}

// The answer to a picture of another size is about that picture.
func TestPlaceOfPicture(t *testing.T) {
	in := &models.Input{Height: 416, Width: 416}
	if got := placeOf(in, wire.Picture{}); got != (wire.Place{}) {
		t.Errorf("the card's picture is at %v", got)
	}
	if got, want := placeOf(in, wire.Picture{Format: wire.FormatNV12, Width: 1920, Height: 1080}), (wire.Place{Y: 91. / 416, Width: 1, Height: 234. / 416}); got != want {
		t.Errorf("a wide picture is at %v, want %v", got, want)
	}
}
