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
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// Ready is one measurement of RunReady: ready batches of one size in a closed loop.
type Ready struct {
	Batch int `json:"batch"`
	// Streams is how many batches are in flight together.
	Streams int `json:"streams"`
	// Groups is how many SM groups they ran on, 0 for no partition; SMs how many
	// multiprocessors the process counted, 0 on a CPU.
	Groups int `json:"groups,omitempty"`
	SMs    int `json:"sms,omitempty"`
	// ImagesPerSecond is what all streams do together, Time that of one batch, from its
	// call until the host knows that it is done.
	ImagesPerSecond float64 `json:"images_per_s"`
	Time            Micros  `json:"batch_us"`
	// Error is why there is no measurement.
	Error string `json:"error,omitempty"`
}

// ReadyOptions say what RunReady measures: every combination.
type ReadyOptions struct {
	Model   string `json:"model"`
	Batches []int  `json:"batches"`
	Streams []int  `json:"streams"`
	// Groups are numbers of SM groups, the first so many of the device; 0 is the whole
	// device, and all that there is where it cannot be partitioned.
	Groups []int `json:"groups"`
	// Duration is how long each is measured, after as many batches as warm it up.
	Duration time.Duration `json:"duration"`
}

// readyWarmup is how many batches of a slot are not counted: the sizes have been run
// when they were configured, and a batch on few multiprocessors is long.
const readyWarmup = 4

// RunReady is RunBare for many batch sizes, streams and groups of multiprocessors, in one
// process that loads the model once. A percentage of MPS is the process's own, from its
// environment.
func RunReady(ctx context.Context, o Setup, build libml.Build, r ReadyOptions) (all []Ready, err error) {
	card, err := o.Card(r.Model)
	if err != nil {
		return nil, err
	}
	if len(r.Batches) == 0 || len(r.Streams) == 0 || slices.Min(r.Batches) < 1 || slices.Min(r.Streams) < 1 || r.Duration <= 0 {
		return nil, fmt.Errorf("ready batches of %v on %v streams for %v each: want at least 1, and a time", r.Batches, r.Streams, r.Duration)
	}
	// The framework prepares the sizes of its card: exactly those that are measured.
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
		// The smallest size first, as libml does; a new place asks for all of them again.
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
					if _, err := b.device.Wait(slot); err != nil { // it is free to be moved then
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

// ReadyApart is RunReady in a process of its own, with this environment added: so that
// nothing of it is left on the device, and a percentage of MPS holds.
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
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("measure ready batches of %s: %w: %s", r.Model, err, strings.TrimSpace(said.String()))
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("read what ready batches did: %w", err)
	}
	return all, nil
}

// WriteVariant writes a card like that one, with another ladder of batch sizes, into dir,
// and returns its file.
func WriteVariant(dir string, card *models.Card, batches []int) (file string, err error) {
	return testbed.Variant(dir, card, batches)
}
