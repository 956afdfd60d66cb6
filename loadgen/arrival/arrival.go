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
	// streams take turns within a group.
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
	case Constant:
		a.points = &constant{next: random.Float64()}
	case Video:
		a.points = newVideo(streams, random)
	case Bursts:
		a.points = &bursts{size: max(p.Size, 1), random: random}
	default:
		a.points = &poisson{random: random}
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

type poisson struct {
	random *rand.Rand
	point  float64
}

// If the points of a Poisson process go to random streams, each stream is an
// independent Poisson process.
func (p *poisson) place(streams int) (float64, int) {
	p.point += p.random.ExpFloat64()
	return p.point, p.random.IntN(streams)
}

type constant struct {
	next  float64
	count int
}

func (c *constant) place(streams int) (float64, int) {
	point, stream := c.next, c.count%streams
	c.next++
	c.count++
	return point, stream
}

// video: a stream's frames lie `streams` points apart, starting at its phase.
// The phases ascend, so the streams' frames follow one another in the same
// order in every period.
type video struct {
	phases []float64
	period float64
	next   int
}

func newVideo(streams int, random *rand.Rand) *video {
	phases := make([]float64, streams)
	for i := range phases {
		phases[i] = random.Float64() * float64(streams)
	}
	slices.Sort(phases)
	return &video{phases: phases}
}

func (v *video) place(streams int) (float64, int) {
	stream := v.next
	point := v.period + v.phases[stream]
	v.next++
	if v.next == streams {
		v.next = 0
		v.period += float64(streams)
	}
	return point, stream
}

type bursts struct {
	random *rand.Rand
	size   int
	point  float64
	left   int
	count  int
}

func (b *bursts) place(streams int) (float64, int) {
	if b.left == 0 {
		b.point += b.random.ExpFloat64() * float64(b.size)
		b.left = b.size
	}
	b.left--
	stream := b.count % streams
	b.count++
	return b.point, stream
}
