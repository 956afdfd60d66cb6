// Package arrival computes send times for requests. It is pure: it has no
// clock, and the same seed gives the same times.
//
//	process (random)            rate (requests per second, changes in time)
//	  │ points, one per request   │
//	  └────────────┬──────────────┘
//	               v
//	 the time at which the rate's integral reaches the point
//
// A process places points on an axis on which one unit is one request. A Rate
// maps that axis to time by the inverse of its integral. Every process
// therefore follows every change of rate exactly, without thinning and without
// a jump in phase. Poisson points stay Poisson. Equally spaced points stay
// equally spaced between two changes.
package arrival

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Never is the time of an arrival that never happens, because the rate stays 0.
const Never = time.Duration(math.MaxInt64)

// Arrival is the scheduled time of one request.
type Arrival struct {
	// At is the time since the start; it never decreases.
	At time.Duration
	// Stream is the client, from 0, that sends it.
	Stream int
}

// Arrivals is an endless sequence of arrivals. One goroutine uses it.
type Arrivals interface {
	// Next returns the next arrival. Its At is Never if there are no more.
	Next() Arrival
}

// Shape names an arrival process.
type Shape uint8

const (
	// Poisson arrivals are independent of each other, like those of many users.
	// The streams are independent Poisson processes of equal rate.
	Poisson Shape = iota
	// Constant arrivals are equally spaced, the first at a random phase. The
	// streams take turns.
	Constant
	// Video is streams of equally spaced frames. Each stream has its own random
	// phase, as cameras have.
	Video
	// Bursts are groups of requests at one time. The groups are Poisson; the
	// streams take turns within a group, from a random one on.
	Bursts
)

// Process is an arrival process. The zero value is Poisson.
type Process struct {
	Shape Shape
	// FramesPerSecond is the rate of one stream of Video.
	FramesPerSecond float64
	// Size is how many requests a burst has.
	Size int
}

// Parse reads a process in the form of the command line: "poisson", "constant",
// "30fps" (any number of frames per second), "bursts:16" (any size).
func Parse(text string) (Process, error) {
	switch text {
	case "poisson":
		return Process{Shape: Poisson}, nil
	case "constant":
		return Process{Shape: Constant}, nil
	}
	if number, ok := strings.CutSuffix(text, "fps"); ok {
		fps, err := strconv.ParseFloat(number, 64)
		if err == nil && fps > 0 && !math.IsInf(fps, 1) {
			return Process{Shape: Video, FramesPerSecond: fps}, nil
		}
	}
	if number, ok := strings.CutPrefix(text, "bursts:"); ok {
		size, err := strconv.Atoi(number)
		if err == nil && size > 0 {
			return Process{Shape: Bursts, Size: size}, nil
		}
	}
	return Process{}, fmt.Errorf("parse arrivals %q: want poisson, constant, a frame rate like 30fps, or a burst size like bursts:16", text)
}

// String returns the form that Parse reads.
func (p Process) String() string {
	switch p.Shape {
	case Poisson:
		return "poisson"
	case Constant:
		return "constant"
	case Video:
		return strconv.FormatFloat(p.FramesPerSecond, 'g', -1, 64) + "fps"
	case Bursts:
		return "bursts:" + strconv.Itoa(p.Size)
	}
	return "Shape(" + strconv.Itoa(int(p.Shape)) + ")"
}

// New returns the arrivals of a process at a rate, over at least 1 stream.
// Functions of one run need different seeds, or their requests arrive together.
//
// Video's own rate is streams × FramesPerSecond. Another rate speeds up or
// slows down all cameras alike.
func New(p Process, rate Rate, streams int, seed uint64) Arrivals {
	if streams < 1 {
		panic(fmt.Sprintf("arrival: %d streams", streams))
	}
	// The second word is an arbitrary constant; it only has to be the same
	// every time.
	random := rand.New(rand.NewPCG(seed, 0x70656e73746f636b))
	a := &arrivals{rate: cursor{steps: rate.steps}, streams: streams}
	switch p.Shape {
	case Constant, Video:
		a.points = newPeriodic(streams, p.Shape == Constant, random)
	default:
		a.points = &bursts{size: max(p.Size, 1), random: random}
	}
	return a
}

type arrivals struct {
	points  points
	rate    cursor
	streams int
}

func (a *arrivals) Next() Arrival {
	point, stream := a.points.place(a.streams)
	return Arrival{At: a.rate.at(point), Stream: stream}
}

// points is a process on the axis of requests. Its points have a mean density
// of 1 and never decrease.
type points interface {
	place(streams int) (point float64, stream int)
}

// periodic: a stream's requests lie `streams` points apart, starting at its phase.
// The phases ascend, so the streams follow one another in the same order in every
// period.
type periodic struct {
	phases []float64
	period float64
	next   int
}

// newPeriodic gives each stream a random phase. If spaced, only the first one is
// random, and the others follow at equal distances.
func newPeriodic(streams int, spaced bool, random *rand.Rand) *periodic {
	phases := make([]float64, streams)
	first := random.Float64()
	for i := range phases {
		phases[i] = first + float64(i)
		if !spaced {
			phases[i] = random.Float64() * float64(streams)
		}
	}
	slices.Sort(phases)
	return &periodic{phases: phases}
}

func (c *periodic) place(streams int) (float64, int) {
	stream := c.next
	point := c.period + c.phases[stream]
	c.next++
	if c.next == streams {
		c.next = 0
		c.period += float64(streams)
	}
	return point, stream
}

// bursts are Poisson. The first request of a burst goes to a random stream. With
// bursts of one request, each stream is therefore an independent Poisson process.
type bursts struct {
	random *rand.Rand
	size   int
	point  float64
	left   int
	stream int
}

func (b *bursts) place(streams int) (float64, int) {
	if b.left == 0 {
		b.point += b.random.ExpFloat64() * float64(b.size)
		b.left, b.stream = b.size, b.random.IntN(streams)
	}
	b.left--
	stream := b.stream
	b.stream = (stream + 1) % streams
	return b.point, stream
}
