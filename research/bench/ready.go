package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// Ready is one measurement of RunReady: ready batches of one size in a closed loop.
type Ready struct {
	Batch int `json:"batch"`
	// Streams is the number of batches in flight.
	Streams int `json:"streams"`
	// Groups is how many SM groups they ran on, 0 for no partition. SMs is how many
	// multiprocessors the process counted, 0 on a CPU.
	Groups int `json:"groups,omitempty"`
	SMs    int `json:"sms,omitempty"`
	// ImagesPerSecond is the rate of all streams together. Time is of one batch, from its
	// call until the host knows that it is done.
	ImagesPerSecond float64 `json:"images_per_s"`
	Time            Micros  `json:"batch_us"`
	// Error is why there is no measurement.
	Error string `json:"error,omitempty"`
}

// ReadyOptions say what RunReady measures: every combination of the values.
type ReadyOptions struct {
	Model   string `json:"model"`
	Batches []int  `json:"batches"`
	Streams []int  `json:"streams"`
	// Groups are numbers of SM groups; each measurement uses the device's first groups. 0
	// is the whole device, and the only choice if the device cannot be partitioned.
	Groups []int `json:"groups"`
	// Duration is the time of each measurement, after the warm-up batches.
	Duration time.Duration `json:"duration"`
}

// readyWarmup is how many batches of a slot are not counted. Few suffice: each size has
// run when it was configured, and a batch on few multiprocessors takes long.
const readyWarmup = 4

// RunReady is RunBare for many batch sizes, streams and groups of multiprocessors, in one
// process that loads the model once. A percentage of MPS comes from the process's
// environment.
func RunReady(ctx context.Context, o Setup, build framework.Build, r ReadyOptions) (all []Ready, err error) {
	card, err := o.Card(r.Model)
	if err != nil {
		return nil, err
	}
	if len(r.Batches) == 0 || len(r.Streams) == 0 || slices.Min(r.Batches) < 1 || slices.Min(r.Streams) < 1 || r.Duration <= 0 {
		return nil, fmt.Errorf("ready batches of %v on %v streams for %v each: want at least 1, and a time", r.Batches, r.Streams, r.Duration)
	}
	// The framework prepares the sizes of its card, so the card has exactly the measured
	// ones.
	own := *card
	own.Batches = slices.Compact(slices.Sorted(slices.Values(append([]int{1}, r.Batches...))))
	card = &own
	runtime.LockOSThread() // devices are bound to threads
	defer runtime.UnlockOSThread()
	b, err := openBare(o.Device, build, card, slices.Max(r.Batches), slices.Max(r.Streams))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	partitioned, _ := b.device.(device.Partitioned)
	slots := make([]int, slices.Max(r.Streams))
	for i := range slots {
		slots[i] = i
	}
	groups := r.Groups
	if len(groups) == 0 {
		groups = []int{0}
	}
	for _, n := range groups {
		if n > 0 {
			if partitioned == nil {
				return all, fmt.Errorf("%d groups of multiprocessors: %s has none", n, b.device.Name())
			}
			first := make([]int, n)
			for i := range first {
				first[i] = i
			}
			if err := partitioned.Repartition(slots, first); err != nil {
				return all, fmt.Errorf("take %d groups of multiprocessors: %w", n, err)
			}
		}
		sms := 0
		if partitioned != nil {
			if sms, err = partitioned.SMs(0); err != nil {
				return all, err
			}
		}
		// Begin with the smallest size, as libml does. After a move all sizes must be
		// configured again.
		for _, slot := range slots {
			for _, batch := range card.Batches {
				if err := b.configure(slot, batch); err != nil {
					return all, fmt.Errorf("configure batch of %d on %d multiprocessors: %w", batch, sms, err)
				}
			}
		}
		for _, batch := range r.Batches {
			for _, streams := range r.Streams {
				times, took, err := b.closed(ctx, batch, streams, readyWarmup, r.Duration)
				if err != nil {
					return all, err
				}
				for _, slot := range slots[:streams] {
					if _, err := b.device.Wait(slot); err != nil { // only then may it be moved
						return all, fmt.Errorf("wait for batch: %w", err)
					}
				}
				all = append(all, Ready{Batch: batch, Streams: streams, Groups: n, SMs: sms,
					ImagesPerSecond: float64(len(times)*batch) / took.Seconds(), Time: micros(times)})
			}
		}
	}
	return all, nil
}

// ReadyApart runs RunReady in a separate process with env added to its environment. So it
// leaves nothing on the device, and a percentage of MPS takes effect.
func ReadyApart(ctx context.Context, o Setup, r ReadyOptions, env []string) (all []Ready, err error) {
	given, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("measure ready batches: %w", err)
	}
	args := []string{"ready", "-o", "json", "--device", o.Device, "--options", string(given)}
	if o.Models != "" {
		args = append(args, "--models", o.Models)
	}
	command := exec.CommandContext(ctx, o.Lab, args...)
	command.Env = append(os.Environ(), env...)
	var output strings.Builder
	command.Stderr = &output
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("measure ready batches of %s: %w: %s", r.Model, err, strings.TrimSpace(output.String()))
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("read what ready batches did: %w", err)
	}
	return all, nil
}

// WriteVariant writes a copy of a card with another ladder of batch sizes into dir, and
// returns its file.
func WriteVariant(dir string, card *models.Card, batches []int) (file string, err error) {
	return testbed.Variant(dir, card, batches)
}
