package libml

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
)

// batching applies the batching rule (package slab) to the loop's batches. The rule may get more
// batch sizes while the loop runs.
type batchSizes struct {
	rule     *batching.Rule
	state    batching.State
	expected func(n int) time.Duration                  // batching.Rule.Expected at the present state
	newRule  func(ladder []int) (*batching.Rule, error) // any goroutine may call it
	larger   atomic.Pointer[batching.Rule]              // the rule with more batch sizes, for extend
}

// open makes the rule of a process that is warmed up.
func (b *batchSizes) open(p *process, attached control.Attached) (err error) {
	b.newRule = func(ladder []int) (*batching.Rule, error) {
		return batching.New(string(cmp.Or(attached.Batching.Rule, control.BatchSLAB)), batching.Config{
			SLO: p.slo, Ladder: ladder, RunLate: attached.RunLate,
			Fixed: attached.Batching.Size, Delay: attached.Batching.Delay,
		})
	}
	if b.rule, err = b.newRule(p.sizes.ladder); err != nil {
		return err
	}
	b.state = b.rule.Start()
	for _, w := range p.sizes.warm {
		b.state = b.rule.Warm(b.state, w.size, w.elapsed)
	}
	b.expected = func(n int) time.Duration { return b.rule.Expected(b.state, n) }
	return nil
}

// extend switches to this rule with more sizes, unless there is a larger one by now.
func (b *batchSizes) extend(rule *batching.Rule) (extended bool) {
	if !b.larger.CompareAndSwap(rule, nil) {
		return false
	}
	b.state = rule.Grown(b.state, b.rule)
	b.rule = rule
	return true
}

// size is the maximum number of requests in the next batch.
func (b *batchSizes) size() int { return b.rule.Size(b.state) }

// fit returns how many of n requests a batch may have: at most the largest configured size up to limit, or
// the smallest size if that exceeds the limit. A limit of 0 is none.
func (b *batchSizes) fit(n, limit int) int {
	if limit == 0 {
		return n
	}
	limit = max(limit, b.smallest())
	for b.rule.Pad(limit) != limit {
		limit--
	}
	return min(n, limit)
}

// typical is the mean time of a batch of a configured size.
func (b *batchSizes) typical(padded int) time.Duration { return b.rule.Typical(b.state, padded) }

// smallest is the smallest batch size.
func (b *batchSizes) smallest() int { return b.rule.Pad(1) }

// readyAt is when the pending requests may become a batch; math.MinInt64 if they may now.
func (b *batchSizes) readyAt(pending []batching.Request) int64 {
	return b.rule.ReadyAt(b.state, pending)
}

// ready reports whether the pending requests may become a batch now.
func (b *batchSizes) ready(pending []batching.Request) bool {
	at := b.readyAt(pending)
	return at == math.MinInt64 || at <= shm.Now()
}

// observe learns from a batch.
func (b *batchSizes) observe(o batching.Observation) { b.state = b.rule.Next(b.state, o) }
