//go:build gpu

package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/reference"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/wire"
)

// tolerance is the max distance of the GPU's answers from the CPU's. It is what
// `penstock load` allows between two batch sizes of one device. The shipped models
// are f32 and are not rounded to TF32, so only the order of additions differs.
var tolerance = answer.Default

// The demo's three models must give the same answers as on the CPU.
func TestZooModels(t *testing.T) {
	n := start(t, `
functions:
  - {name: face, port: 0, slo: 20s}
  - {name: fashion, port: 0, slo: 20s}
  - {name: detect, port: 0, slo: 20s}
`)
	for _, name := range zoo.Names() {
		t.Run(name, func(t *testing.T) { answersAsOnTheCPU(t, n, name) })
	}
}

// answersAsOnTheCPU sends a function of the zoo its pictures, all at once.
func answersAsOnTheCPU(t *testing.T, n *node.Node, name string) {
	t.Helper()
	card, err := (zoo.Registry{Cache: t.TempDir()}).Find(name)
	must.OK(t, err)
	reference, err := reference.New(card, func(*models.Card) (framework.Framework, error) { return onnx.New(), nil })
	must.OK(t, err)
	defer reference.Close()
	comparer := answer.Comparer{Tolerance: tolerance}
	if threshold, ok := card.Decoder.Params["score_threshold"].(float64); ok {
		comparer.Tolerance.Threshold = threshold
	}
	f, err := n.Function(name)
	must.OK(t, err)
	pictures := picturesOf(t, card)
	type got struct {
		i int
		a answer.Answer
		r client.Result
	}
	answers := make(chan got, len(pictures))
	var c *client.Client
	dialled := make(chan struct{})
	c, err = client.Dial(t.Context(), fmt.Sprintf("127.0.0.1:%d", f.Port), client.Options{
		Timeout: 30 * time.Second, InFlight: 16, QueueLimit: 2 * len(pictures),
		Deliver: func(r *client.Result) {
			<-dialled
			if r.Err == nil && r.Status == client.StatusBusy { // send it again
				if _, err := c.Send(pictures[r.Tag], client.RequestOptions{Tag: r.Tag}); err == nil {
					return
				}
			}
			answers <- got{int(r.Tag), answer.Answer{Kind: r.Kind, Payload: append([]byte(nil), r.Payload...)}, *r}
		},
	})
	must.OK(t, err)
	close(dialled)
	defer c.Close()
	// All at once, so that batches of every size form.
	for i, p := range pictures {
		if _, err := c.Send(p, client.RequestOptions{Tag: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	wrong, batches := 0, map[int]int{}
	for range pictures {
		g := <-answers
		if g.r.Err != nil || g.r.Status != client.StatusOK {
			t.Fatalf("picture %d: %s, %v", g.i, g.r.Status, g.r.Err)
		}
		batches[g.r.Batch]++
		payload, kind, err := reference.Answer(pictures[g.i])
		must.OK(t, err)
		if err := comparer.Compare(g.a, answer.Answer{Kind: wire.Kind(kind), Payload: payload}); err != nil {
			if wrong++; wrong <= 5 {
				t.Errorf("picture %d, in a batch of %d: %v", g.i, g.r.Batch, err)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d answers differ from the CPU's", wrong, len(pictures))
	}
	t.Logf("%d answers within %+v, by batch size %v", len(pictures), comparer.Tolerance, batches)
}

// picturesOf returns the shipped pictures in a model's input format: either photos,
// each several times so that batches form, or the 1,000 labelled images.
func picturesOf(t *testing.T, card *models.Card) (list [][]byte) {
	t.Helper()
	if card.Name == "fashion" {
		images, _, err := zoo.FashionTest()
		must.OK(t, err)
		return images
	}
	photos, err := picture.Read(zoo.PictureFS(), "*.jpg")
	must.OK(t, err)
	const rounds = 20
	for range rounds {
		for _, photo := range photos {
			bytes, _ := picture.Resize(photo.Image, &card.Input)
			list = append(list, bytes)
		}
	}
	return list
}
