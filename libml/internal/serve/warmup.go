package serve

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// warmUp is the time of a batch size in its warm-up run.
type warmUp struct {
	size    int
	elapsed time.Duration
	alone   time.Duration // time of a batch without the host's part; 0 if the process keeps no account
}

// sizes are the batch sizes that a process has. Once there is a mover, it owns them.
type sizes struct {
	card      []int   // the configured sizes
	ladder    []int   // those that the process runs: the first of card
	ephemeral []int64 // memory of the largest batch in each slot that may be in flight
	warm      []warmUp
}

// missing reports whether the process runs fewer sizes than are configured.
func (s *sizes) missing() bool { return len(s.ladder) < len(s.card) }

// next returns the ladder with one of the missing sizes more.
func (s *sizes) next() []int { return s.card[:len(s.ladder)+1] }

// ephemeralBytes is the memory of the largest batch in all slots that may be in flight.
func (s *sizes) ephemeralBytes() (sum int64) {
	for _, bytes := range s.ephemeral {
		sum += bytes
	}
	return sum
}

// keepSizes leaves out the batch sizes after the first n.
func (p *process) keepSizes(n int) {
	p.card.Batches = p.card.Batches[:n]
	p.sizes.card, p.sizes.ladder = p.card.Batches, p.sizes.ladder[:min(n, len(p.sizes.ladder))]
}

// warmUpSizes warms up with warm. If the card leaves the sizes to Penstock, and the model fails with one of them, only
// the smallest is left. Such a model may mix pictures.
func (p *process) warmUpSizes(warm func(*control.Notice) error, notice *control.Notice) error {
	err := warm(notice)
	if err == nil || !p.card.AutoBatches || len(p.sizes.ladder) == 1 || loop.IsLost(err) || errors.Is(err, device.ErrWrongAnswers) || p.exit.requested() {
		return err
	}
	p.keepSizes(1)
	p.sizes.ephemeral, p.sizes.warm, p.rows = nil, nil, nil
	if again := warm(notice); again != nil {
		return again
	}
	p.log.Warn("cannot run larger batches; each request runs alone", "error", err)
	return nil
}

// cutSizes leaves out the sizes whose batches take longer than the objective on a CPU, if the card leaves them to Penstock. A
// batch takes as long there as its pictures one after the other; on a GPU it may take as long as one. It configures the
// smallest size over t.
func (p *process) cutSizes(t *tensors.Tensors) error {
	if sizes := p.card.Batches; p.card.AutoBatches && !p.onGPU() && p.measured == nil && len(sizes) > 1 {
		if _, err := p.configure(0, sizes[0], t); err != nil {
			return err
		}
		took, err := p.leastTime(sizes[0], t)
		if err != nil {
			return warmUpError(p.card, sizes[0], err)
		}
		n := 1
		for n < len(sizes) && time.Duration(sizes[n])*took <= p.slo {
			n++
		}
		p.keepSizes(n)
	}
	return nil
}

// leastTime returns how long a batch takes at least on a CPU. Other processes that warm up take a part of the CPUs, so the
// CPU time counts.
func (p *process) leastTime(n int, t *tensors.Tensors) (took time.Duration, err error) {
	if _, err := p.runSamples(0, n, t, nil); err != nil { // the first run pays for lazy initialisation
		return 0, err
	}
	defer p.lockDevice()()
	before := cpuTime()
	took, err = p.runSamples(0, n, t, nil)
	return min(took, time.Duration(cpuTime()-before)/time.Duration(p.threads())), err
}

// warmUp configures and warms up every slot that may be in flight, on a device whose
// tensors belong to the process. A model that was measured before needs no warm-up.
func (p *process) warmUp(notice *control.Notice) error {
	if err := p.cutSizes(p.memory.tensors[0]); err != nil {
		return err
	}
	for slot := range p.memory.inFlight {
		bytes, err := p.configureSlot(slot)
		if err != nil {
			return err
		}
		p.sizes.ephemeral = append(p.sizes.ephemeral, bytes)
		if p.measured != nil {
			continue
		}
		if err := p.warmUpSlot(slot, p.memory.tensors[slot]); err != nil || p.exit.requested() {
			return err
		}
	}
	notice.EphemeralBytes = p.sizes.ephemeralBytes()
	if p.level == budget.Demoted || p.measured != nil {
		return nil
	}
	for i := range p.sizes.warm {
		if err := p.measureAlone(&p.sizes.warm[i]); err != nil || p.exit.requested() {
			return err
		}
	}
	return nil
}

// warmUpSlot warms up all batch sizes in a slot, over these tensors. The times of the first slot count. If
// the process must end meanwhile, it leaves out the rest. Frameworks allocate the memory of the largest
// batch first, because its bytes are measured then.
func (p *process) warmUpSlot(slot int, t *tensors.Tensors) (err error) {
	if slot == 0 && !p.compared.Load() {
		if p.rows, err = newRows(p.card); err != nil {
			return err
		}
	}
	largest := p.sizes.ladder[len(p.sizes.ladder)-1]
	if _, err = p.runSamples(slot, largest, t, nil); err != nil {
		return warmUpError(p.card, largest, err)
	}
	for _, n := range p.sizes.ladder {
		if p.exit.requested() {
			return nil
		}
		elapsed, err := p.warmUpBatch(slot, n, t)
		if err != nil {
			return warmUpError(p.card, n, err)
		}
		if slot == 0 {
			p.sizes.warm = append(p.sizes.warm, warmUp{size: n, elapsed: elapsed})
		}
	}
	if slot == 0 {
		p.finishRows(p.sizes.ladder)
	}
	return nil
}

func warmUpError(card *models.Card, n int, err error) error {
	return fmt.Errorf("warm up %s at batch %d: %w", card.Name, n, err)
}

// timing measures batches of the warm-up. Processes that warm up on one device measure one after
// the other.
type timing struct {
	lock *deviceLock // nil: needs no lock, as the process keeps no account
	// Set by tests.
	patience time.Duration // 0: lockPatience
	now      func() int64  // nil: shm.Now
}

func (t *timing) clock() int64 {
	if t.now != nil {
		return t.now()
	}
	return shm.Now()
}

// lockDevice keeps other processes that warm up from using the device while this one measures. If
// the lock is not free in time, the process measures without it: a time that is too long is
// better than a process that does not serve.
func (p *process) lockDevice() (unlock func()) {
	unlock, err := p.timing.lock.acquire(p.exit.requested)
	if err != nil {
		p.log.Warn("cannot lock the device; measuring the batch next to those of other processes", "error", err)
	}
	return unlock
}

// measureAlone measures how long a batch takes at the function's level. Processes that serve use
// the device, too, so the shortest of several runs counts. Short batches run several times
// in a row, so that the host's part counts for less.
func (p *process) measureAlone(w *warmUp) error {
	const (
		fewest, most = 3, 8
		limit        = 20 * time.Millisecond // for all runs after the third
	)
	defer p.lockDevice()()
	d := p.memory.device
	rounds := int(max(1, min(4, limit/16/max(1, w.elapsed))))
	began := p.timing.clock()
	for run := range most {
		if run >= fewest && time.Duration(p.timing.clock()-began) > limit {
			break
		}
		var start, end int64
		err := p.inTurn(w.elapsed*time.Duration(rounds), func() (err error) {
			start = p.timing.clock()
			for range rounds {
				err = loop.MergeErrors(err, p.inferSamples(0, w.size))
			}
			err = loop.MergeErrors(err, d.Fetch(0, 0))
			_, waitErr := d.Wait(0)
			end = p.timing.clock()
			return loop.MergeErrors(err, waitErr)
		})
		if err != nil {
			return fmt.Errorf("measure %s at batch %d: %w", p.card.Name, w.size, err)
		}
		if took := time.Duration(end-start) / time.Duration(rounds); run == 0 || took < w.alone {
			w.alone = took
		}
	}
	return nil
}

// configureSlot prepares the batch sizes in a slot and returns the bytes of the largest.
func (p *process) configureSlot(slot int) (ephemeralBytes int64, err error) {
	for _, n := range p.sizes.ladder {
		bytes, err := p.configure(slot, n, p.memory.tensors[slot])
		if err != nil {
			return 0, err
		}
		ephemeralBytes = max(ephemeralBytes, bytes)
	}
	return ephemeralBytes, nil
}

func (p *process) configure(slot, n int, t *tensors.Tensors) (ephemeralBytes int64, err error) {
	if ephemeralBytes, err = p.framework.ConfigureBatch(slot, n, t.InputsOf(n), t.OutputsOf(n)); err != nil {
		return 0, fmt.Errorf("configure batch %d of %s: %w", n, p.card.Name, err)
	}
	return ephemeralBytes, nil
}

// warmUpBatch runs a batch size over these tensors and returns the time of the last run. The first
// one pays for lazy initialisation; the last is what the batching rule may expect. It does not write the
// results, which are shared.
func (p *process) warmUpBatch(slot, n int, t *tensors.Tensors) (elapsed time.Duration, err error) {
	runs := p.sampleRuns(slot, n)
	for _, pictures := range runs[:len(runs)-1] {
		if _, err := p.runSamples(slot, n, t, pictures); err != nil {
			return 0, err
		}
	}
	defer p.lockDevice()()
	return p.runSamples(slot, n, t, runs[len(runs)-1])
}

// runBatch runs a batch without requests and returns how long it took.
func (p *process) runBatch(slot, n int) (took time.Duration, err error) {
	err = p.inTurn(0, func() error {
		began := time.Now()
		err := p.inferSamples(slot, n)
		err = loop.MergeErrors(err, p.memory.device.Fetch(slot, 0))
		_, waitErr := p.memory.device.Wait(slot)
		took = time.Since(began)
		return loop.MergeErrors(err, waitErr)
	})
	return took, err
}

// inferSamples is InferBatch without requests: a sample may fail as a request may.
func (p *process) inferSamples(slot, n int) error {
	err := p.framework.InferBatch(slot, n)
	if _, some := errors.AsType[*framework.ImagesError](err); some {
		return nil
	}
	return err
}

// inTurn runs work on the device in the turn of the worker's lane, because other members use the same
// scratch memory there. batch is how long the work is expected to take; 0 if unknown. Requests go
// first for conductor.StartPatience. If the process must end meanwhile, it returns without the work.
func (p *process) inTurn(batch time.Duration, work func() error) error {
	if p.place == nil || !p.onGPU() {
		return work()
	}
	asked := shm.Now()
	for {
		now := shm.Now()
		// Demoted: nothing is queued behind it, and it is not queued itself.
		job := lane.Job{Complete: asked, Deadline: max(asked+int64(conductor.StartPatience), now+int64(warmUpSlack)) + int64(batch), Batch: batch, Requests: 1, Demoted: true}
		if p.place.Take(now, job) {
			break
		}
		if p.exit.requested() {
			p.place.Withdraw(shm.Now())
			return nil
		}
		time.Sleep(turnPoll)
	}
	defer func() { p.place.End(shm.Now()) }()
	return work()
}

// turnPoll is how often a warm-up checks whether its turn has come. Its job stays in time for
// warmUpSlack, so that a policy by deadline chooses it.
const turnPoll, warmUpSlack = 100 * time.Microsecond, 10 * time.Millisecond

// warmUpPrivately warms up over private scratch memory. The shared buffers belong to the
// owner of the ring, which is another process now. At the end it configures over the shared
// buffers. A model that was measured before needs no warm-up.
func (p *process) warmUpPrivately(notice *control.Notice) (err error) {
	if m := p.measured; m != nil {
		notice.EphemeralBytes = m.EphemeralBytes
		_, err = p.configureSlot(0)
		return err
	}
	if p.memory.private == nil {
		if p.memory.private, err = tensors.NewScratch(p.card.TensorBytes()); err != nil {
			return err
		}
	}
	scratch, err := tensors.New(p.card, p.memory.private)
	if err != nil {
		return err
	}
	if err := p.cutSizes(scratch); err != nil {
		return err
	}
	for _, n := range slices.Backward(p.sizes.ladder) {
		if _, err := p.configure(0, n, scratch); err != nil {
			return err
		}
	}
	if err := p.warmUpSlot(0, scratch); err != nil || p.exit.requested() {
		return err
	}
	if notice.EphemeralBytes, err = p.configureSlot(0); err != nil {
		return err
	}
	// Every batch size uses the shared buffers now.
	err, p.memory.private = p.memory.private.Free(), nil
	return err
}
