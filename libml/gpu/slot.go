package gpu

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// A slot's line of the pinned control memory.
const (
	controlBytes = 64 // a cache line, which holds no other slot's word
	atWord       = 0  // u32: the number of the last finished batch
	atFaultWord  = 8  // u64: the descriptor that the gather kernel left out
)

// slot is a place for one batch in flight.
type slot struct {
	set    streamSet   // the present streams
	before streamSet   // the streams before, which a framework may still hold
	stream cuda.Stream // of set, for the next batch

	tensors     device.Tensors
	control     []byte
	launch      *Launch
	descriptors list
	sampled     sampledBatch
	ordered     []shm.Fragment
	parts       []shm.Fragment // of split
	copies      *copier        // nil if the kernel gathers
	collecting  *cuda.Args     // nil: all rows are fetched
	gathered    cuda.Event     // after gather and padding
	ended       cuda.Event     // after the outputs' copy

	work work // in flight

	took         []estimate // by images: from fenced to done
	tookDemoted  []estimate
	tookFollowed []estimate // the end of another batch included
	_            [64]byte   // different threads use the slots
}

// work is a batch on its stream.
type work struct {
	queued   bool   // the stream has work
	fenced   bool   // the stream will write number when its work is done
	measured int    // 2: both events are recorded
	followed bool   // it waits for another slot's batch
	number   uint32 // of the last batch
	images   int    // to fetch
	begun    int64  // when it was fenced, shm.Now
	checked  int64  // when the driver was last asked, shm.Now
	failed   error
}

func (s *slot) open(d *Device, i int, whole *place) (err error) {
	s.control = d.control[i*controlBytes:][:controlBytes:controlBytes]
	fault := cuda.At(s.control) + atFaultWord
	s.launch, s.sampled = d.kernel.NewLaunch(fault), d.pictures.newSampled(i%d.inFlight, fault)
	if s.gathered, err = d.context.NewEvent(true); err != nil {
		return err
	}
	if s.ended, err = d.context.NewEvent(true); err != nil {
		return err
	}
	on, err := d.newStreams(whole)
	if err != nil {
		return err
	}
	s.runOn(on)
	return nil
}

// runOn moves the next batches to a set of streams, at the device's level.
func (s *slot) runOn(l streamSet) { s.set, s.stream = l, l.streams[l.level] }

// prepare allocates memory for the largest batch in packets of half a kilobyte.
func (s *slot) prepare(d *Device, tensors device.Tensors) error {
	const usual = 512
	s.tensors = tensors
	for _, took := range []*[]estimate{&s.took, &s.tookDemoted, &s.tookFollowed} {
		*took = make([]estimate, d.images+1)
	}
	if s.copies != nil {
		return nil
	}
	if d.pictures != nil {
		if err := s.sampled.descriptors.grow(d, d.pictures.room/usual); err != nil {
			return err
		}
	}
	return s.descriptors.grow(d, max(1, d.images)*(d.kernel.plan.wireBytes/usual+4))
}

// list is descriptors in pinned memory.
type list struct {
	memory []byte
	count  int
}

// grow allocates memory for this many descriptors and keeps the present ones.
func (l *list) grow(d *Device, descriptors int) error {
	memory, err := d.context.AllocateHost(descriptors * DescriptorBytes)
	if err != nil {
		return err
	}
	copy(memory, l.memory)
	old := l.memory
	l.memory = memory
	if old == nil {
		return nil
	}
	return d.context.FreeHost(old)
}

// checkTensor checks that dst, with room for images, lies in the slot's input.
func (s *slot) checkTensor(d *Device, dst device.Buffer, images int) error {
	begin, input := at(dst), at(s.tensors.Input)
	switch {
	case images > d.in.Images(dst.Len()):
		return fmt.Errorf("%w: %d images take %d bytes, and there are %d", errTensor, images, d.in.BatchBytes(images), dst.Len())
	case begin < input || begin+cuda.Pointer(dst.Len()) > input+cuda.Pointer(s.tensors.Input.Len()):
		return fmt.Errorf("%w: not in the slot's input", errTensor)
	case begin%device.TensorAlign != 0:
		return fmt.Errorf("%w: not aligned to %d bytes", errTensor, device.TensorAlign)
	}
	return nil
}

// settle waits for a batch that its caller did not wait for: its descriptors are
// overwritten next.
func (s *slot) settle() error {
	if !s.work.queued {
		return nil
	}
	s.reset()
	return s.stream.Synchronize()
}

func (s *slot) reset() {
	w := &s.work
	w.queued, w.fenced, w.followed, w.measured, w.images = false, false, false, 0, 0
}

// errMemory is wrapped if there is no memory for descriptors.
var errMemory = errors.New("no memory for descriptors")

// describe writes the descriptors of one request.
func (s *slot) describe(d *Device, req device.Request, image int) (bad int, err error) {
	switch picture, err := req.Sampled(&d.in); {
	case err != nil:
		return -1, err
	case picture.Format != 0:
		return s.describePicture(d, req, picture, image)
	}
	return s.put(d, &s.descriptors, req, image, 0)
}

// put adds the descriptors of a request, which begins at a place of an image.
func (s *slot) put(d *Device, l *list, req device.Request, image, place int) (bad int, err error) {
	if len(d.places) == 1 {
		if next, ok := straight(l.memory, l.count, req, image, place, d.slabBytes); ok {
			l.count = next
			return -1, nil
		}
	}
	if s.ordered, bad, err = device.Order(s.ordered, req, d.slabBytes); err != nil {
		return bad, err
	}
	fragments := s.ordered
	if len(d.places) > 1 {
		s.parts = split(s.parts, s.ordered, d.places, image)
		fragments, image = s.parts, 0
	}
	for {
		next, ok := cut(l.memory, l.count, fragments, image, place)
		if ok {
			l.count = next
			return -1, nil
		}
		if err := l.grow(d, 2*len(l.memory)/DescriptorBytes); err != nil {
			return -1, fmt.Errorf("%w: %w", errMemory, err)
		}
	}
}

// split cuts the fragments of request i at the ends of its tensors, and moves them to their places in the memory of
// all inputs. It returns them in scratch, grown if that was too small.
func split(scratch, ordered []shm.Fragment, places []models.Part, i int) []shm.Fragment {
	scratch = scratch[:0]
	k, begin := 0, 0 // the tensor, and its place in the request
	for _, f := range ordered {
		for f.Length > 0 {
			for int(f.Place) >= begin+places[k].Bytes {
				begin += places[k].Bytes
				k++
			}
			part, skip := f, int(f.Place)-begin
			part.Place = uint32(places[k].At + i*places[k].Bytes + skip)
			part.Length = uint16(min(int(f.Length), places[k].Bytes-skip))
			scratch = append(scratch, part)
			f.Offset, f.Place, f.Length = f.Offset+uint64(part.Length), f.Place+uint32(part.Length), f.Length-part.Length
		}
	}
	return scratch
}

// gather queues the kernels for the described requests.
func (s *slot) gather(d *Device, dst device.Buffer, images int) error {
	s.work.queued, s.work.fenced = true, false
	if count := s.descriptors.count; count > 0 {
		if len(d.places) > 1 {
			s.launch.setImage(dst.Len())
			images = 1
		}
		if err := s.launch.Gather(s.stream, cuda.At(s.descriptors.memory), count, at(dst), images); err != nil {
			return err
		}
	}
	if err := s.sample(d, at(dst)); err != nil {
		return err
	}
	if err := s.gathered.Record(s.stream); err != nil {
		return err
	}
	s.work.measured = 1
	return nil
}

// blank queues zeros for the images from, from+1, ... to-1.
func (s *slot) blank(d *Device, dst device.Buffer, from, to int) error {
	s.work.queued, s.work.fenced = true, false
	for _, p := range d.places {
		if err := s.stream.Set(at(dst)+cuda.Pointer(p.At+from*p.Bytes), 0, (to-from)*p.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// follow queues a wait for the last Fetch of another slot.
func (s *slot) follow(other *slot) error {
	s.work.queued, s.work.fenced, s.work.followed = true, false, true
	if err := s.stream.Wait(other.ended); err != nil {
		return err
	}
	if err := s.gathered.Record(s.stream); err != nil {
		return err
	}
	s.work.measured = 1
	return nil
}

// fetch queues the outputs' copy and the fence.
func (s *slot) fetch(d *Device, images int) error {
	s.work.queued, s.work.images = true, images
	if err := s.copyOutputs(d, images); err != nil {
		return err
	}
	if err := s.ended.Record(s.stream); err != nil {
		return err
	}
	if s.work.measured == 1 {
		s.work.measured = 2
	}
	return s.fence()
}

// maxKernelCopy is the maximum number of bytes that a kernel copies to the results. The
// kernel is done 7 µs before a copy would be, and one launch copies all outputs.
// More bytes are left to the copy engine, which keeps no multiprocessor busy.
const maxKernelCopy = 1 << 20

// copyOutputs queues the copy of the outputs.
func (s *slot) copyOutputs(d *Device, images int) error {
	if images == 0 {
		return nil
	}
	if s.collecting != nil {
		if err := d.collector.launch(s.stream, s.collecting, images); err != nil {
			return err
		}
	}
	bytes, parts := 0, 0
	for o, from := range s.tensors.Outputs {
		if n := from.Len() / d.images * images; !d.collector.collects(o) {
			if bytes += n; parts < fetchParts {
				s.launch.FetchPart(parts, cuda.At(s.tensors.Results[o]), at(from), n)
			}
			parts++
		}
	}
	switch {
	case parts == 0:
		return nil
	case parts <= fetchParts && bytes <= maxKernelCopy:
		return s.launch.Fetch(s.stream, parts, bytes)
	}
	for o, from := range s.tensors.Outputs {
		if d.collector.collects(o) {
			continue
		}
		if err := s.stream.Copy(cuda.At(s.tensors.Results[o]), at(from), from.Len()/d.images*images); err != nil {
			return err
		}
	}
	return nil
}

// fence queues the write of the batch's number to the word.
func (s *slot) fence() error {
	s.work.number++
	if err := s.stream.WriteValue(cuda.At(s.control)+atWord, s.work.number); err != nil {
		return err
	}
	s.work.fenced = true
	s.work.begun = shm.Now()
	s.work.checked = s.work.begun
	return nil
}

// queryInterval is how often a wait for a batch asks the driver for errors: a stream that
// failed never writes its word.
const queryInterval = int64(time.Millisecond)

// poll reports whether all queued work is done.
func (s *slot) poll(now int64) (bool, error) {
	if s.work.failed != nil {
		return true, s.work.failed
	}
	if !s.work.queued {
		return true, nil
	}
	if !s.work.fenced {
		if err := s.fence(); err != nil {
			s.work.failed = err
			return true, err
		}
	}
	if word(s.control, atWord) == s.work.number {
		return true, nil
	}
	if now-s.work.checked < queryInterval {
		return false, nil
	}
	s.work.checked = now
	if _, err := s.stream.Query(); err != nil {
		s.work.failed = err
		return true, err
	}
	return false, nil
}

// wait returns when all queued work is done.
func (s *slot) wait(d *Device) (inferred time.Duration, err error) {
	now := shm.Now()
	done, err := s.poll(now)
	if done && (err != nil || !s.work.queued) {
		s.work.failed = nil
		s.reset()
		return 0, err
	}
	var expect *estimate
	switch {
	case s.work.images == 0:
		expect = new(estimate)
	case s.set.level != budget.Demoted && s.stream == s.set.streams[budget.Demoted]:
		expect = &s.tookDemoted[s.work.images]
	case s.work.followed:
		expect = &s.tookFollowed[s.work.images]
	default:
		expect = &s.took[s.work.images]
	}
	for !done {
		if n := expect.nap(now - s.work.begun); n > 0 {
			doze(n)
		} else {
			spin(s.control, s.work.number)
		}
		now = shm.Now()
		if done, err = s.poll(now); err != nil {
			s.work.failed = nil
			s.reset()
			return 0, err
		}
	}
	expect.add(now - s.work.begun)
	both := s.work.measured == 2
	s.reset()
	if fault := word64(s.control, atFaultWord); fault != 0 {
		clear(s.control[atFaultWord : atFaultWord+8])
		return 0, FaultError(fault)
	}
	if both {
		if inferred, err = cuda.Elapsed(s.gathered, s.ended); err != nil {
			return 0, err
		}
	}
	return inferred, nil
}

// spin polls the word for about a microsecond, or until it is n.
func spin(control []byte, n uint32) {
	for range 256 {
		if word(control, atWord) == n {
			return
		}
	}
}

// doze sleeps n nanoseconds in the kernel. Go's own sleep would look for other
// goroutines first, and rounds to milliseconds if there are none.
func doze(n int64) {
	t := unix.NsecToTimespec(n)
	unix.Nanosleep(&t, nil)
}

// close frees what open and prepare allocated, and the streams.
func (s *slot) close(d *Device, errs *firstError) {
	s.before.close(errs)
	s.set.close(errs)
	for _, e := range []*cuda.Event{&s.gathered, &s.ended} {
		if *e != (cuda.Event{}) {
			errs.add(e.Destroy())
			*e = cuda.Event{}
		}
	}
	for _, l := range []*list{&s.descriptors, &s.sampled.descriptors} {
		if l.memory != nil {
			errs.add(d.context.FreeHost(l.memory))
			l.memory = nil
		}
	}
}
