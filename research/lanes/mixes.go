package lanes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock/libml/lane"
)

// copyRate is that of a model's pinned pages to an H200. The next load begins loadAhead before the last one ends, as in
// a worker.
const (
	copyRate  = 50e9
	loadAhead = ms
)

const (
	ms  = time.Millisecond
	gib = 1 << 30
)

// architecture is a model of research/convert/README.md. The times are those of its batches of
// 1 and 8 on an H200. scratchMB is for batches to 8. That of resnet50 was measured
// (docs/adr/0007-onnx-on-a-gpu.md); the others are two to four times the largest activation.
type architecture struct {
	name                 string
	weightsMB, scratchMB float64
	one, eight           time.Duration
}

var architectures = []architecture{
	{"resnet152", 120.2, 58, 1410 * time.Microsecond, 2580 * time.Microsecond},
	{"gnmt", 170.0, 16, 970 * time.Microsecond, 1110 * time.Microsecond},
	{"alexnet", 122.2, 8, 160 * time.Microsecond, 230 * time.Microsecond},
	{"mobilenetv2", 7.0, 40, 340 * time.Microsecond, 790 * time.Microsecond},
	{"resnet50", 51.0, 58, 530 * time.Microsecond, 1070 * time.Microsecond},
	{"resnext50", 50.0, 58, 510 * time.Microsecond, 1200 * time.Microsecond},
	{"vgg16", 276.8, 103, 360 * time.Microsecond, 1210 * time.Microsecond},
	{"vgg19", 287.4, 103, 410 * time.Microsecond, 1370 * time.Microsecond},
}

func (a architecture) model(name string) Model {
	perImage := (a.eight - a.one) / 7
	return Model{
		Name: name, Fixed: a.one - perImage, PerImage: perImage, MaxBatch: 8, Objective: 25 * ms,
		Model: lane.Model{ScratchBytes: int64(a.scratchMB * 1e6), WeightsBytes: int64(a.weightsMB * 1e6)},
	}
}

// zipf sets the rates of models: that of the k-th most popular is 1/k^exponent of the first's.
// Which model is how popular is random. The lanes are busy for a part of their time if each
// request has its own batch.
func zipf(models []Model, exponent, busy float64, lanes int, random *rand.Rand) {
	var work float64
	order := random.Perm(len(models))
	for rank, i := range order {
		models[i].Rate = math.Pow(float64(rank+1), -exponent)
		work += models[i].Rate * models[i].batchTime(1).Seconds()
	}
	for i := range models {
		models[i].Rate *= busy * float64(lanes) / work
	}
}

// FortyTwo is the worker of the paper's section 5.3: 42 models on a GPU. They are the eight
// architectures, five or six times each, with 5.7 GB of weights. Popularity follows Zipf's law
// with an exponent of 1, two lanes are busy half the time, and the objective is 25 ms.
func FortyTwo(memoryBytes int64, busy float64, seed uint64) Config {
	c := Config{
		Capacity: lane.Capacity{MemoryBytes: memoryBytes, Lanes: 2}, CopyRate: copyRate, Ahead: loadAhead,
		Transfer: ms, Seed: seed, Duration: 30 * time.Second, Settle: 10 * time.Second,
	}
	for i := range 42 {
		a := architectures[i%len(architectures)]
		c.Models = append(c.Models, a.model(fmt.Sprintf("%s-%d", a.name, i/len(architectures))))
	}
	zipf(c.Models, 1, busy, c.Capacity.Lanes, rand.New(rand.NewPCG(seed, 2)))
	return c
}

// RandomMix returns a worker of 4 to 24 models with 1 to 3 lanes and objectives of 10 to 100
// ms. Some models come late, are removed, begin on disk, or serve a periodic stream. The
// lanes are busy for 30 to 130 % of their time, the weights need 0.8 to 4 times the memory.
func RandomMix(seed uint64) Config {
	r := rand.New(rand.NewPCG(seed, 3))
	between := func(low, high float64) float64 { return low + (high-low)*r.Float64() }
	logBetween := func(low, high float64) float64 { return low * math.Pow(high/low, r.Float64()) }
	c := Config{
		Capacity: lane.Capacity{Lanes: 1 + r.IntN(3), FixedBytes: int64(between(0, 3e8))}, CopyRate: copyRate, Ahead: loadAhead,
		Transfer: time.Duration(logBetween(1e5, 3e6)), LateLoads: between(0, 0.02), Unproven: between(0, 0.1),
		Seed: seed, Duration: 6 * time.Second, Settle: 2 * time.Second,
	}
	var weights, largestWeights, largestScratch, fixed int64
	for i := range 4 + r.IntN(21) {
		one := logBetween(2e5, 4e6)
		perImage := one * between(0.02, 0.4)
		m := Model{
			Name: fmt.Sprintf("m%d", i), Fixed: time.Duration(one - perImage), PerImage: time.Duration(perImage), MaxBatch: 1 << r.IntN(5),
			Objective: time.Duration(logBetween(10e6, 100e6)),
			Model: lane.Model{
				FixedBytes: int64(between(0, 1e7)), ScratchBytes: int64(logBetween(4e6, 2e8)), WeightsBytes: int64(logBetween(5e6, 3e8)),
			},
		}
		switch r.IntN(8) {
		case 0:
			m.From = time.Duration(between(1e9, 6e9))
		case 1:
			m.Until = time.Duration(between(3e9, 9e9))
		}
		c.Models = append(c.Models, m)
		weights += m.WeightsBytes
		fixed += m.FixedBytes
		largestWeights, largestScratch = max(largestWeights, m.WeightsBytes), max(largestScratch, m.ScratchBytes)
	}
	zipf(c.Models, between(0, 1.3), between(0.3, 1.3), c.Capacity.Lanes, r)
	for i := range c.Models {
		if m := &c.Models[i]; m.Rate < 50 && r.IntN(4) == 0 {
			m.Period, m.Rate = time.Duration(float64(time.Second)/m.Rate), 0
		}
	}
	safe := c.Capacity.FixedBytes + fixed + int64(c.Capacity.Lanes)*(largestScratch+largestWeights)
	room := int64(float64(weights) / logBetween(0.8, 4))
	c.Capacity.MemoryBytes = max(safe, c.Capacity.FixedBytes+fixed+int64(c.Capacity.Lanes)*largestScratch+room)
	return c
}
