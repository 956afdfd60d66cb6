package gateway

import (
	"image"
	"time"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/publish"
)

// publishHTTP publishes the answer to a picture of HTTP inference, which is as large as size. err is
// that of the function.
func (s *server) publishHTTP(f *functions.Function, size image.Point, a *functions.Answer, found []functions.Detection, took time.Duration, err error) {
	if s.publishers.Empty() {
		return
	}
	s.publishers.Publish(publish.FromHTTP(f, size, a, f.Items(*a, found), took, err))
}

// publishTensor is publishHTTP for a picture in the format of the model's input.
func (s *server) publishTensor(f *functions.Function, a *functions.Answer, took time.Duration, err error) {
	size := image.Pt(f.Card.Input.Width, f.Card.Input.Height)
	s.publishHTTP(f, size, a, f.InInput(a), took, err)
}
