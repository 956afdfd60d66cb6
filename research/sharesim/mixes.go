package sharesim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/manager/policy/guarantee"
)

// transit is what a node leaves of each objective for the network (docs/adr/0014).
const transit = 500 * time.Microsecond

// model is a model of the evaluation, as its batches of 1, 8 and 32 were measured on an
// H200 (research/results/evaluation, fig2-3, fig8, fig9 and the capacities of fig10-large).
type model struct {
	fixed, perImage time.Duration
	maxBatch        float64 // requests per second that an evaluation counts as all it can do alone
}

var models = map[string]model{
	"alexnet":     {150 * time.Microsecond, 10 * time.Microsecond, 24000},
	"mobilenetv2": {350 * time.Microsecond, 57 * time.Microsecond, 14300},
	"resnet50":    {475 * time.Microsecond, 73 * time.Microsecond, 10080},
	"resnext50":   {600 * time.Microsecond, 95 * time.Microsecond, 8470},
	"resnet152":   {1350 * time.Microsecond, 160 * time.Microsecond, 4890},
	"vgg16":       {265 * time.Microsecond, 127 * time.Microsecond, 7040},
	"vgg19":       {280 * time.Microsecond, 140 * time.Microsecond, 6180},
	"gnmt":        {980 * time.Microsecond, 2500 * time.Nanosecond, 26900},
}

// kernels is how many parts of a model's batch cannot be preempted.
const kernels = 40

func evaluated(name string, objective time.Duration, rate float64) Function {
	m := models[name]
	return Function{
		Name: name, Objective: objective - transit, Fixed: m.fixed, PerImage: m.perImage, Kernels: kernels,
		Phases: []Phase{{0, rate}},
	}
}

// Mix is a named Config.
type Mix struct {
	Name string
	Config
}

// On returns the mix on a device that functions share in another way.
func (m Mix) On(sharing Sharing) Mix {
	if m.Sharing == sharing {
		return m
	}
	m.Sharing = sharing
	m.Functions = slices.Clone(m.Functions)
	for i := range m.Functions {
		m.Functions[i].Narrow = 1
	}
	return m
}

// EvaluationMixes returns the mixes of research/evaluate, each at its three levels, and
// two in which VGG-19 is overloaded.
func EvaluationMixes() (mixes []Mix) {
	const ms = time.Millisecond
	times := Config{Seed: 1, Duration: 10 * time.Second, Settle: 3 * time.Second}
	for _, m := range []struct {
		name      string
		objective time.Duration
		models    []string
	}{
		{"C1", 25 * ms, []string{"alexnet", "resnet50"}},
		{"C2", 25 * ms, []string{"alexnet", "vgg19"}},
		{"C3", 25 * ms, []string{"alexnet", "resnet50", "vgg19"}},
		{"C4", 25 * ms, []string{"alexnet", "resnet50", "vgg19", "mobilenetv2"}},
		{"C2, 10 ms", 10 * ms, []string{"alexnet", "vgg19"}},
		{"C2, 5 ms", 5 * ms, []string{"alexnet", "vgg19"}},
		{"C3, 5 ms", 5 * ms, []string{"alexnet", "resnet50", "vgg19"}},
		{"8 functions", 25 * ms, []string{"alexnet", "resnet50", "resnext50", "vgg16", "vgg19", "resnet152", "gnmt", "resnet50"}},
		{"12 functions", 25 * ms, []string{
			"alexnet", "resnet50", "resnext50", "vgg16", "vgg19", "resnet152", "gnmt", "resnet50",
			"alexnet", "resnet50", "vgg16", "vgg19",
		}},
	} {
		for _, level := range []float64{0.3, 0.9, 1.5} {
			mix := Mix{Name: fmt.Sprintf("%s at %.0f %%", m.name, 100*level), Config: times}
			for _, name := range m.models {
				mix.Functions = append(mix.Functions, evaluated(name, m.objective, level*models[name].maxBatch/float64(len(m.models))))
			}
			mixes = append(mixes, mix)
		}
	}
	for _, m := range []Mix{
		{Name: "resnet152 next to vgg19", Config: Config{Functions: []Function{
			evaluated("resnet152", 25*ms, 400), evaluated("vgg19", 50*ms, 9000),
		}}},
		{Name: "resnet50 and mobilenetv2 next to vgg19", Config: Config{Functions: []Function{
			evaluated("resnet50", 10*ms, 1500), evaluated("mobilenetv2", 10*ms, 1500), evaluated("vgg19", 100*ms, 9000),
		}}},
	} {
		m.Seed, m.Duration, m.Settle = times.Seed, times.Duration, times.Settle
		mixes = append(mixes, m)
	}
	return append(mixes, EqualObjectives(0.6), EqualObjectives(0.9))
}

// EqualObjectives returns the mix E of research/evaluate: eight functions of 25 ms, each offered that part of an eighth of
// its capacity on an H200.
func EqualObjectives(level float64) Mix {
	m := Mix{Name: fmt.Sprintf("E at %.0f %%", 100*level), Config: Config{Seed: 1, Duration: 10 * time.Second, Settle: 3 * time.Second}}
	for _, f := range []struct {
		model    string
		capacity float64
	}{
		{"alexnet", 24000}, {"resnet50", 10750}, {"resnext50", 8830}, {"vgg16", 7200}, {"vgg19", 6370}, {"resnet152", 5180},
		{"gnmt", 37800}, {"resnet50", 10750},
	} {
		m.Functions = append(m.Functions, evaluated(f.model, 25*time.Millisecond, level*f.capacity/8))
	}
	return m
}

// Random mixes run for this long.
const (
	randomDuration = 20 * time.Second
	randomSettle   = 4 * time.Second
)

// RandomMix returns a mix of 2 to 12 functions with objectives of 5 to 100 ms. Each is
// steady, changes its rate in steps, has bursts, falls silent, comes late, or asks for two
// to four times its guarantee.
func RandomMix(seed uint64) Mix { return RandomMixOn(Priorities, seed) }

// RandomMixOn returns such a mix on a device that functions share in another way. Its rates are for batches
// that use the whole device, unless sharing is Priorities.
func RandomMixOn(sharing Sharing, seed uint64) Mix {
	r := rand.New(rand.NewPCG(seed, 1<<32))
	logUniform := func(minValue, maxValue float64) float64 {
		return minValue * math.Pow(maxValue/minValue, r.Float64())
	}
	n := 2 + r.IntN(11)
	mix := Mix{Name: fmt.Sprintf("random %d", seed), Config: Config{Seed: seed, Sharing: sharing, Duration: randomDuration, Settle: randomSettle}}
	parts, sum := make([]float64, n), 0.0
	for i := range parts {
		parts[i] = 0.1 + r.ExpFloat64()
		sum += parts[i]
	}
	load := 0.3 + 0.55*r.Float64() // the needs of all
	var wants []guarantee.Function
	rates := make([]float64, n)
	for i := range n {
		objective := time.Duration(logUniform(5e6, 100e6))
		single := logUniform(3e5, min(8e6, float64(objective)/8))
		perImage := single * (0.05 + 0.45*r.Float64())
		f := Function{
			Name: fmt.Sprintf("f%d", i), Objective: objective, Kernels: 10 + r.IntN(90),
			Fixed: time.Duration(single - perImage), PerImage: time.Duration(perImage),
		}
		if f.Narrow = 0.2 + 0.4*r.Float64(); sharing != Priorities {
			f.Narrow = 1
		}
		if r.IntN(10) == 0 {
			f.Kernels = 2 + r.IntN(4)
		}
		rates[i] = f.rateOf(load * parts[i] / sum)
		mix.Functions = append(mix.Functions, f)
		wants = append(wants, guarantee.Function{Objective: objective, Rate: rates[i], Batch: maxBatch, Cost: f.PerImage, Fixed: time.Duration(f.Narrow * float64(f.Fixed))})
	}
	actions := guarantee.Decide(wants)
	for i := range mix.Functions {
		f := &mix.Functions[i]
		f.Phases = phases(r, rates[i], f.rateOf(actions[i].Guarantee))
	}
	return mix
}

// rateOf returns the rate whose need is that part of the device.
func (f *Function) rateOf(part float64) float64 {
	low, high := 0.1, 1e6
	for range 60 {
		if middle := math.Sqrt(low * high); f.Need(middle) < part {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// phases returns the load of a function of a base rate, whose guarantee lets it have
// guaranteed requests per second.
func phases(r *rand.Rand, base, guaranteed float64) []Phase {
	end := randomDuration
	between := func(minValue, maxValue time.Duration) time.Duration {
		return minValue + time.Duration(r.Int64N(int64(maxValue-minValue)))
	}
	all := []Phase{{0, base}}
	switch kind := r.IntN(100); {
	case kind < 30: // steady
	case kind < 50: // steps
		for at := between(time.Second, 6*time.Second); at < end; at += between(2*time.Second, 6*time.Second) {
			all = append(all, Phase{at, base * (0.3 + 1.7*r.Float64())})
		}
	case kind < 65: // bursts
		for at := between(time.Second, 3*time.Second); at < end; at += between(time.Second, 3*time.Second) {
			all = append(all, Phase{at, base * (2 + 4*r.Float64())})
			at += between(20*time.Millisecond, 300*time.Millisecond)
			all = append(all, Phase{at, base})
		}
	case kind < 75: // silence
		for at := between(time.Second, 5*time.Second); at < end; at += between(2*time.Second, 5*time.Second) {
			all = append(all, Phase{at, 0})
			at += between(2*time.Second, 8*time.Second)
			all = append(all, Phase{at, base})
		}
	case kind < 85: // comes late
		all[0].At = between(3*time.Second, 12*time.Second)
	default: // overload
		all = append(all, Phase{between(time.Second, 8*time.Second), max(base, guaranteed) * (2 + 2*r.Float64())})
	}
	return all
}
