package loop

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
)

const (
	// manyOutputBytes of one image take longer to decode than a thread to wake.
	manyOutputBytes = 64 << 10
	// maxDecoders is enough to decode as fast as the fastest GPU infers.
	maxDecoders = 8
	// roomsPerDecoder is how many images a decoder decodes for one wake of its thread.
	roomsPerDecoder = 4
)

// NewDecoders makes a decoder for each thread that decodes a batch: one, or up to threads if an image has large outputs.
func NewDecoders(card *models.Card, threads int) (decoders []*decode.Decoder, err error) {
	bytes := 0
	for i := range card.Outputs {
		bytes += card.Outputs[i].Bytes()
	}
	if bytes < manyOutputBytes {
		threads = 1
	}
	for range max(1, min(threads, maxDecoders, card.MaxBatch())) {
		d, err := decode.New(card)
		if err != nil {
			return nil, err
		}
		decoders = append(decoders, d)
	}
	return decoders, nil
}

// decoding decodes images of a batch, as many at once as there are decoders. The loop's thread has the first decoder. Each
// takes the next image when it is done with one, so no thread waits for a slow one.
type decoding struct {
	card     *models.Card
	decoders []*decode.Decoder // of the batch's size; there are at most as many as of the largest size
	images   [][][]byte        // by decoder: an image's outputs
	selected [][][]byte        // by decoder: bitmaps of their rows
	rooms    []room
	tensors  *tensors.Tensors
	first    int          // image of rooms[0]
	taken    atomic.Int64 // rooms that a decoder has taken
	wake     chan int     // the index of a decoder with work
	running  sync.WaitGroup
}

// room is the place of an image's payload, and the result of its decoding.
type room struct {
	buffer  []byte // empty, with the capacity of the payload
	lowest  uint16 // score that the client wants
	place   wire.Place
	payload []byte
	kind    uint8
	err     error // set before: the image is not decoded
}

// errNoRoom fails a request whose result has no place.
var errNoRoom = errors.New("no room for results: the manager does not read those before")

func newDecoding(card *models.Card, decoders []*decode.Decoder) *decoding {
	rooms := 1
	if n := len(decoders); n > 1 {
		rooms = min(card.MaxBatch(), n*roomsPerDecoder)
	}
	d := &decoding{card: card, decoders: decoders, rooms: make([]room, 0, rooms), wake: make(chan int)}
	for range decoders {
		d.images = append(d.images, make([][]byte, len(card.Outputs)))
		d.selected = append(d.selected, make([][]byte, len(card.Outputs)))
	}
	return d
}

// start starts the other threads. They end with stop.
func (d *decoding) start() {
	for range d.decoders[1:] {
		go func() {
			for i := range d.wake {
				d.decode(i)
				d.running.Done()
			}
		}()
	}
}

func (d *decoding) stop() { close(d.wake) }

// placeOf returns where a request's picture lies in the model's input.
func placeOf(in *models.Input, p wire.Picture) wire.Place {
	if p.Format == 0 {
		return wire.Place{}
	}
	return sampling.Fit(in, p.Width, p.Height).Place(in, p.Width, p.Height)
}

// run decodes the images from first on, one per room.
func (d *decoding) run(size *Size, slot, first int) {
	d.decoders, d.tensors, d.first = size.Decoders, size.Tensors[slot], first
	d.taken.Store(0)
	for i := 1; i < min(len(d.decoders), len(d.rooms)); i++ {
		d.running.Add(1)
		d.wake <- i
	}
	d.decode(0)
	d.running.Wait()
}

// decode decodes images with decoder i until all are taken.
func (d *decoding) decode(i int) {
	for k := int(d.taken.Add(1)) - 1; k < len(d.rooms); k = int(d.taken.Add(1)) - 1 {
		r := &d.rooms[k]
		if r.err != nil {
			continue
		}
		d.tensors.Image(d.images[i], d.selected[i], d.first+k)
		var err error
		if r.payload, r.kind, err = d.decoders[i].AppendFrom(r.buffer, d.images[i], d.selected[i], r.lowest, r.place); err != nil {
			r.err = fmt.Errorf("decode outputs of %s: %w", d.card.Name, err)
		}
	}
}
