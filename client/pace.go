package client

import (
	"math"
	"time"
)

// pace is a token bucket: rate bytes a second, depth bytes at once. A rate of 0
// is no limit.
type pace struct {
	rate, depth int64
	tokens      int64
	at          int64 // when tokens was right
}

// quantum is how many bytes are worth waking up for: a pace of small steps
// would send datagrams one by one.
func (p *pace) quantum() int64 { return min(p.depth, 32<<10) }

// budget is how many bytes may leave now; a datagram may overdraw it.
func (p *pace) budget(now int64) int64 {
	if p.rate == 0 {
		return math.MaxInt64
	}
	if elapsed := now - p.at; elapsed > 0 {
		// A longer pause counts as a second, which keeps the product within an
		// int64 up to 9 GB/s.
		if earned := p.rate * min(elapsed, int64(time.Second)) / int64(time.Second); earned > 0 {
			p.tokens = min(p.tokens+earned, p.depth)
			p.at = now
		}
	}
	return p.tokens
}

func (p *pace) spend(bytes int64) {
	if p.rate != 0 {
		p.tokens -= bytes
	}
}

// wait is how long until the budget is worth waking up for, 0 when it is.
func (p *pace) wait(now int64) time.Duration {
	short := p.quantum() - p.budget(now)
	if p.rate == 0 || short <= 0 {
		return 0
	}
	return time.Duration(float64(short)/float64(p.rate)*float64(time.Second)) + 1
}
