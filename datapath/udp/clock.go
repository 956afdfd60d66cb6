package udp

import (
	"time"

	"github.com/penstock/penstock/shm"
)

// clocks computes when a datagram arrived. The kernel stamps by the wall clock, which may be
// set at any time. Everything else here uses shm.Now's clock, which is never set. Both clocks
// are slewed alike (clock_gettime(2)), so their difference changes only when the wall clock
// is set or the machine wakes from sleep. The arrival of a datagram stamped before such a
// change is unknown.
type clocks struct {
	now   int64 // when they were last read, in shm.Now's clock
	ahead int64 // wall clock minus shm.Now's clock
	from  int64 // when the wall clock was last found set; earlier stamps may date from before that
}

const (
	// settled is how far two readings of the difference may be apart before the wall clock
	// counts as set.
	settled = time.Millisecond
	// atOnce is the max time for reading both clocks; a slower reading is not used.
	atOnce = 100 * time.Microsecond
	// openTries is how often the clocks are read for the first difference, for which there is
	// no other source. A thread is seldom interrupted in the middle of so many readings in a
	// row.
	openTries = 16
)

// open takes the first reading. It accepts the last try, however long it took. If that
// reading was wrong, the next one treats the clock as set in between.
func (c *clocks) open(read func() (before, wall, after int64)) {
	for range openTries {
		before, wall, after := read()
		*c = clocks{}
		if c.at(before, wall, after); after-before <= int64(atOnce) {
			return
		}
	}
}

// read reads both clocks. Call it after datagrams were received, and before arrival is called
// for their stamps.
func (c *clocks) read() { c.at(bothClocks()) }

// bothClocks reads the wall clock between two readings of shm.Now.
func bothClocks() (before, wall, after int64) {
	before = shm.Now()
	wall = time.Now().UnixNano()
	return before, wall, shm.Now()
}

// at processes a reading of the wall clock between two of shm.Now.
func (c *clocks) at(before, wall, after int64) {
	if c.now = after; after-before > int64(atOnce) && c.from != 0 {
		return // the thread was interrupted in between; keep the old difference
	}
	ahead := wall - after
	if apart := time.Duration(ahead - c.ahead); c.from == 0 || apart.Abs() > settled {
		c.from = after
	}
	c.ahead = ahead
}

// arrival returns when a datagram with that stamp arrived, in shm.Now's clock. It returns 0
// if that is not known, and for stamp 0, which means no stamp. How long the datagram has
// waited does not matter.
func (c *clocks) arrival(stamp int64) int64 {
	at := stamp - c.ahead
	if stamp == 0 || at < c.from || at > c.now {
		return 0
	}
	return at
}
