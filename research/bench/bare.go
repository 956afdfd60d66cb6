package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// Bare is the report of `penstock-lab bare`: a framework in a closed loop on a device,
// using only the six callbacks and no other part of Penstock. It is the floor of `bench
// overhead`.
type Bare struct {
	Machine testbed.Machine `json:"machine"`
	Model   string          `json:"model"`
	Device  string          `json:"device"`
	Batch   int             `json:"batch"`
	// Streams is the number of batches in flight, each on its own stream.
	Streams int `json:"streams"`
	// ImagesPerSecond is the rate of all streams together. Time is of one batch, from its
	// call until the host knows that it is done.
	ImagesPerSecond float64 `json:"images_per_s"`
	Time            Micros  `json:"batch_us"`
	PersistentBytes int64   `json:"persistent_bytes"`
}

// bareWarmup is how many batches of a slot are not counted.
const bareWarmup = 20

// RunBare measures one model at one batch size for duration. The input does not change:
// nothing is copied to the device or back.
func RunBare(ctx context.Context, o Setup, build libml.Build, model string, batch, streams int, duration time.Duration) (_ Bare, err error) {
	r := Bare{Machine: o.Machine, Model: model, Batch: batch, Streams: streams}
	card, err := o.Card(model)
	if err != nil {
		return r, err
	}
	runtime.LockOSThread() // devices are bound to threads
	defer runtime.UnlockOSThread()
	b, err := openBare(o.Device, build, card, batch, streams)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	r.Device, r.PersistentBytes = b.device.Name(), b.persistentBytes
	for slot := range streams {
		if err := b.configure(slot, batch); err != nil {
			return r, fmt.Errorf("configure batch of %d: %w", batch, err)
		}
	}
	times, took, err := b.closed(ctx, batch, streams, bareWarmup, duration)
	if err != nil {
		return r, err
	}
	r.ImagesPerSecond = float64(len(times)*batch) / took.Seconds()
	r.Time = micros(times)
	return r, nil
}

// bareModel is a model that a framework has linked on a device, with the batch tensors that
// libml would give it. Only the thread that opened it may use it.
type bareModel struct {
	card            *models.Card
	device          device.Device
	framework       libml.Framework
	tensors         []device.Tensors // of each slot
	persistentBytes int64

	memory []byte // the tensors may be parts of it
}

// openBare links the card's model on a device. batch and streams are the max images per
// batch and the max batches in flight. The caller closes it.
func openBare(name string, build libml.Build, card *models.Card, batch, streams int) (_ *bareModel, err error) {
	b := &bareModel{card: card}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.device, err = openDevice(name, card.Input); err != nil {
		return nil, err
	}
	if streams > b.device.InFlight() {
		return nil, fmt.Errorf("%d batches in flight on %s: it takes %d", streams, b.device.Name(), b.device.InFlight())
	}
	if err := b.device.Bind(); err != nil {
		return nil, err
	}
	if b.tensors, b.memory, err = mapTensors(b.device, card, batch); err != nil {
		return nil, err
	}
	framework, err := build(card)
	if err != nil {
		return nil, err
	}
	environment := libml.Environment{Card: card, Threads: runtime.NumCPU(), Log: slog.New(slog.DiscardHandler), Device: b.device.Name()}
	if p, ok := b.device.(device.Partitioned); ok {
		environment.Stream = p.Stream
	}
	if err := framework.Init(environment); err != nil {
		return nil, fmt.Errorf("init %s: %w", card.Framework, err)
	}
	b.framework = framework
	if err := framework.LoadModel(); err != nil && !errors.Is(err, libml.ErrNoHostStage) {
		return nil, fmt.Errorf("load model %s: %w", card.Name, err)
	}
	if b.persistentBytes, err = framework.LinkModel(); err != nil {
		return nil, fmt.Errorf("link model %s: %w", card.Name, err)
	}
	return b, nil
}

// close releases everything that was opened, in reverse order.
func (b *bareModel) close() error {
	var errs []error
	if b.framework != nil {
		errs = append(errs, b.framework.Deinit())
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
	}
	if b.memory != nil {
		errs = append(errs, unix.Munmap(b.memory))
	}
	return errors.Join(errs...)
}

// configure prepares batches of n in a slot.
func (b *bareModel) configure(slot, n int) error {
	return configureBare(b.framework, b.card, b.tensors[slot], slot, n)
}

// mapTensors makes the tensors of each slot, for batches of at most that many images. The
// tensors may be parts of memory. The caller unmaps memory after it has closed the device.
// memory is valid even if the device returns an error.
func mapTensors(d device.Device, card *models.Card, batch int) (tensors []device.Tensors, memory []byte, err error) {
	sizes := device.Sizes{Input: batch * card.Input.TensorBytes()}
	// Larger than any device needs: input and outputs for each slot, aligned.
	room := device.Slots * (sizes.Input + 2*device.TensorAlign)
	for i := range card.Outputs {
		n := batch * card.Outputs[i].Bytes()
		sizes.Outputs = append(sizes.Outputs, n)
		room += device.Slots * (n + device.TensorAlign)
	}
	if memory, err = unix.Mmap(-1, 0, room, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON); err != nil {
		return nil, nil, fmt.Errorf("map memory: %w", err)
	}
	tensors, err = d.Tensors(memory, sizes)
	return tensors, memory, err
}

// configureBare prepares batches of n in a slot, in the first bytes of its tensors.
func configureBare(framework libml.Framework, card *models.Card, t device.Tensors, slot, n int) error {
	var outputs []libml.Buffer
	for i, out := range t.Outputs {
		outputs = append(outputs, out.Slice(0, n*card.Outputs[i].Bytes()))
	}
	_, err := framework.ConfigureBatch(slot, n, []libml.Buffer{t.Input.Slice(0, n*card.Input.TensorBytes())}, outputs)
	return err
}

// closed begins a batch in each slot in turn, after waiting for the slot's previous batch.
// It counts the batches after the first warmup batches of each slot. It polls and never
// sleeps, because nothing is faster.
func (b *bareModel) closed(ctx context.Context, batch, streams, warmup int, duration time.Duration) (times []time.Duration, took time.Duration, err error) {
	finish := func(slot int) error {
		for {
			if done, err := b.device.Done(slot); done || err != nil {
				return err
			}
		}
	}
	var began [device.Slots]time.Time
	var start time.Time
	for i := 0; took < duration; i++ {
		slot := i % streams
		if i >= streams {
			if err := finish(slot); err != nil {
				return nil, 0, fmt.Errorf("wait for batch: %w", err)
			}
			switch now := time.Now(); {
			case i > streams*warmup:
				times = append(times, now.Sub(began[slot]))
				took = now.Sub(start)
			case i == streams*warmup:
				start = now
			}
		}
		if i%64 == 0 && ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		began[slot] = time.Now()
		if err := b.framework.InferBatch(slot, batch); err != nil {
			return nil, 0, fmt.Errorf("infer batch: %w", err)
		}
		if err := b.device.Fetch(slot, 0); err != nil {
			return nil, 0, fmt.Errorf("queue batch: %w", err)
		}
	}
	// Batches in flight must end before their memory is released.
	for slot := range streams {
		if err := finish(slot); err != nil {
			return nil, 0, fmt.Errorf("wait for batch: %w", err)
		}
	}
	return times, took, nil
}

// bareApart runs RunBare in a separate process, so that it leaves nothing on the device
// when Penstock is measured there.
func bareApart(ctx context.Context, o Setup, model string, batch, streams int, duration time.Duration) (Bare, error) {
	var r Bare
	args := []string{"bare", "-o", "json", "--device", o.Device, "--model", model, "--batch", strconv.Itoa(batch),
		"--streams", strconv.Itoa(streams), "--duration", duration.String()}
	if o.Models != "" {
		args = append(args, "--models", o.Models)
	}
	command := exec.CommandContext(ctx, o.Lab, args...)
	var output strings.Builder
	command.Stderr = &output
	out, err := command.Output()
	if err != nil {
		return r, fmt.Errorf("measure the bare framework: %w: %s", err, strings.TrimSpace(output.String()))
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("read what the bare framework did: %w", err)
	}
	return r, nil
}
