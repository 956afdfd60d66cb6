// Package gslice decides shares as the GSLICE paper does (sections 3.2.1 to 3.2.3,
// Algorithm 1). It is pure. docs/adr/0001-shares.md lists the corrections to the print of
// Algorithm 1; nothing is added to it.
//
//		Observation ──tune──> demand ──allocate──> grant ──Controller──> change
//
//	 1. tune: what an inference function (IF) would need, by how it did with its share.
//	 2. allocate: max-min fairness among the demands.
//	 3. Controller: no change within the threshold, none before the hold-down has passed.
//
// Shares are percent of the device (of the CPUs reserved for IFs, or of the GPU), in
// multiples of quantum.
package gslice

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// quantum is the grain of shares, in percent. It is a power of two, so that sums
// of shares are exact in floating point: never above 100 % means not by a bit.
const quantum = 1.0 / 64

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
	// SpreadSlack hands out what nobody demanded, in proportion to the demands.
	SpreadSlack bool
	// Steps are the shares that may be given, ascending, where not any may: a GPU's
	// percentages at which its libraries answer rightly. Empty: any.
	Steps []float64
}

// DefaultConfig has the paper's values: 30 % for a model without a profile
// (3.2.3), 5 % as threshold and 10 s as hold-down (3.2.1, 3.2.2). The minimum is ours.
func DefaultConfig() Config {
	return Config{
		MinimumPercent:   5,
		UnknownPercent:   30,
		ThresholdPercent: 5,
		HoldDown:         10 * time.Second,
	}
}

// Validate names the first field that makes no sense.
func (c Config) Validate() error {
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"minimum_percent", c.MinimumPercent},
		{"unknown_percent", c.UnknownPercent},
		{"threshold_percent", c.ThresholdPercent},
	} {
		if !(f.value > 0 && f.value <= 100) {
			return fmt.Errorf("share %s: %v is not above 0 and at most 100", f.name, f.value)
		}
	}
	for i, s := range c.Steps {
		if !(s > 0 && s <= 100) || i > 0 && s <= c.Steps[i-1] {
			return fmt.Errorf("share steps: %v do not ascend from above 0 to at most 100", c.Steps)
		}
	}
	if c.HoldDown < 0 {
		return fmt.Errorf("share hold_down: %v must not be negative", c.HoldDown)
	}
	return nil
}

// ceilTo is the smallest multiple of quantum that is at least percent, rounding
// errors left aside.
func ceilTo(percent float64) float64 { return math.Ceil(percent/quantum-1e-9) * quantum }

// floorTo is the largest multiple of quantum that is at most percent.
func floorTo(percent float64) float64 { return math.Floor(percent/quantum) * quantum }
