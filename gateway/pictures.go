package gateway

import (
	"bytes"
	"context"
	"fmt"
	"image/jpeg"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/models/picture"
)

// pictures brings the pictures that the manager has copied (`pictures:` of a function) to the wall.
// It asks for them only while a page is open.
type pictures struct {
	dir       string // runtime folder
	functions *functions.Set
	wall      *wall
	log       zerolog.Logger

	asked map[string]uint64 // the last number by function; used by observe alone
	due   chan []string     // functions with a new picture
}

func newPictures(o Options, set *functions.Set, w *wall) *pictures {
	return &pictures{dir: o.Dir, functions: set, wall: w, log: o.Log, asked: map[string]uint64{}, due: make(chan []string, 1)}
}

// observe looks for new pictures in a sample. One goroutine at a time may call it.
func (p *pictures) observe(sample *control.Sample) {
	var due []string
	for i := range sample.Functions {
		if f := &sample.Functions[i]; f.Picture != 0 && f.Picture != p.asked[f.Name] {
			due = append(due, f.Name)
		}
	}
	if len(due) == 0 {
		return
	}
	select {
	case p.due <- due:
	default: // still busy with the last ones; the next sample tries again
		return
	}
	for i := range sample.Functions {
		p.asked[sample.Functions[i].Name] = sample.Functions[i].Picture
	}
}

// run fetches pictures until ctx ends.
func (p *pictures) run(ctx context.Context) {
	for {
		select {
		case due := <-p.due:
			for _, name := range due {
				if err := p.fetch(ctx, name); err != nil && ctx.Err() == nil {
					p.log.Debug().Err(err).Str("if", name).Msg("fetch picture")
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// fetch shows the newest picture of a function. It leaves out the gateway's own requests, whose
// photos the wall has already.
func (p *pictures) fetch(ctx context.Context, name string) error {
	f, err := p.functions.Function(name)
	if err != nil {
		return err
	}
	copied, err := control.ReadPicture(ctx, p.dir, name)
	if err != nil {
		return err
	}
	if f.LocalAddr() == copied.From || copied.ModelVersion != f.Card.Version {
		return nil
	}
	photo, answer, found, err := f.Read(copied.Shape, copied.Pixels, copied.Kind, copied.Payload)
	if err != nil {
		return err
	}
	width := photo.Bounds().Dx()
	if raw, ok := photo.(*picture.Raw); ok {
		photo = shrink(raw)
	}
	var file bytes.Buffer
	if err := jpeg.Encode(&file, photo, nil); err != nil {
		return fmt.Errorf("encode picture of %s: %w", name, err)
	}
	p.wall.add(&wallPicture{file: file.Bytes(), at: copied.Answered, shown: shown{
		Function: name, LatencyMS: millis(copied.Latency), Found: seenIn(f.Items(answer, found)), Client: copied.From.String(), Width: width,
	}})
	return nil
}
