// Package profiler measures what a model reaches on each share of a device, on a whole node.
// sweep/ decides what is measured next, and until when.
package profiler

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/profiler/sweep"
)

// Options say what a Profiler runs.
type Options struct {
	testbed.Setup
	Card *models.Card
	// Grid has the cells: the node has room for the largest batch and the most processes.
	Grid profile.Sweep
	// Scale says what their shares are.
	Scale Scale
}

// Profiler measures cells of a sweep on a whole node: the model runs in processes as a
// node runs it, each within its quota (a part of the cell's share, the same for each),
// fed over loopback by a closed loop that keeps three batches a process in flight.
//
// One node lives as long as the Profiler. A cell of another batch size or number of
// processes is another function on it; one that differs in its share alone has its
// share changed. It is used by one goroutine.
type Profiler struct {
	options Options
	bed     *testbed.Bed
	dir     string
	change  configs.Change
	picture []byte
	status  control.Status
	// loaded is the cell whose processes run; the zero value where none do.
	loaded sweep.Cell
}

// The function that is measured, and its objective: none that a batch could miss, so
// that batches grow to the size that there is and nothing is late.
const (
	profiled         = "profiled"
	profiledSLO      = time.Hour
	batchesInFlight  = 3
	leastInFlight    = 32
	profiledPatience = 5 * time.Minute
)

// New starts a node, without the model.
func New(ctx context.Context, o Options) (_ *Profiler, err error) {
	p := &Profiler{options: o, picture: testbed.NoisePicture(o.Card), change: configs.ChangeRestart}
	if o.Device == configs.DeviceCPU {
		p.change = configs.ChangeInPlace
	}
	if p.dir, err = testbed.NewDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	batch, processes := slices.Max(o.Grid.Batches), slices.Max(o.Grid.Processes)
	inFlight := p.inFlight(sweep.Cell{Batch: batch, Processes: processes})
	slots := 256
	for slots < inFlight {
		slots *= 2
	}
	if slots > configs.MaxSlots {
		return nil, fmt.Errorf("%d processes with batches of %d: %d requests in flight, want at most %d; take smaller batches or fewer processes",
			processes, batch, inFlight, configs.MaxSlots)
	}
	// The largest batch must be one that a card may have.
	file, err := testbed.Variant(p.dir, o.Card, p.ladder(batch))
	if err != nil {
		return nil, err
	}
	if _, err := models.ReadCard(file); err != nil {
		return nil, fmt.Errorf("batches of %d of %s: %w", batch, o.Card.Name, err)
	}
	// Twice what is in flight: pieces lie in slots of their own, and more are on their way.
	slab := max(64, 2*inFlight*len(p.picture)>>20)
	p.bed, err = testbed.Start(ctx, o.Binary, testbed.Options{Device: o.Device, Change: p.change, Slots: slots, SlabMiB: slab})
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the device was not there within a minute"))
	defer cancel()
	err = p.bed.WaitFor(limit, "the device", func() bool {
		p.status, err = p.bed.Status()
		return err == nil && p.status.Mechanism != ""
	})
	if err != nil {
		return nil, err
	}
	if p.HeldBy() == timeSlicing {
		return nil, fmt.Errorf("%w on %s: %s", errSharesNotHeld, p.Device().Name, p.Device().Why)
	}
	return p, nil
}

// errSharesNotHeld is returned by New for a GPU on which every process gets
// what it can: a share would say nothing there.
var errSharesNotHeld = errors.New("nothing holds a process to its share")

// The mechanisms of control.Observed that a Profiler treats apart.
const (
	timeSlicing = "time-slicing"
	governed    = "governor"
)

// HeldBy is what holds processes to their shares: control.Observed.Mechanism.
func (p *Profiler) HeldBy() string { return p.status.Mechanism }

// Device is the GPU, nil on a CPU.
func (p *Profiler) Device() *control.ObservedDevice { return p.status.Device }

// Close ends the node.
func (p *Profiler) Close() error {
	if p.bed != nil {
		p.bed.Kill()
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("remove folder: %w", err)
	}
	return nil
}

// inFlight is how many requests are kept in flight for a cell: for each process the
// batch that runs, one that waits whole, and one on its way.
func (p *Profiler) inFlight(c sweep.Cell) int {
	return max(leastInFlight, batchesInFlight*c.Batch*c.Processes)
}

// ladder is what the card of a cell with that batch size has: a model with a fixed
// batch has no smaller one.
func (p *Profiler) ladder(batch int) []int {
	if p.options.Card.Batches[0] > 1 {
		return []int{batch}
	}
	return testbed.Ladder(batch)
}

// Start makes the processes those of the cell, gives them their share, and the load.
func (p *Profiler) Start(ctx context.Context, c sweep.Cell) (sweep.Running, error) {
	percent := p.options.Scale.Percent(c.Share)
	var err error
	switch {
	case p.loaded.Batch != c.Batch || p.loaded.Processes != c.Processes:
		err = p.load(ctx, c, percent)
	case p.loaded.Share != c.Share:
		err = p.share(ctx, c, percent)
	}
	if err != nil {
		return nil, err
	}
	p.loaded = c
	f, err := p.bed.Function(profiled)
	if err != nil {
		return nil, err
	}
	r := &profiling{p: p, c: c}
	if p.options.Scale.MemoryMiB != nil {
		m, err := r.Memory()
		if err != nil {
			return nil, err
		}
		need, have := float64(c.Processes)*(m.PersistentMiB+m.EphemeralMiB), p.options.Scale.MemoryMiB(c.Share)
		if need > have {
			return nil, fmt.Errorf("%d processes need %.0f MiB, share %d has %.0f: %w", c.Processes, need, c.Share, have, sweep.ErrOutOfMemory)
		}
	}
	const flows = 2
	each := (p.inFlight(c) + flows - 1) / flows
	r.load, err = testbed.NewTraffic(ctx, testbed.TrafficOptions{Port: f.Port, Flows: flows, InFlight: each, Picture: p.picture, Timeout: profiledSLO})
	if err != nil {
		return nil, err
	}
	if err := r.load.Keep(each); err != nil {
		r.load.Stop()
		return nil, err
	}
	r.since = client.Now()
	return r, nil
}

// load has the node run a function of the cell's batch size with as many instances as
// the cell has processes, in place of the one that it runs.
func (p *Profiler) load(ctx context.Context, c sweep.Cell, percent float64) error {
	if err := p.unload(ctx); err != nil {
		return err
	}
	file, err := testbed.Variant(p.dir, p.options.Card, p.ladder(c.Batch))
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, profiledPatience, fmt.Errorf("the model did not serve within %s", profiledPatience))
	defer cancel()
	// The answer comes when all its processes serve, or it was taken off again since one cannot.
	_, err = control.SendOrder(limit, p.bed.Dir, control.AddPath, configs.Function{
		Name: profiled, Model: file, SLO: profiledSLO, Instances: c.Processes, SharePercent: percent / float64(c.Processes),
		Change: p.change, Streams: 1,
	})
	switch {
	case err == nil || limit.Err() != nil: // it is there, if only for a while
		p.loaded = c
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, p.unload(ctx))
		}
		return err
	default:
		// Who added a function by hand is told more.
		reason, _, _ := strings.Cut(err.Error(), "; it was taken off again")
		if _, after, ok := strings.Cut(reason, "its process "); ok {
			reason = "a process " + after
		}
		return outOfMemory(errors.New(reason))
	}
}

// unload takes the function off the node, if there is one.
func (p *Profiler) unload(ctx context.Context) error {
	if p.loaded == (sweep.Cell{}) {
		return nil
	}
	p.loaded = sweep.Cell{}
	return p.bed.Remove(ctx, profiled)
}

// share changes the share of the function that runs.
func (p *Profiler) share(ctx context.Context, c sweep.Cell, percent float64) error {
	before, err := p.bed.Function(profiled)
	if err != nil {
		return err
	}
	if err := p.bed.Order(control.SharePath, control.ShareOrder{Name: profiled, SharePercent: percent / float64(c.Processes)}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, profiledPatience, fmt.Errorf("share %.1f %% was not in force within %s", percent, profiledPatience))
	defer cancel()
	err = p.bed.WaitFor(limit, "a share", func() bool {
		f, err := p.bed.Function(profiled)
		if err != nil || !testbed.Same(f.SharePercent, percent) || !serves(f) {
			return false
		}
		return p.change == configs.ChangeInPlace || renewed(before, f)
	})
	if err != nil {
		return err
	}
	// The orchestrator hears of it with the next repetition, at the latest.
	return testbed.Pause(ctx, 2*control.RepeatEvery)
}

// serves reports whether each instance has a process that serves, with all its batch
// sizes.
func serves(f control.FunctionStatus) bool {
	for i := range f.Instances {
		if p, ok := f.Instances[i].Serving(); !ok || p.Growing {
			return false
		}
	}
	return true
}

// renewed reports whether every instance is served by another process than before.
func renewed(before, after control.FunctionStatus) bool {
	for i := range after.Instances {
		was, _ := before.Instances[i].Serving()
		is, _ := after.Instances[i].Serving()
		if is.Generation == was.Generation {
			return false
		}
	}
	return true
}

// What frameworks, drivers and kernels say when there is no memory left; a process
// that the kernel killed for its memory was "killed".
var noMemory = regexp.MustCompile(`(?i)out of memory|cannot allocate|failed to allocate|bad_alloc|\bOOM\b|signal 9 \(not by Penstock\)`)

func outOfMemory(err error) error {
	if err != nil && noMemory.MatchString(err.Error()) {
		return fmt.Errorf("%w: %w", sweep.ErrOutOfMemory, err)
	}
	return err
}

// profiling is a cell under load.
type profiling struct {
	p     *Profiler
	c     sweep.Cell
	load  *testbed.Traffic
	since int64
}

// Window lets the time pass and counts what was answered in it.
func (r *profiling) Window(ctx context.Context, d time.Duration) (w sweep.Window, err error) {
	if err := testbed.Pause(ctx, d); err != nil {
		return w, err
	}
	all, now := r.load.Take(), client.Now()
	w.Elapsed, r.since = time.Duration(now-r.since), now
	for _, a := range all {
		if n := testbed.Count([]testbed.Answered{a}); n.OK != 1 {
			return w, fmt.Errorf("a request was answered %+v: %s", n, r.p.bed.Log())
		}
		w.Images++
		if a.Batch > 0 {
			w.Batches += 1 / float64(a.Batch)
			w.BatchTime += a.Service / time.Duration(a.Batch)
		}
	}
	if r.p.status.Mechanism == governed {
		// Pauses lie between batches, not in them: a batch's time is from its beginning
		// to the next one's.
		w.BatchTime = w.Elapsed * time.Duration(r.c.Processes)
	}
	return w, nil
}

// gauges are the two lines of /metrics that tell what one process holds.
var gauges = regexp.MustCompile(`(?m)^penstock_model_(persistent|ephemeral)_bytes\{[^}]*function="` + profiled + `"[^}]*\} (\S+)$`)

// Memory asks the node what a process holds.
func (r *profiling) Memory() (m sweep.Memory, err error) {
	page, err := r.p.bed.Metrics()
	if err != nil {
		return m, err
	}
	for _, line := range gauges.FindAllStringSubmatch(page, -1) {
		bytes, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			return m, fmt.Errorf("read metrics: %q is no number of bytes", line[2])
		}
		if line[1] == "persistent" {
			m.PersistentMiB = bytes / (1 << 20)
		} else {
			m.EphemeralMiB = bytes / (1 << 20)
		}
	}
	return m, nil
}

// Stop waits until everything in flight is answered.
func (r *profiling) Stop() error {
	r.load.Stop()
	return nil
}
