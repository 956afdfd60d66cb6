package gateway

import (
	"bytes"
	"context"
	"image"
	"image/jpeg"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/models/picture"
)

// The wall shows frames of streams at most every frameInterval per function, at most frameSide
// pixels wide and high.
const (
	frameInterval = time.Second
	frameSide     = 640
)

// frames brings frames of streams to the wall.
type frames struct {
	wall *wall

	mu    sync.Mutex
	shown map[string]time.Time // by function
}

// observe shows a frame with its answer.
func (f *frames) observe(r stream.Result) {
	if r.Status != client.StatusOK.String() || !f.due(r.Function) {
		return
	}
	var file bytes.Buffer
	if err := jpeg.Encode(&file, shrink(r.Frame.Image), nil); err != nil {
		return // a buffer takes everything, and the size is right
	}
	f.wall.show(r.Function, file.Bytes(), r.Age, r.Items, r.Frame.Image.Bounds().Dx())
}

// shrink fits a picture into frameSide pixels.
func shrink(raw *picture.Raw) image.Image {
	size := raw.Bounds().Size()
	factor := min(1, frameSide/float64(max(size.X, size.Y)))
	return raw.RGBA(image.Pt(max(1, int(float64(size.X)*factor)), max(1, int(float64(size.Y)*factor))))
}

// due reports whether a function's next frame is shown.
func (f *frames) due(function string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.shown[function]) < frameInterval {
		return false
	}
	f.shown[function] = now
	return true
}

// runStreams keeps the streams running until ctx ends. They begin when the functions are known.
func (s *server) runStreams(ctx context.Context) {
	tick := time.NewTicker(functions.Interval)
	defer tick.Stop()
	for s.functions.Alive() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	s.streams.Run(ctx)
}
