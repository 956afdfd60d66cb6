package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/jpeg"
	"net/http"
	"testing"

	"golang.org/x/image/draw"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	pictures "github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// A picture of another size has the same box in each format and over HTTP, in its own pixels.
func TestPicturesOfOtherSizes(t *testing.T) {
	nd, url := startWithGateway(t, "  - {name: any, model: face, port: 0, slo: 5s, max_picture: 512x500}\n")
	decoded := must.Get(pictures.Decode(t.Context(), photoOf(t)))(t)
	photo := image.NewRGBA(image.Rect(0, 0, 512, 400))
	draw.Draw(photo, photo.Rect, decoded, image.Point{}, draw.Src)
	want := faceOf(t, url, "face", photo)

	const padded = 4 * 512 // the stride of all formats
	rows := map[wire.PictureFormat]func(row, pixel []byte, x int){
		wire.FormatRGB8:  func(row, pixel []byte, x int) { copy(row[3*x:], pixel[:3]) },
		wire.FormatBGR8:  func(row, pixel []byte, x int) { row[3*x], row[3*x+1], row[3*x+2] = pixel[2], pixel[1], pixel[0] },
		wire.FormatRGBA8: func(row, pixel []byte, x int) { copy(row[4*x:], pixel[:4]) },
		wire.FormatGrey8: func(row, pixel []byte, x int) { row[x] = pixel[1] },
	}
	c := nodetest.Dial(t, nd, "any", client.Options{Timeout: patience})
	for format, put := range rows {
		pixels := make([]byte, padded*400)
		for i := range 512 * 400 {
			put(pixels[i/512*padded:], photo.Pix[4*i:], i%512)
		}
		sent := wire.Picture{Format: format, Width: 512, Height: 400, Stride: padded}
		r, err := c.Do(t.Context(), pixels, client.RequestOptions{Picture: sent, Deadline: patience})
		must.OK(t, err)
		boxes := must.Get(wire.DecodeBoxes(nil, r.Payload))(t)
		if len(boxes) != 1 {
			t.Fatalf("%s: %d boxes", format, len(boxes))
		}
		b := boxes[0]
		near(t, format.String(), [4]float32{b.X0 * 512, b.Y0 * 400, b.X1 * 512, b.Y1 * 400}, want, 8)
	}

	// The gateway samples photos itself, whatever their size.
	near(t, "over HTTP", faceOf(t, url, "any", photo), want, 2)
	large := image.NewRGBA(image.Rect(0, 0, 1024, 800))
	draw.ApproxBiLinear.Scale(large, large.Rect, photo, photo.Rect, draw.Src, nil)
	for i := range want {
		want[i] *= 2
	}
	near(t, "a large photo", faceOf(t, url, "any", large), want, 8)

	// Function face takes only its card's pictures.
	c = nodetest.Dial(t, nd, "face", client.Options{Timeout: patience})
	sent := wire.Picture{Format: wire.FormatGrey8, Width: 64, Height: 64}
	if r, err := c.Do(t.Context(), make([]byte, 64*64), client.RequestOptions{Picture: sent}); r.Status != client.StatusRefused {
		t.Errorf("without max_picture: %v, %v, want %v", r.Status, err, client.StatusRefused)
	}
}

// near fails if a corner is too far from the right one, in pixels.
func near(t *testing.T, name string, got, want [4]float32, most float32) {
	t.Helper()
	for i := range got {
		if d := got[i] - want[i]; d < -most || d > most {
			t.Errorf("%s: box %v, want %v", name, got, want)
			return
		}
	}
}

// faceOf returns the corners of the one face in a photo, by HTTP.
func faceOf(t *testing.T, url, function string, photo image.Image) (box [4]float32) {
	t.Helper()
	var file bytes.Buffer
	must.OK(t, jpeg.Encode(&file, photo, &jpeg.Options{Quality: 95}))
	response, err := http.Post(fmt.Sprintf("%s/v2/models/%s/infer?timeout=10s", url, function), "image/jpeg", &file)
	must.OK(t, err)
	defer response.Body.Close()
	var answer struct{ Outputs []struct{ Data []float32 } }
	if json.NewDecoder(response.Body).Decode(&answer); len(answer.Outputs) == 0 || copy(box[:], answer.Outputs[0].Data) != 4 {
		t.Fatalf("%s: %s, %+v", function, response.Status, answer)
	}
	return box
}
