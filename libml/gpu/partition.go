package gpu

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
)

// place is the multiprocessors that slots run on: those of a green context, or all of the
// process's. It is closed with its last set of streams.
type place struct {
	green *cuda.Green // nil: all
	sets  int
}

// streamSet has a slot's streams at a place, by level. It has one of the set's level and, unless
// that is budget.Demoted, one for demoted batches. Choose makes others when it first needs
// them. The zero set is unused.
//
// The streams of a process map to CUDA_DEVICE_MAX_CONNECTIONS channels, 8 by default, and
// work on one channel is done in order. So only the slots that libml uses get more than the
// one stream that New makes. A process has six streams, or eight after its function has
// exceeded its guarantee. Slots 2 and 3 get theirs when they are moved, in place of slots 0
// and 1. The frameworks' own streams are idle after linking.
type streamSet struct {
	level   budget.Level // of Stream
	streams [budget.MaxLevel + 1]cuda.Stream
	place   *place
}

// close destroys the streams, and the place with its last set. A stream that cannot be
// destroyed stays, so that Close tries again.
func (l *streamSet) close(errs *firstError) {
	if l.place == nil {
		return
	}
	for i, s := range l.streams {
		if s == (cuda.Stream{}) {
			continue
		}
		if err := s.Destroy(); err != nil {
			errs.add(err)
			return
		}
		l.streams[i] = cuda.Stream{}
	}
	l.place.leave(errs)
	*l = streamSet{}
}

// leave removes one set from the place.
func (p *place) leave(errs *firstError) {
	if p.sets--; p.sets == 0 && p.green != nil {
		errs.add(p.green.Destroy())
	}
}

// SMs returns how many multiprocessors the slot's batches can use.
func (d *Device) SMs(slot int) (int, error) {
	s, err := d.slot(slot)
	if err != nil {
		return 0, fmt.Errorf("count multiprocessors of slot %d: %w", slot, err)
	}
	d.mu.Lock()
	green := s.set.place.green
	d.mu.Unlock()
	if green != nil {
		return green.SMs(), nil
	}
	n, err := d.context.SMs()
	if err != nil {
		return 0, d.fail("count multiprocessors", err)
	}
	return n, nil
}

// Stream returns the slot's CUstream of the device's level.
func (d *Device) Stream(slot int) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &d.slots[slot].set
	return l.streams[l.level].Handle()
}

// Choose creates the stream of a level when a slot first needs it, in about 10 µs.
func (d *Device) Choose(slot int, level budget.Level) error {
	s := &d.slots[slot]
	if s.set.level == budget.Demoted {
		return nil
	}
	stream := &s.set.streams[level]
	if *stream == (cuda.Stream{}) {
		made, err := d.newStream(s.set.place, level)
		if err != nil {
			return d.fail(fmt.Sprintf("run slot %d at level %d", slot, level), err)
		}
		*stream = made
	}
	s.stream = *stream
	return nil
}

// BatchStream returns the CUstream that Choose chose.
func (d *Device) BatchStream(slot int) uintptr { return d.slots[slot].stream.Handle() }

// Prioritize creates streams of the priority -level.
func (d *Device) Prioritize(slots []int, level budget.Level) error {
	if err := d.prioritize(slots, level); err != nil {
		return d.fail(fmt.Sprintf("set level of slots %v to %d", slots, level), err)
	}
	return nil
}

func (d *Device) prioritize(slots []int, level budget.Level) error {
	if err := d.idle(slots); err != nil {
		return err
	}
	lowest, highest, err := d.context.StreamPriorities()
	if err != nil {
		return err
	}
	if level <= budget.Demoted || -int(level) < highest {
		return fmt.Errorf("stream priorities are %d to %d: %w", lowest, highest, cuda.ErrNotSupported)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.level != budget.Demoted {
		return fmt.Errorf("level is already %d", d.level)
	}
	for _, slot := range slots {
		s := &d.slots[slot]
		stream, err := d.newStream(s.set.place, level)
		if err != nil {
			return err
		}
		on := streamSet{level: level, place: s.set.place}
		on.streams[level], on.streams[budget.Demoted] = stream, s.set.streams[budget.Demoted]
		s.runOn(on)
	}
	d.level = level
	return nil
}

// idle checks that slots are idle before their streams change.
func (d *Device) idle(slots []int) error {
	for i, slot := range slots {
		s, err := d.slot(slot)
		switch {
		case err != nil:
			return err
		case slices.Contains(slots[:i], slot):
			return fmt.Errorf("%w is listed twice", errSlot)
		case s.work.queued:
			return fmt.Errorf("slot %d: %w", slot, ErrBusy)
		}
	}
	return nil
}

// Repartition creates a green context of the groups, in one to two milliseconds, and streams
// in it. It does not disturb other slots. The error wraps cuda.ErrNotSupported if the driver
// or the device has no green contexts.
func (d *Device) Repartition(slots []int, groups []int) error {
	if err := d.repartition(slots, groups); err != nil {
		return d.fail(fmt.Sprintf("move slots %v to groups %v", slots, groups), err)
	}
	return nil
}

func (d *Device) repartition(slots, groups []int) (err error) {
	if err := d.idle(slots); err != nil {
		return err
	}
	for i, g := range groups {
		if i > 0 && g <= groups[i-1] {
			return fmt.Errorf("groups are not ascending: %v", groups)
		}
	}
	if len(slots) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	to, err := d.newPlace(groups)
	if err != nil {
		return err
	}
	var sets [device.Slots]streamSet
	var errs firstError
	for i := 0; i < len(slots) && errs.first == nil; i++ {
		sets[i], err = d.newStreams(to)
		errs.add(err)
	}
	for _, slot := range slots {
		if errs.first == nil {
			d.slots[slot].before.close(&errs)
		}
	}
	if errs.first != nil {
		to.sets++ // this function's own, so that the place is closed last
		for i := range sets {
			sets[i].close(&errs)
		}
		to.leave(&errs)
		return errs.first
	}
	for i, slot := range slots {
		s := &d.slots[slot]
		s.before = s.set
		s.runOn(sets[i])
		clear(s.took) // times change with the share
		clear(s.tookDemoted)
		clear(s.tookFollowed)
	}
	return nil
}

// newPlace creates a green context of groups, or takes all multiprocessors for none.
func (d *Device) newPlace(groups []int) (*place, error) {
	p := &place{}
	if len(groups) == 0 {
		return p, nil
	}
	var err error
	if d.split == nil {
		if d.split, err = d.device.Split(); err != nil {
			return nil, err
		}
	}
	p.green, err = d.context.Green(d.split, groups)
	return p, err
}

// newStreams creates the streams of the device's level.
func (d *Device) newStreams(at *place) (_ streamSet, err error) {
	l := streamSet{level: d.level, place: at}
	if l.streams[d.level], err = d.newStream(at, d.level); err != nil {
		return streamSet{}, err
	}
	if d.level != budget.Demoted {
		if l.streams[budget.Demoted], err = d.newStream(at, budget.Demoted); err != nil {
			return streamSet{}, errors.Join(err, l.streams[d.level].Destroy())
		}
	}
	at.sets++
	return l, nil
}

func (d *Device) newStream(at *place, level budget.Level) (cuda.Stream, error) {
	switch {
	case at.green != nil:
		return at.green.NewPriorityStream(-int(level))
	case level == budget.Demoted:
		return d.context.NewStream()
	}
	return d.context.NewPriorityStream(-int(level))
}
