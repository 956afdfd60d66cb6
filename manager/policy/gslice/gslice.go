// Package gslice decides shares as the GSLICE paper does (sections 3.2.1 to 3.2.3,
// Algorithm 1). It is pure. docs/adr/0001-shares.md lists the corrections to the print of
// Algorithm 1; nothing is added to it.
//
//	Window ──Measurement──> Observation ──tune──> demand ──allocate──> grant ──Controller──> change
//
// The steps:
//
//  1. Measurement: averages of latency, throughput and rate since the share last changed.
//  2. tune: the share that an inference function (IF) needs, from its performance with the
//     present one.
//  3. allocate: max-min fairness among the demands.
//  4. Controller: no change within the threshold, and none before the hold-down has passed.
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

// quantum is the smallest difference of shares, in percent. It is a power of two, so sums of
// shares are exact in floating point and never exceed 100 %.
const quantum = 1.0 / 64

// ID is one instance of an inference function.
type ID struct {
	IF       string
	Instance int
}

// String returns the name in logs and metrics.
func (id ID) String() string { return fmt.Sprintf("%s/%d", id.IF, id.Instance) }

// Compare orders IDs: by IF, then by instance.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.IF, other.IF), cmp.Compare(id.Instance, other.Instance))
}

const (
	// unknownPercent is the demand of an IF without knee and observations (3.2.3).
	unknownPercent = 30
	// thresholdPercent: residuals within it are no reason to tune. Changes within it, in percent
	// of the present share, are not made (3.2.1, 3.2.2).
	thresholdPercent = 5
)

// Config has the parameters of the decisions.
type Config struct {
	// MinimumPercent is the minimum share. If there are too many IFs for it, the minimum is an
	// equal part of 100.
	MinimumPercent float64
	// HoldDown is how long a share stays after a change, 10 s in the paper (3.2.1). Adding and removing IFs does not wait
	// for it.
	HoldDown time.Duration
	// SpreadSlack also divides the part of the device beyond all demands, in proportion to the
	// demands.
	SpreadSlack bool
}

// ceilTo returns the smallest multiple of quantum that is at least percent. It ignores rounding
// errors.
func ceilTo(percent float64) float64 { return math.Ceil(percent/quantum-1e-9) * quantum }

// floorTo returns the largest multiple of quantum that is at most percent.
func floorTo(percent float64) float64 { return math.Floor(percent/quantum) * quantum }
