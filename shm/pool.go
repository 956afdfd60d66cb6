package shm

import "time"

const (
	// poolPatience bounds how long ResultBuffer waits for room. The manager reads results within microseconds, and sends a
	// large one in less than a tenth of a second.
	poolPatience = 2 * time.Second
	// poolNap is the pause between two looks for room.
	poolNap = 50 * time.Microsecond
)

// pool divides the pool of results among the slots that a consumer completes: a ring of lines, which the manager
// frees in the order of the replies. When all are free it begins again at its first line, so that only as many pages
// are touched as results need at once.
//
// Positions count lines since the last beginning; a position modulo lines is a place.
type pool struct {
	lines, each uint64 // of the pool, of the largest result
	patience    time.Duration

	tail uint64 // first line that the manager may still read
	done uint64 // end of the last completed result
	head uint64 // end of the last reserved buffer

	// starts has, for each slot, the position of its buffer plus 1; 0: it has none.
	starts []uint64
	// ends has done after each reply, by the reply's number. The manager can have read and not freed all slots, and
	// all may be completed again meanwhile.
	ends []uint64
	// read is the number of replies before tail.
	read uint32
}

func newPool(g Geometry) pool {
	return pool{
		lines: uint64(g.PoolBytes) / lineBytes, each: uint64(lineUp(int(g.ResultBytes))) / lineBytes,
		patience: poolPatience, starts: make([]uint64, g.Slots), ends: make([]uint64, 2*g.Slots),
	}
}

// begin empties the pool for a new owner. It gives no room before the manager has read the replies of owners before,
// as many as replies says.
func (p *pool) begin(replies uint32) {
	p.tail, p.done, p.head, p.read = 0, 0, 0, replies
	clear(p.starts)
}

// isReserved reports whether slots have buffers.
func (p *pool) isReserved() bool { return p.head != p.done }

// reserve gives a slot room for the largest result, unless it has some, and returns the offset in the pool in bytes. The
// manager has read that many of all completed replies.
func (p *pool) reserve(slot, read, completed uint32) (at int, ok bool) {
	if !p.free(read, completed) {
		return 0, false
	}
	if start := p.starts[slot]; start != 0 {
		return int((start - 1) % p.lines * lineBytes), true
	}
	start := p.head
	if left := p.lines - start%p.lines; left < p.each {
		start += left
	}
	if start+p.each-p.tail > p.lines {
		return 0, false
	}
	p.starts[slot], p.head = start+1, start+p.each
	return int(start % p.lines * lineBytes), true
}

// free moves the tail to what the manager has read. It returns false if read makes no sense (yet).
func (p *pool) free(read, completed uint32) bool {
	if read-p.read > completed-p.read || int(completed-read) > len(p.ends) {
		return false
	}
	if read != p.read {
		p.read, p.tail = read, p.ends[int(read-1)%len(p.ends)]
	}
	if read == completed && !p.isReserved() {
		p.tail, p.done, p.head = 0, 0, 0
	}
	return true
}

// complete ends a slot's buffer after length bytes, and returns its place and the length of the payload. The reply
// has that number.
func (p *pool) complete(slot, length, reply uint32) (place, _ uint32) {
	if start := p.starts[slot]; start == 0 {
		length = 0
	} else {
		start--
		p.starts[slot] = 0
		length = min(length, uint32(p.each*lineBytes))
		end := start + p.each
		if end == p.head { // no buffer follows: give back what the payload does not need
			end = start + uint64(lineUp(int(length)))/lineBytes
			p.head = end
		}
		p.done, place = end, uint32(start%p.lines)
	}
	p.ends[int(reply)%len(p.ends)] = p.done
	return place, length
}
