package client

import (
	"math"
	"time"
)

// pace is a token bucket: rate bytes per second, depth bytes at once. A rate of
// 0 means no limit.
type pace struct {
	rate, depth float64
	tokens      float64
	at          int64 // when tokens was computed
}

func newPace(rate, depth int64, now int64) pace {
	return pace{rate: float64(rate), depth: float64(depth), tokens: float64(depth), at: now}
}

// minWakeBytes is the min number of bytes for which to wake up, if the bucket
// holds as many. Smaller steps would send datagrams one by one.
const minWakeBytes = 32 << 10

// budget returns how many bytes may be sent now; a datagram may overdraw it.
func (p *pace) budget(now int64) int64 {
	if p.rate == 0 {
		return math.MaxInt64
	}
	if now > p.at {
		p.tokens = min(p.tokens+p.rate*time.Duration(now-p.at).Seconds(), p.depth)
		p.at = now
	}
	return int64(math.Ceil(p.tokens))
}

func (p *pace) spend(bytes int64) {
	if p.rate != 0 {
		p.tokens -= float64(bytes)
	}
}

// wait returns how long until the budget is worth a wake-up, 0 if it is now.
func (p *pace) wait(now int64) time.Duration {
	if p.budget(now); p.rate == 0 {
		return 0
	}
	short := min(p.depth, minWakeBytes) - p.tokens
	if short <= 0 {
		return 0
	}
	return time.Duration(short/p.rate*float64(time.Second)) + 1
}
