package cpu

import (
	"errors"
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

var errNoPicture = errors.New("the function takes no pictures")

// sample writes the tensor's image of a request's picture.
func (p *pictures) sample(image []byte, req device.Request, ordered []shm.Fragment, slabs [][]byte) error {
	if !p.in.IsPicture() {
		return errNoPicture
	}
	if p.sampler == nil {
		var err error
		if p.sampler, err = sampling.New(*p.in); err != nil {
			return err
		}
	}
	switch bytes, err := req.Picture.Bytes(); {
	case err != nil:
		return err
	case bytes != int(req.Bytes):
		return fmt.Errorf("request has %d bytes, and a picture of %d x %d pixels of %s has %d", req.Bytes, req.Picture.Width, req.Picture.Height, req.Picture.Format, bytes)
	}
	p.from.slabs, p.from.ordered, p.from.at = slabs, ordered, [planes]int{}
	return p.sampler.Sample(image, req.Picture, sampling.Fit(p.in, req.Picture.Width, req.Picture.Height), &p.from)
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

// plain returns the card's own picture in the words of requests. Without a format there is none.
func plain(in *models.Input) (p wire.Picture) {
	if in.IsPicture() && !in.UYVY && (in.WireLayout == models.HWC || in.Channels == 1) {
		p = wire.Picture{Format: wire.FormatRGB8, Width: in.Width, Height: in.Height}
		if in.Channels == 1 {
			p.Format = wire.FormatGrey8
		}
		p.Stride = p.RowBytes()
	}
	return p
}
