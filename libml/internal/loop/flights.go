package loop

// flights has a place for each batch that may be in flight. The batches in flight are in the order in
// which they began.
type flights struct {
	places []flight
	first  int    // place of the oldest batch in flight
	count  int    // of batches in flight
	base   int    // the batch at place i runs in the device's slot base + i
	ended  flight // the batch that was removed last
}

func newFlights(count, maxBatch int) flights {
	f := flights{places: make([]flight, count), ended: newFlight(maxBatch)}
	for i := range f.places {
		f.places[i] = newFlight(maxBatch)
	}
	return f
}

// full reports whether no other batch may begin.
func (f *flights) full() bool { return f.count == len(f.places) }

// at returns the batch in flight that began as the i-th, from 0 on.
func (f *flights) at(i int) *flight { return &f.places[(f.first+i)%len(f.places)] }

// oldest returns the batch in flight that began first.
func (f *flights) oldest() *flight { return f.at(0) }

// newest returns the batch in flight that began last.
func (f *flights) newest() *flight { return f.at(f.count - 1) }

// free returns the device's slot of the next batch. There must be a place for it.
func (f *flights) free() int { return f.base + (f.first+f.count)%len(f.places) }

// add begins a batch. There must be a place for it.
func (f *flights) add() *flight {
	slot := f.free()
	added := &f.places[slot-f.base]
	added.slot = slot
	f.count++
	return added
}

// remove removes a batch that has ended. It must be the oldest or the newest. remove returns which one it was
// in the order of at, and the batch outside its place, which the next batch may take. The batch is valid until
// the next call.
func (f *flights) remove(ended *flight) (removed *flight, i int) {
	if ended == f.oldest() {
		f.first = (f.first + 1) % len(f.places)
	} else {
		i = f.count - 1
	}
	f.count--
	f.ended, *ended = *ended, f.ended
	return &f.ended, i
}

// moved reports whether all batches in flight run in the slots from base on.
func (f *flights) moved() bool {
	for i := range f.count {
		if slot := f.at(i).slot; slot < f.base || slot >= f.base+len(f.places) {
			return false
		}
	}
	return true
}
