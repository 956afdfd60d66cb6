package devicetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// The errors of a Queued device, in addition to device.ErrLost.
var (
	// ErrMemory is returned if a test has set the device to have no memory left.
	ErrMemory = errors.New("device is out of memory")
	// errBusy is returned if a slot should move while a batch is in flight.
	errBusy = errors.New("slot is in flight")
	// ErrGroups is returned for groups that the device does not have.
	ErrGroups = errors.New("no such groups")
	// errStream is returned for work on a stream that no longer exists.
	errStream = errors.New("no such stream")
)

// inFlight is the max number of batches that a Queued device has in flight.
const inFlight = 2

// Queued is a GPU, as libml sees it, on the host. It queues work on a slot's stream, and a
// goroutine per stream executes it later. Nothing is mapped at the addresses of its tensors. Its results are separate memory, in shared, which needs room for the
// outputs of two slots. It has groups of multiprocessors and priorities. A test can make it delay,
// run out of memory, refuse to move, or be lost. The fields may be changed at any time. If they are
// not used, it allocates nothing per batch.
type Queued struct {
	// Late is the additional time of each batch, in nanoseconds.
	Late atomic.Int64
	// FailRepartition is how many of the next calls fail with ErrMemory.
	FailRepartition atomic.Int64
	// NoPriorities makes Prioritize fail with cuda.ErrNotSupported.
	NoPriorities atomic.Bool
	// NoMemory makes Tensors fail with ErrMemory.
	NoMemory atomic.Bool

	gather   device.Device // does the work
	in       models.Input
	groupSMs []int
	lost     atomic.Bool
	level    atomic.Int64 // budget.Demoted until Prioritize
	gate     sync.RWMutex // held for writing: only demoted batches run
	// demotedGate is the same for demoted batches.
	demotedGate sync.RWMutex
	slabs       []uint64 // their sizes

	sizes   device.Sizes
	tensors []device.Tensors
	address uintptr // of the tensors
	memory  []byte  // what kernels see there
	slots   [device.Slots]queuedSlot

	mu      sync.Mutex // guards what follows
	next    uintptr
	streams map[uintptr]*stream
}

// queuedSlot is one slot. asked belongs to the goroutine that calls the device.
type queuedSlot struct {
	asked    uint64
	finished atomic.Uint64
	failed   atomic.Pointer[error]
	// The stream sets inferred and gathered: the nanoseconds of the last batch after its gather,
	// and when the gather ended.
	inferred, gathered atomic.Int64

	mu      sync.Mutex // guards the fields down to requests
	current streamSet
	before  streamSet
	chosen  budget.Level // the last level passed to Choose
	groups  []int
	// Copies of Gather's arguments.
	requests  []device.Request
	fragments []shm.Fragment
	ordered   []shm.Fragment
	refused   []bool
}

// streamSet has a slot's streams by level: one of the slot's level and, if the slot was prioritized, one for
// demoted batches. Choose makes further streams.
type streamSet struct {
	level   budget.Level
	streams [budget.MaxLevel + 1]*stream
}

// stream executes queued steps in order.
type stream struct {
	handle uintptr
	slot   int
	level  budget.Level
	work   chan step
	ended  chan struct{}
}

type step struct {
	kind     stepKind
	dst      device.Buffer
	reqs     []device.Request
	from, to int
	do       func()
	after    *queuedSlot // of a followStep: to has to be finished there
}

type stepKind int

const (
	gatherStep stepKind = iota
	padStep
	fetchStep
	copyStep
	workStep
	followStep
)

// Queue returns a device with these groups of multiprocessors that gathers with gather. Closing it
// closes gather.
func Queue(gather device.Device, in models.Input, groupSMs ...int) *Queued {
	q := &Queued{gather: gather, in: in, groupSMs: groupSMs, streams: map[uintptr]*stream{}}
	for slot := range q.slots {
		q.slots[slot].run(q.newStreams(slot))
	}
	return q
}

// newStreams makes the streams of a slot at the device's level.
func (q *Queued) newStreams(slot int) streamSet {
	l := streamSet{level: budget.Level(q.level.Load())}
	for _, level := range []budget.Level{budget.Demoted, l.level} {
		if l.streams[level] == nil {
			l.streams[level] = q.newStream(slot, level)
		}
	}
	return l
}

func (q *Queued) newStream(slot int, level budget.Level) *stream {
	const atOnce = 64 // steps that wait
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next++
	s := &stream{handle: 0x5000 + q.next, slot: slot, level: level, work: make(chan step, atOnce), ended: make(chan struct{})}
	q.streams[s.handle] = s
	go q.serve(s)
	return s
}

func (q *Queued) endStreams(l streamSet) {
	for _, s := range l.streams {
		if s != nil {
			q.endStream(s)
		}
	}
}

func (q *Queued) endStream(s *stream) {
	q.mu.Lock()
	delete(q.streams, s.handle)
	q.mu.Unlock()
	close(s.work)
	<-s.ended
}

// serve runs on a stream's goroutine.
func (q *Queued) serve(s *stream) {
	defer close(s.ended)
	slot := &q.slots[s.slot]
	for w := range s.work {
		if w.kind == followStep { // outside the gate, which a test may hold meanwhile
			for w.after.finished.Load() < uint64(w.to) && !q.lost.Load() {
				time.Sleep(20 * time.Microsecond)
			}
			slot.gathered.Store(shm.Now())
			continue
		}
		gate := &q.gate
		if q.level.Load() != int64(budget.Demoted) && s.level == budget.Demoted {
			gate = &q.demotedGate
		}
		gate.RLock()
		if !q.lost.Load() {
			q.perform(s.slot, w)
		}
		gate.RUnlock()
		if w.kind != workStep {
			slot.finished.Add(1)
		}
	}
}

func (q *Queued) perform(at int, w step) {
	slot := &q.slots[at]
	var err error
	switch w.kind {
	case gatherStep:
		// The requests are valid, or are refused and blanked: the caller has been informed.
		if err = q.gather.Gather(at, device.HostBuffer(q.View(w.dst)), w.reqs, slot.refused[:len(w.reqs)]); isRefusal(err) {
			err = nil
		}
		slot.gathered.Store(shm.Now())
	case padStep:
		err = q.gather.Pad(at, device.HostBuffer(q.View(w.dst)), w.from, w.to)
		slot.gathered.Store(shm.Now())
	case workStep, copyStep:
		w.do()
	case fetchStep:
		time.Sleep(time.Duration(q.Late.Load()))
		q.fetch(&q.tensors[at], w.to)
		slot.inferred.Store(shm.Now() - slot.gathered.Load())
	}
	if err != nil {
		failed := err
		slot.failed.Store(&failed)
	}
}

// fetch copies the outputs of the first images, or of their selected rows.
func (q *Queued) fetch(t *device.Tensors, images int) {
	for o, output := range t.Outputs {
		if !readsRows(q.sizes.Selections, o) {
			copy(t.Results[o][:output.Len()/q.images()*images], q.View(output))
		}
	}
	if len(q.sizes.Selections) == 0 {
		return
	}
	var elements []int
	var outputs [][]byte
	for _, output := range t.Outputs {
		elements, outputs = append(elements, output.Len()/q.images()/4), append(outputs, q.View(output))
	}
	for _, s := range q.sizes.Selections {
		for i := range images {
			size := BitmapBytes(s)
			Select(s, ImageOf(outputs, elements, i), ImageOf(t.Results, elements, i), t.Selected[s.Scores.Output][i*size:][:size])
		}
	}
}

func isRefusal(err error) bool {
	if err == nil {
		return false
	}
	var refused *device.RequestError
	return errors.As(err, &refused)
}

func (q *Queued) images() int { return q.in.Images(q.sizes.Input) }

// devices counts the devices. Each has its own range of addresses, which the processor refuses.
var devices atomic.Uint32

const addressBits = 48

// View returns a tensor of the device, or a part of one, as readable and writable
// memory: what a kernel sees. It panics for memory that is not the device's.
func (q *Queued) View(tensor device.Buffer) []byte {
	if tensor.Len() == 0 {
		return nil
	}
	at := tensor.Address() - q.address
	return q.memory[at:][:tensor.Len():tensor.Len()]
}

// Target returns the device for the suite.
func (q *Queued) Target() Target {
	return Target{
		Device: q,
		Read:   func(tensor device.Buffer) []byte { return slices.Clone(q.View(tensor)) },
		Write:  func(tensor device.Buffer, data []byte) { copy(q.View(tensor), data) },
	}
}

// Queue queues work on a stream, as a framework does with its kernels.
func (q *Queued) Queue(handle uintptr, work func()) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.streams[handle]
	switch {
	case q.lost.Load():
		return fmt.Errorf("queue work: %w", device.ErrLost)
	case s == nil:
		return fmt.Errorf("queue work on %#x: %w", handle, errStream)
	}
	s.work <- step{kind: workStep, do: work}
	return nil
}

// HoldDemoted stops the streams of demoted batches until release is called, once. This simulates
// other batches that keep the device busy.
func (q *Queued) HoldDemoted() (release func()) {
	q.demotedGate.Lock()
	return q.demotedGate.Unlock
}

// Hold stops the other streams, all of them before Prioritize, until release is called, once.
func (q *Queued) Hold() (release func()) {
	q.gate.Lock()
	return q.gate.Unlock
}

// Lose makes the device fail permanently.
func (q *Queued) Lose() { q.lost.Store(true) }

// Groups returns the groups that a slot runs on; nil for all.
func (q *Queued) Groups(slot int) []int {
	s := &q.slots[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.groups)
}

// Name returns a name in the format of GPUs' names.
func (q *Queued) Name() string { return "GPU-00000000-0000-0000-0000-000000000000" }

// Bind fails after the device is lost.
func (q *Queued) Bind() error { return q.check("bind", 0) }

// AddSlab registers a slab.
func (q *Queued) AddSlab(mem []byte) error {
	q.slabs = append(q.slabs, uint64(len(mem)))
	return q.gather.AddSlab(mem)
}

// Tensors makes inputs and outputs for slots 0 and 1 that only View can read. Slots 2 and 3 have
// the same.
func (q *Queued) Tensors(shared []byte, sizes device.Sizes) ([]device.Tensors, error) {
	if err := q.check("make tensors", 0); err != nil {
		return nil, err
	}
	if q.NoMemory.Load() {
		return nil, fmt.Errorf("make tensors: %w", ErrMemory)
	}
	results, err := device.Lay(device.HostBuffer(shared), slices.Repeat(sizes.Outputs, inFlight)...)
	if err != nil {
		return nil, err
	}
	wanted := slices.Repeat(append([]int{sizes.Input}, sizes.Outputs...), inFlight)
	bytes := 0
	for _, n := range wanted {
		bytes += models.Aligned(n)
	}
	q.address, q.memory = uintptr(devices.Add(1))<<addressBits, Aligned(bytes)
	laid, err := device.Lay(device.DeviceBuffer(q.address, bytes), wanted...)
	if err != nil {
		return nil, err
	}
	q.sizes = sizes
	outputs := len(sizes.Outputs)
	for slot := range device.Slots {
		at := slot % inFlight
		own := laid[at*(1+outputs):][:1+outputs]
		t := device.Tensors{Input: own[0], Outputs: own[1:], Results: device.Bytes(results[at*outputs:][:outputs]), States: make([]byte, sizes.States)}
		if len(sizes.Selections) > 0 {
			t.Selected = make([][]byte, outputs)
		}
		for _, s := range sizes.Selections {
			t.Selected[s.Scores.Output] = make([]byte, q.images()*BitmapBytes(s))
		}
		q.tensors = append(q.tensors, t)
		s := &q.slots[slot]
		s.refused = make([]bool, q.images())
	}
	return q.tensors, nil
}

// InFlight returns 2.
func (q *Queued) InFlight() int { return inFlight }

func (q *Queued) check(op string, slot int) error {
	switch {
	case slot < 0 || slot >= len(q.slots):
		return fmt.Errorf("%s: there is no slot %d", op, slot)
	case q.lost.Load():
		return fmt.Errorf("%s: %w", op, device.ErrLost)
	}
	return nil
}

func (q *Queued) ask(slot int, w step) {
	s := &q.slots[slot]
	s.asked++
	s.stream().work <- w
}

// Gather checks the requests and queues their gather.
func (q *Queued) Gather(slot int, dst device.Buffer, reqs []device.Request, refused []bool) error {
	if err := q.check("gather", slot); err != nil {
		return err
	}
	if len(reqs) > q.in.Images(dst.Len()) {
		return fmt.Errorf("gather %d requests: the tensor has %d bytes", len(reqs), dst.Len())
	}
	s := &q.slots[slot]
	s.requests, s.fragments = s.requests[:0], s.fragments[:0]
	for _, r := range reqs {
		s.fragments = append(s.fragments, r.Fragments...)
	}
	at := 0
	var first *device.RequestError
	for i, r := range reqs {
		own := s.fragments[at : at+len(r.Fragments)]
		at += len(own)
		s.requests = append(s.requests, device.Request{Fragments: own, Bytes: r.Bytes, Picture: r.Picture})
		bad := -1
		_, err := r.Sampled(&q.in)
		if err == nil {
			s.ordered, bad, err = device.Order(s.ordered, r, q.slabs)
		}
		if refused[i] = err != nil; refused[i] && first == nil {
			first = &device.RequestError{Request: i, Fragment: bad, Err: err}
		}
	}
	q.ask(slot, step{kind: gatherStep, dst: dst, reqs: s.requests})
	if first != nil {
		return first
	}
	return nil
}

// Pad queues blank images.
func (q *Queued) Pad(slot int, dst device.Buffer, from, to int) error {
	if err := q.check("pad", slot); err != nil {
		return err
	}
	if from < 0 || to < from || to > q.in.Images(dst.Len()) {
		return fmt.Errorf("pad images %d to %d: the tensor has %d bytes", from, to, dst.Len())
	}
	q.ask(slot, step{kind: padStep, dst: dst, from: from, to: to})
	return nil
}

// Follow queues a wait for the last Fetch of another device's slot.
func (q *Queued) Follow(slot int, other device.Ordered, otherSlot int) error {
	if err := q.check("follow", slot); err != nil {
		return err
	}
	before, ok := other.(*Queued)
	if !ok || otherSlot < 0 || otherSlot >= len(before.slots) {
		return fmt.Errorf("follow slot %d: %w", otherSlot, errStream)
	}
	after := &before.slots[otherSlot]
	q.slots[slot].stream().work <- step{kind: followStep, after: after, to: int(after.asked)}
	return nil
}

// Fetch queues the copy of the outputs.
func (q *Queued) Fetch(slot, images int) error {
	if err := q.check("fetch", slot); err != nil {
		return err
	}
	if images < 0 || images > q.images() {
		return fmt.Errorf("fetch outputs of %d images: the tensors have %d", images, q.images())
	}
	q.ask(slot, step{kind: fetchStep, to: images})
	return nil
}

// Upload queues a copy to the slot's input.
func (q *Queued) Upload(slot int, dst device.Buffer, data []byte) error {
	return q.copyTensor(slot, dst.Len(), len(data), func() { copy(q.View(dst), data) })
}

// Download queues a copy of a part of the slot's outputs.
func (q *Queued) Download(slot int, data []byte, src device.Buffer) error {
	return q.copyTensor(slot, len(data), src.Len(), func() { copy(data, q.View(src)) })
}

func (q *Queued) copyTensor(slot, to, from int, work func()) error {
	if err := q.check("copy", slot); err != nil {
		return err
	}
	if to != from {
		return fmt.Errorf("copy %d bytes to %d", from, to)
	}
	q.ask(slot, step{kind: copyStep, do: work})
	return nil
}

// Done reports whether the stream has finished the batch.
func (q *Queued) Done(slot int) (bool, error) {
	if err := q.check("look", slot); err != nil {
		return true, err
	}
	s := &q.slots[slot]
	if s.finished.Load() < s.asked {
		return false, nil
	}
	if failed := s.failed.Load(); failed != nil {
		return true, *failed
	}
	return true, nil
}

// Wait polls until the batch is finished.
func (q *Queued) Wait(slot int) (time.Duration, error) {
	for {
		done, err := q.Done(slot)
		if !done {
			time.Sleep(20 * time.Microsecond)
			continue
		}
		if slot < 0 || slot >= len(q.slots) {
			return 0, err
		}
		s := &q.slots[slot]
		s.failed.Store(nil)
		return time.Duration(s.inferred.Load()), err
	}
}

// SMs returns the number of multiprocessors in the slot's groups.
func (q *Queued) SMs(slot int) (n int, err error) {
	if err := q.check("count multiprocessors", slot); err != nil {
		return 0, err
	}
	groups := q.Groups(slot)
	for i, sms := range q.groupSMs {
		if len(groups) == 0 || slices.Contains(groups, i) {
			n += sms
		}
	}
	return n, nil
}

// Stream returns the handle of a slot's stream.
func (q *Queued) Stream(slot int) uintptr {
	s := &q.slots[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.streams[s.current.level].handle
}

// stream returns the stream of the next batch.
func (s *queuedSlot) stream() *stream { return s.current.streams[s.chosen] }

// run makes the slot's batches run on a set of streams, at its level.
func (s *queuedSlot) run(l streamSet) { s.current, s.chosen = l, l.level }

// Prioritize gives the slots a second stream.
func (q *Queued) Prioritize(slots []int, level budget.Level) error {
	for _, slot := range slots {
		if err := q.check("prioritize", slot); err != nil {
			return err
		}
		if done, _ := q.Done(slot); !done {
			return fmt.Errorf("prioritize slot %d: %w", slot, errBusy)
		}
	}
	switch {
	case q.NoPriorities.Load():
		return fmt.Errorf("prioritize slots %v: %w", slots, cuda.ErrNotSupported)
	case level <= budget.Demoted || level > budget.MaxLevel || !q.level.CompareAndSwap(int64(budget.Demoted), int64(level)):
		return fmt.Errorf("prioritize slots %v: level %d", slots, level)
	}
	for _, slot := range slots {
		s := &q.slots[slot]
		fresh := q.newStreams(slot)
		s.mu.Lock()
		gone := s.current
		s.run(fresh)
		s.mu.Unlock()
		q.endStreams(gone)
	}
	return nil
}

// Choose selects the stream of the slot's next batches.
func (q *Queued) Choose(slot int, level budget.Level) error {
	s := &q.slots[slot]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.level == budget.Demoted {
		return nil
	}
	if level > s.current.level {
		return fmt.Errorf("choose level %d in slot %d of level %d", level, slot, s.current.level)
	}
	if s.current.streams[level] == nil {
		s.current.streams[level] = q.newStream(slot, level)
	}
	s.chosen = level
	return nil
}

// BatchStream returns the handle of the stream that Choose selected.
func (q *Queued) BatchStream(slot int) uintptr { return q.slots[slot].stream().handle }

// Repartition gives slots new streams. The previous streams end at the next Repartition.
func (q *Queued) Repartition(slots, groups []int) error {
	for _, slot := range slots {
		if err := q.check("move", slot); err != nil {
			return err
		}
		if done, _ := q.Done(slot); !done {
			return fmt.Errorf("move slot %d: %w", slot, errBusy)
		}
	}
	if take(&q.FailRepartition) {
		return fmt.Errorf("move slots %v: %w", slots, ErrMemory)
	}
	for i, g := range groups {
		if g < 0 || g >= len(q.groupSMs) || i > 0 && g <= groups[i-1] {
			return fmt.Errorf("move slots %v to %v: %w", slots, groups, ErrGroups)
		}
	}
	for _, slot := range slots {
		s := &q.slots[slot]
		fresh := q.newStreams(slot)
		s.mu.Lock()
		gone := s.before
		s.before, s.groups = s.current, slices.Clone(groups)
		s.run(fresh)
		s.mu.Unlock()
		q.endStreams(gone)
	}
	return nil
}

// Close ends the streams and releases the tensors.
func (q *Queued) Close() error {
	q.mu.Lock()
	open := slices.Collect(maps.Values(q.streams))
	q.mu.Unlock()
	for _, s := range open {
		q.endStream(s)
	}
	return q.gather.Close()
}
