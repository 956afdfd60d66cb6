// Package share decides who gets how much of the device: GSLICE's Algorithm 1
// for each inference function (IF), the MAX-MIN fair allocation among them, and
// when a change is worth making (paper 3.2.1 to 3.2.3). It is pure: no clock, no
// I/O. docs/adr/0001-shares.md lists every departure from the paper's print.
//
//		Observation ──Tune──> demand ──Allocate──> grant ──Controller──> change
//
//	 1. Tune: what an IF would need, from how it did with its present share.
//	 2. Allocate: what each gets of 100 %, from what all need.
//	 3. Controller: which of these are changes that are worth a swap now, by
//	    threshold and hold-down, and what is remembered from change to change.
//
// Shares are percent of the device (of the CPUs reserved for IFs, or of the GPU)
// in multiples of Quantum.
package share

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Quantum is the grain of shares, in percent. It is a power of two, so that sums
// of shares are exact in floating point: never above 100 % means not by a bit.
const Quantum = 1.0 / 64

// ID is one instance of an inference function.
type ID struct {
	IF       string
	Instance int
}

// String is the name by which logs and metrics call it.
func (id ID) String() string { return fmt.Sprintf("%s/%d", id.IF, id.Instance) }

// Compare orders IDs: by IF, then by instance.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.IF, other.IF), cmp.Compare(id.Instance, other.Instance))
}

// Config is how shares are decided; DefaultConfig has the paper's values.
type Config struct {
	// MinimumPercent is the least that any IF gets; where there are so many IFs
	// that it does not go round, an equal part of 100.
	MinimumPercent float64
	// UnknownPercent is the demand of an IF without knee and observations.
	UnknownPercent float64
	// ThresholdPercent: residuals within it are no reason to tune, and changes
	// within it (in percent of the present share) are not made.
	ThresholdPercent float64
	// HoldDown is how long a share stays after a change. Adding and removing IFs
	// does not wait for it.
	HoldDown time.Duration
	// HeadroomPercent of what a smaller share is computed to need is left on top
	// when a share is cut; ThresholdPercent at most where batches fit (Tune).
	HeadroomPercent float64
	// Memory is for how long it is remembered, while the load stays, which share
	// proved too little and which enough.
	Memory time.Duration
	// Silence is how long nothing comes to an IF, at least, before it lends its share.
	Silence time.Duration
	// SpreadSlack hands out what nobody demanded, in proportion to the demands.
	SpreadSlack bool
	// Steps are the shares that may be given, ascending, where not any may: a GPU's
	// percentages at which its libraries answer rightly. Empty: any.
	Steps []float64
}

// DefaultConfig has the paper's values: 30 % for a model without a profile
// (3.2.3), 5 % as threshold and 10 s as hold-down (3.2.1, 3.2.2). The minimum,
// headroom, memory and silence are ours.
func DefaultConfig() Config {
	return Config{
		MinimumPercent:   5,
		UnknownPercent:   30,
		ThresholdPercent: 5,
		HoldDown:         10 * time.Second,
		HeadroomPercent:  25,
		Memory:           10 * time.Minute,
		Silence:          20 * time.Second,
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	for _, f := range []struct {
		name       string
		value      float64
		above, max float64
	}{
		{"minimum_percent", c.MinimumPercent, 0, 100},
		{"unknown_percent", c.UnknownPercent, 0, 100},
		{"threshold_percent", c.ThresholdPercent, 0, 100},
		{"headroom_percent", c.HeadroomPercent, -1, 1000},
	} {
		if !(f.value > f.above && f.value <= f.max) {
			return fmt.Errorf("share %s: %v is not above %v and at most %v", f.name, f.value, max(0, f.above), f.max)
		}
	}
	for i, s := range c.Steps {
		if !(s > 0 && s <= 100) || i > 0 && s <= c.Steps[i-1] {
			return fmt.Errorf("share steps: %v do not ascend from above 0 to at most 100", c.Steps)
		}
	}
	if c.HoldDown < 0 || c.Memory < 0 || c.Silence < 0 {
		return fmt.Errorf("share hold_down, memory and silence: %v, %v and %v must not be negative", c.HoldDown, c.Memory, c.Silence)
	}
	return nil
}

// ceilTo is the smallest multiple of Quantum that is at least percent, rounding
// errors left aside.
func ceilTo(percent float64) float64 { return math.Ceil(percent/Quantum-1e-9) * Quantum }

// floorTo is the largest multiple of Quantum that is at most percent.
func floorTo(percent float64) float64 { return math.Floor(percent/Quantum) * Quantum }
