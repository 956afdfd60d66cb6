// Command callbacks is a model in Go: a program that links libml and has the six
// callbacks. The orchestrator starts it with the command of the card next to it. It
// answers with a picture's mean red, green and blue.
//
//	make build examples
//	bin/penstock up &
//	bin/penstock if add mean --model examples/callbacks/card.yaml --port 5014
//	bin/penstock load --rate mean=50 --duration 5s
//
// docs/models.md goes through it part by part.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"syscall"

	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/models"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.NewJSONHandler(os.Stderr, nil)
	build := func(*models.Card) (libml.Framework, error) { return &meanColour{batches: map[int]batch{}}, nil }
	if err := libml.Run(ctx, log, build); err != nil {
		fmt.Fprintln(os.Stderr, "callbacks:", err)
		os.Exit(1)
	}
}

// meanColour is the framework. It has nothing to load; a real one reads its
// weights in LoadModel and puts them on the device in LinkModel.
type meanColour struct {
	pixels  int
	batches map[int]batch // by size
}

// batch has the arguments of ConfigureBatch: libml's buffers, valid until Deinit.
type batch struct {
	input  []byte // n pictures, u8, [H, W, 3]
	output []byte // n times three f32
}

const channels = 3

// Init checks the card and the device, because only the program knows what the model can
// do. This model computes in Go, which cannot read a GPU's memory. A model for a GPU calls
// env.Stream in ConfigureBatch and queues its kernels on that stream in InferBatch.
func (m *meanColour) Init(env libml.Environment) error {
	if env.Device != libml.DeviceCPU {
		return fmt.Errorf("this model runs on the CPU only, and the node's device is %s", env.Device)
	}
	in := &env.Card.Input
	if in.Channels != channels || in.TensorType != models.U8 || in.TensorLayout != models.HWC {
		return fmt.Errorf("card has input of %d channels of %s in %s, want %d channels of u8 in hwc",
			in.Channels, in.TensorType, in.TensorLayout, channels)
	}
	if len(env.Card.Outputs) != 1 || env.Card.Outputs[0].Elements() != channels {
		return errors.New("want a card with one output, of shape [3]")
	}
	m.pixels = in.Height * in.Width
	return nil
}

// LoadModel has nothing to load into host memory.
func (m *meanColour) LoadModel() error { return nil }

// LinkModel has nothing to put on the device.
func (m *meanColour) LinkModel() (int64, error) { return 0, nil }

// ConfigureBatch keeps the buffers for the pictures and the answers of a batch of n.
func (m *meanColour) ConfigureBatch(_, n int, inputs, outputs []libml.Buffer) (int64, error) {
	m.batches[n] = batch{input: inputs[0].Bytes(), output: outputs[0].Bytes()}
	return 0, nil
}

// InferBatch averages each channel of each picture, in 0..255.
func (m *meanColour) InferBatch(_, n int) error {
	b := m.batches[n]
	size := m.pixels * channels
	for i := range n {
		var sum [channels]uint64
		picture := b.input[i*size : (i+1)*size]
		for p := 0; p < size; p += channels {
			sum[0] += uint64(picture[p])
			sum[1] += uint64(picture[p+1])
			sum[2] += uint64(picture[p+2])
		}
		for c, s := range sum {
			mean := float32(s) / float32(m.pixels)
			binary.LittleEndian.PutUint32(b.output[(i*channels+c)*4:], math.Float32bits(mean))
		}
	}
	return nil
}

// Deinit has nothing to free.
func (m *meanColour) Deinit() error { return nil }
