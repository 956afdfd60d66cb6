//go:build gpu

package gpu

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/wire"
)

// TestSelectedRows compares answers from selected rows with those from all rows, and reports how long both take.
func TestSelectedRows(t *testing.T) {
	yolo := func(shape ...int64) *models.Card {
		return &models.Card{
			Name: fmt.Sprint("yolo ", shape), Input: models.Input{
				Height: 640, Width: 640, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.F32, TensorLayout: models.CHW,
			},
			Outputs: []models.Tensor{{Name: "output0", Type: models.F32, Shape: shape}}, Decoder: models.Decoder{Name: "yolo"},
		}
	}
	detect, err := (zoo.Registry{Cache: t.TempDir()}).Find("detect")
	must.OK(t, err)
	for _, c := range []struct {
		card *models.Card
		high float32 // a score above the threshold
	}{{yolo(84, 8400), 0.9}, {yolo(25200, 85), 0.9}, {detect, 0.9}} {
		t.Run(c.card.Name, func(t *testing.T) {
			runtime.LockOSThread()
			decoder, err := decode.New(c.card)
			must.OK(t, err)
			outputs := sparseOutputs(c.card, decoder.Selections(), c.high)
			all, allTook := answersOf(t, c.card, decoder, outputs, nil)
			selected, took := answersOf(t, c.card, decoder, outputs, decoder.Selections())
			for i := range all {
				if len(all[i]) == 0 || !bytes.Equal(all[i], selected[i]) {
					t.Errorf("image %d: %d bytes from selected rows, %d from all", i, len(selected[i]), len(all[i]))
				}
			}
			for i, images := range batchesOfSelected {
				t.Logf("batch of %d: fetched in %v, decoded in %v; all rows %v, %v", images, took[i][0], took[i][1], allTook[i][0], allTook[i][1])
			}
		})
	}
}

var batchesOfSelected = []int{1, 8, 32}

const mostSelected = 32

// sparseOutputs returns outputs with about forty high scores per image.
func sparseOutputs(card *models.Card, list []device.Selection, high float32) (outputs [][]byte) {
	random := rand.New(rand.NewPCG(3, 36))
	for _, o := range card.Outputs {
		output := make([]byte, 0, mostSelected*o.Bytes())
		for range mostSelected * o.Elements() {
			output = binary.LittleEndian.AppendUint32(output, math.Float32bits(random.Float32()*0.2))
		}
		outputs = append(outputs, output)
	}
	for _, s := range list {
		for image := range mostSelected {
			for range 40 / len(list) {
				row, size := random.IntN(s.Rows), card.Outputs[s.Scores.Output].Elements()
				set := func(t device.Table, column int, v float32) {
					at := image*size + t.First + row*t.RowStride + column*t.ColumnStride
					binary.LittleEndian.PutUint32(outputs[t.Output][4*at:], math.Float32bits(v))
				}
				set(s.Scores, random.IntN(s.Scores.Columns), high)
				if len(card.Outputs) == 1 { // a place and a size in pixels; of yolov5 a class, too
					for column, v := range []float32{600 * random.Float32(), 600 * random.Float32(), 50, 50} {
						set(s.Read[0], column, v)
					}
					if s.Scores.Columns == 1 {
						set(s.Read[0], 5+random.IntN(80), high)
					}
				}
			}
		}
	}
	return outputs
}

// answersOf fetches and decodes outputs. took are the medians of both, by batchesOfSelected.
func answersOf(t *testing.T, card *models.Card, decoder *decode.Decoder, outputs [][]byte, list []device.Selection) (answers [][]byte, took [][2]time.Duration) {
	d, err := gpu.New(card.Input, gpu.Options{Device: "cuda"})
	must.OK(t, err)
	sizes := device.Sizes{Input: card.Input.BatchBytes(mostSelected), Selections: list}
	for _, o := range outputs {
		sizes.Outputs = append(sizes.Outputs, len(o))
	}
	shared, err := unix.Mmap(-1, 0, gpu.SharedBytes(sizes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	must.OK(t, err)
	defer func() {
		must.OK(t, d.Close())
		must.OK(t, unix.Munmap(shared))
	}()
	tensors, err := d.Tensors(shared, sizes)
	must.OK(t, err)
	for o, output := range outputs {
		must.OK(t, d.Upload(0, tensors[0].Outputs[o], output))
	}
	fetch := func(images int) {
		must.OK(t, d.Fetch(0, images))
		_, err := d.Wait(0)
		must.OK(t, err)
	}
	fetch(0) // the upload
	part := func(all [][]byte, i int) (image [][]byte) {
		for _, b := range all {
			image = append(image, b[i*len(b)/mostSelected:(i+1)*len(b)/mostSelected])
		}
		return image
	}
	for _, images := range batchesOfSelected {
		const rounds = 21
		var fetched, decoded []time.Duration
		for range rounds {
			begin := time.Now()
			fetch(images)
			middle := time.Now()
			answers = answers[:0]
			for i := range images {
				payload, _, err := decoder.AppendFrom(nil, part(tensors[0].Results, i), part(tensors[0].Selected, i), 0, wire.Place{})
				must.OK(t, err)
				answers = append(answers, payload)
			}
			fetched, decoded = append(fetched, middle.Sub(begin)), append(decoded, time.Since(middle))
		}
		slices.Sort(fetched)
		slices.Sort(decoded)
		took = append(took, [2]time.Duration{fetched[rounds/2], decoded[rounds/2]})
	}
	return answers, took
}
