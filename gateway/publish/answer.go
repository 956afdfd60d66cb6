package publish

import (
	"image"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// Answer is what a receiver gets: the line of `penstock stream -o jsonl` with the time. For HTTP
// inference the stream is configs.FromHTTP, and frame and pts are 0.
type Answer struct {
	Time time.Time `json:"time"`
	stream.Line
	// Kind says what the model finds.
	Kind wire.Kind `json:"-"`

	payload []byte // as on the wire (docs/wire.md)
}

// FromStream is the answer to a frame.
func FromStream(r *stream.Result) *Answer {
	return &Answer{Time: time.Now(), Line: r.Line(), Kind: r.Answer.Kind, payload: r.Answer.Payload}
}

// FromHTTP is the answer to a picture of HTTP inference. err is that of functions.Function. It returns
// nil if the function did not decide the answer, for example because the client has gone.
func FromHTTP(f *functions.Function, size image.Point, a *functions.Answer, items []functions.Item, took time.Duration, err error) *Answer {
	r := stream.Result{
		Stream: configs.FromHTTP, Function: f.Name, Frame: stream.Frame{Image: &picture.Raw{Shape: wire.Picture{Width: size.X, Height: size.Y}}},
		Age: took, Status: stream.StatusOf(err), Err: err, Answer: *a, Items: items,
	}
	if r.Status == stream.StatusError || r.Status == stream.StatusUnknown {
		return nil
	}
	return FromStream(&r)
}
