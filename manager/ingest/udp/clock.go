package udp

import (
	"time"

	"github.com/penstock/penstock/shm"
)

// clocks tell when a datagram arrived. The kernel stamps by the wall clock, which may be set at
// any time; everything else here counts by shm.Now's, which nobody sets. Both are slewed alike
// (clock_gettime(2)), so between them there is a distance that changes when the wall clock is set,
// and when a machine wakes from its sleep: what was stamped before that is not known.
type clocks struct {
	now   int64 // when they were last read, of shm.Now's clock
	ahead int64 // by what the wall clock is ahead of it
	from  int64 // when the wall clock was last found set: earlier stamps may be of the time before
}

const (
	// settled is by how much two readings of the distance may differ before the wall clock was set.
	settled = time.Millisecond
	// atOnce is what the reading of two clocks may take for their distance to be believed.
	atOnce = 100 * time.Microsecond
	// openTries is how often they are read for the first distance, which nothing else tells: a
	// thread is seldom stopped in the middle of so many readings in a row.
	openTries = 16
)

// open takes the first reading. The last try is believed, however long it took: the reading
// after it takes the clock for one that was set meanwhile.
func (c *clocks) open(read func() (before, wall, after int64)) {
	for range openTries {
		before, wall, after := read()
		*c = clocks{}
		if c.at(before, wall, after); after-before <= int64(atOnce) {
			return
		}
	}
}

// read is called after datagrams were received, and before their stamps are asked for.
func (c *clocks) read() { c.at(bothClocks()) }

// bothClocks reads the wall clock between two readings of shm.Now's.
func bothClocks() (before, wall, after int64) {
	before = shm.Now()
	wall = time.Now().UnixNano()
	return before, wall, shm.Now()
}

// at takes a reading of the wall clock between two of shm.Now's.
func (c *clocks) at(before, wall, after int64) {
	if c.now = after; after-before > int64(atOnce) && c.from != 0 {
		return // the thread was stopped in between; the distance is as it was
	}
	ahead := wall - after
	if apart := time.Duration(ahead - c.ahead); c.from == 0 || apart.Abs() > settled {
		c.from = after
	}
	c.ahead = ahead
}

// arrival is when a datagram of that stamp came, of shm.Now's clock; 0 if it is not known, and for
// stamp 0, which is none. However long a datagram has waited, it is said.
func (c *clocks) arrival(stamp int64) int64 {
	at := stamp - c.ahead
	if stamp == 0 || at < c.from || at > c.now {
		return 0
	}
	return at
}
