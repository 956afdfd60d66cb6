package cpu

import (
	"fmt"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// pictures samples pictures of any size and format, straight from their fragments. One goroutine at a time may use it.
type pictures struct {
	in      *models.Input
	sampler *sampling.Sampler
	from    fragments
}

// sample writes the tensor's image of a picture.
func (p *pictures) sample(image []byte, picture wire.Picture, ordered []shm.Fragment, slabs [][]byte) (err error) {
	if p.sampler == nil {
		p.sampler, err = sampling.New(*p.in)
	}
	if err == nil {
		p.from.slabs, p.from.ordered, p.from.at = slabs, ordered, [planes]int{}
		err = p.sampler.Sample(image, picture, sampling.Fit(p.in, picture.Width, picture.Height), &p.from)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", device.ErrPicture, err)
	}
	return nil
}

// planes is the max number of planes of a picture.
const planes = 3

// fragments is a picture in the fragments of a request, in order and without gaps. It implements sampling.Source. Each plane
// has a cursor, because places ascend within a plane. A row is copied only if it lies in several fragments.
type fragments struct {
	slabs   [][]byte
	ordered []shm.Fragment
	at      [planes]int // the fragment of the last bytes
	rows    [planes][]byte
}

func (f *fragments) Bytes(plane, place, count int) []byte {
	at := f.at[plane]
	for int(f.ordered[at].Place) > place {
		at--
	}
	for place >= int(f.ordered[at].Place)+int(f.ordered[at].Length) {
		at++
	}
	f.at[plane] = at
	first := f.rest(at, place)
	if len(first) >= count {
		return first[:count]
	}
	row := append(f.rows[plane][:0], first...)
	for len(row) < count {
		at++
		more := f.rest(at, place+len(row))
		row = append(row, more[:min(len(more), count-len(row))]...)
	}
	f.rows[plane] = row
	return row
}

// rest returns the bytes of a fragment from a place of the picture on.
func (f *fragments) rest(i, place int) []byte {
	p := &f.ordered[i]
	return f.slabs[p.Slab][p.Offset:][place-int(p.Place) : p.Length]
}
