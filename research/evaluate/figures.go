package evaluate

import (
	"fmt"
	"slices"
	"time"
)

const ms = time.Millisecond

// The models, as research/convert/export_torchvision.py names them.
const (
	alexnet   = "alexnet"
	mobilenet = "mobilenetv2"
	resnet50  = "resnet50"
	resnet152 = "resnet152"
	resnext50 = "resnext50"
	vgg16     = "vgg16"
	vgg19     = "vgg19"
	gnmt      = "gnmt"
)

// ladderOf returns a model's batch sizes. MobileNet has fewer: when the committed reports were
// measured, cuDNN compiled its kernels for three seconds per size. Now it compiles none
// (docs/adr/0007), but another ladder would not continue or compare with those reports.
func ladderOf(model string) []int {
	if model == mobilenet {
		return []int{1, 8, 32}
	}
	return []int{1, 2, 4, 8, 16, 32}
}

// The fixed shares are MPS percentages at which f16 models answer correctly on an H200
// (docs/adr/0007). In multiprocessors: 8 % are 10, 12 are 14, 24 are 30, 26 are 34, 50 are
// 66, 90 are 118.

// one returns a function that runs alone.
func one(model string, slo time.Duration) []Function {
	return []Function{{Name: model, Model: model, SLO: slo, Batches: ladderOf(model), Weight: 1, Percent: 100}}
}

// mix returns functions that share the device. Each offers an equal part of its capacity. At
// level 1 they together need the whole device, if switching between them cost nothing.
func mix(slo time.Duration, percent float64, models ...string) (functions []Function) {
	for _, m := range models {
		f := offered(m, slo, 1/float64(len(models)))
		f.Percent = percent
		functions = append(functions, f)
	}
	number(functions)
	return functions
}

// number gives the second function of a model and those after it distinct names.
func number(functions []Function) {
	count := map[string]int{}
	for i := range functions {
		f := &functions[i]
		if count[f.Model]++; count[f.Model] > 1 {
			f.Name = fmt.Sprintf("%s-%d", f.Model, count[f.Model])
		}
	}
}

// with sets the percentage of the functions of a model.
func with(functions []Function, model string, percent float64) []Function {
	for i := range functions {
		if functions[i].Model == model {
			functions[i].Percent = percent
		}
	}
	return functions
}

// ladders gives all functions a ladder.
func ladders(functions []Function, batches ...int) []Function {
	for i := range functions {
		functions[i].Batches = batches
	}
	return functions
}

// loads is an open loop at three levels, from light load to overload.
func loads(name string, functions []Function, variants ...string) Case {
	return Case{Name: name, Kind: kindLoads, Functions: functions, Variants: variants,
		Levels: []float64{0.3, 0.9, 1.5}, Settle: 1500 * ms, Warmup: 1200 * ms, Measure: 1200 * ms}
}

// levels replaces a case's levels.
func (c Case) levels(all ...float64) Case {
	c.Levels = all
	return c
}

// noted adds a note to the case.
func (c Case) noted(text string) Case {
	c.Note = text
	return c
}

// policies are the ways to share a device that guarantees are compared with: no shares, percentages
// that never change, and the paper's policy by shadows and by partitions.
var policies = []string{guaranteed, mpsSLAB, static, shadow, partition}

// allFigures returns all figures, the most useful figure to measure first.
func allFigures() []Figure {
	const slo = 25 * ms
	sharing := []string{defaultMPS, timeSliceSLAB, mpsSLAB, mpsAIMD, static, shadow, partition}
	// In Figure 15 a function comes, and another goes.
	arrivals := []Cue{{0, cueBegin, vgg16, 0.6}, {3 * time.Second, cueBegin, vgg19, 0.6}, {11 * time.Second, cueEnd, vgg16, 0}}
	biting := []string{timeSliceSLAB, mpsSLAB, static, partition}
	return []Figure{
		{
			Name: "fig10a", Title: "Two inference functions, within 25 ms", Paper: "Figure 10a, Table 3",
			Cases: []Case{
				loads("C1", mix(slo, 50, alexnet, resnet50), sharing...),
				loads("C2", mix(slo, 50, alexnet, vgg19), sharing...),
			},
		},
		{
			Name: "fig10b", Title: "Three and four inference functions, within 25 ms", Paper: "Figure 10b, Table 3",
			Cases: []Case{
				loads("C3", with(mix(slo, 24, alexnet, resnet50, vgg19), vgg19, 50), sharing...),
				loads("C4", mix(slo, 24, alexnet, resnet50, vgg19, mobilenet), sharing...),
			},
		},
		{
			Name: "fig8", Title: "One inference function of the lighter ones, within 25 ms", Paper: "Figure 8, Table 2",
			Cases: singles(slo, alexnet, mobilenet, resnet50),
		},
		{
			Name: "fig9", Title: "One inference function of the heavier ones, within 25 ms", Paper: "Figure 9, Table 2",
			Cases: singles(slo, vgg16, vgg19, gnmt),
		},
		{
			Name: "fig16", Title: "Shares that begin wrong", Paper: "Figure 16",
			Cases: []Case{{
				Name: "wrong shares", Kind: kindTimeline, Variants: []string{partition, shadow, restart},
				Functions: tuned(), Length: 14 * time.Second, Bin: 100 * ms, Frugal: true,
				Events: []Cue{{0, cueBegin, resnet50, 0.06}, {0, cueBegin, vgg19, 0.45}},
				Note:   "both begin with 26 %; vgg19 needs more, resnet50 less; what nobody demands stays free",
			}},
		},
		{
			Name: "fig15", Title: "A neighbour that comes, and a function that goes", Paper: "Figure 15",
			Cases: []Case{{
				Name: "workload change", Kind: kindTimeline, Variants: []string{mpsSLAB, mpsAIMD, static, partition},
				Functions: changing(), Length: 15 * time.Second, Bin: 100 * ms,
				Events: arrivals,
				Note:   "each is offered 60 % of what it can do alone: together more than there is; vgg19 is added at 3 s and gets its traffic when it serves",
			}},
		},
		{
			Name: "fig12c-14", Title: "SLAB against AIMD", Paper: "Figures 12c and 14",
			Cases: converging(25*ms, 50*ms, 75*ms, 100*ms),
		},
		{
			Name: "fig1", Title: "Functions added one after another", Paper: "Figure 1",
			Cases: []Case{
				adding("baselines without batching", 0.07, timeSlice, defaultMPS, partition),
				adding("all with SLAB", 0.35, timeSliceSLAB, mpsSLAB, static, partition),
			},
		},
		{
			Name: "fig12ab", Title: "What each part brings", Paper: "Figures 12a and 12b",
			Cases: []Case{
				part(one(alexnet, slo)), part(one(resnet50, slo)), part(one(vgg19, slo)),
				brief(loads("C3", with(mix(slo, 24, alexnet, resnet50, vgg19), vgg19, 50), defaultMPS, mpsOnlyShares, partition).levels(0.1, 0.9)),
			},
		},
		{
			Name: "table5", Title: "Batch sizes", Paper: "Table 5",
			Cases: []Case{bare("ready batches", []string{wholeGPU}, Ready{[]int{8, 16, 32}, []int{1, 2}, 400 * ms}, resnet50, vgg19)},
		},
		{
			Name: "fig5-7", Title: "Streams", Paper: "Figures 5, 6 and 7",
			Cases: []Case{
				bare("streams", []string{wholeGPU}, Ready{[]int{1, 8}, []int{1, 2}, 400 * ms}, resnet50, alexnet, vgg19),
				closedLoop("alexnet alone", one(alexnet, time.Second), mpsSLAB),
				closedLoop("resnext50 alone", one(resnext50, time.Second), mpsSLAB),
				closedLoop("alexnet and resnext50", mix(time.Second, 50, alexnet, resnext50), timeSliceSLAB, mpsSLAB, static, partition),
			},
		},
		{
			Name: "fig2-3", Title: "Knees: multiprocessors and batch sizes", Paper: "Figures 2 and 3",
			Cases: []Case{
				knees("models", []int{1, 8, 32}, resnet50, vgg19, gnmt),
				knees("alexnet", []int{1, 2, 4, 8, 16, 32}, alexnet),
			},
		},
		{
			Name: "fig11", Title: "Batches that are ready against fixed ones with a delay", Paper: "Figure 11, Table 4",
			Cases: []Case{capped(1), capped(4), capped(8), capped(16)},
		},
		{
			Name: "fig10-slo", Title: "Mixes within 5 and 10 ms", Paper: "Figure 10, Table 3, with objectives that bite here",
			Cases: []Case{
				loads("C2, 10 ms", mix(10*ms, 50, alexnet, vgg19), biting...), loads("C2, 5 ms", mix(5*ms, 50, alexnet, vgg19), biting...),
				loads("C3, 5 ms", with(mix(5*ms, 24, alexnet, resnet50, vgg19), vgg19, 50), biting...),
			},
		},
		{
			Name: "fig10-large", Title: "Mixes of 8 and 12 functions, within 25 ms", Paper: "Figure 10, Table 3, with mixes that fill the device",
			Cases: []Case{
				loads("8 functions", mix(slo, 12, alexnet, resnet50, resnext50, vgg16, vgg19, resnet152, gnmt, resnet50), biting...),
				loads("12 functions", mix(slo, 8, alexnet, resnet50, resnext50, vgg16, vgg19, resnet152, gnmt, resnet50,
					alexnet, resnet50, vgg16, vgg19), biting...),
			},
		},
		{
			Name: "guarantees", Title: "Two mixes next to an overloaded function, within 25 ms",
			Cases: []Case{
				combination("ResNet-152 next to VGG-19", rate(resnet152, 400), rate(vgg19, 9000)),
				combination("ResNet-50 and MobileNetV2 next to VGG-19", rate(resnet50, 2000), rate(mobilenet, 3000), rate(vgg19, 9000)),
			},
		},
		{
			Name: "mixes", Title: "The mixes of Figure 10 with guarantees, within 25 ms", Paper: "Figure 10, Table 3",
			Cases: []Case{
				loads("C1", mix(slo, 50, alexnet, resnet50), policies...),
				loads("C2", mix(slo, 50, alexnet, vgg19), policies...),
				loads("C3", with(mix(slo, 24, alexnet, resnet50, vgg19), vgg19, 50), policies...),
				loads("C4", mix(slo, 24, alexnet, resnet50, vgg19, mobilenet), policies...),
				loads("8 functions", mix(slo, 12, alexnet, resnet50, resnext50, vgg16, vgg19, resnet152, gnmt, resnet50), policies...),
				loads("12 functions", mix(slo, 8, alexnet, resnet50, resnext50, vgg16, vgg19, resnet152, gnmt, resnet50,
					alexnet, resnet50, vgg16, vgg19), policies...),
			},
		},
		{
			Name: "new-mixes", Title: "Five mixes with several objectives, of which the last function is overloaded",
			Cases: []Case{
				overloaded("N1", offered(resnet50, 10*ms, 0.4), offered(vgg19, 50*ms, 1.2)),
				overloaded("N2", offered(mobilenet, 10*ms, 0.25), offered(resnext50, 25*ms, 0.25), offered(gnmt, 100*ms, 1)),
				overloaded("N3", offered(alexnet, 10*ms, 0.2), offered(vgg16, 25*ms, 0.2), offered(resnet152, 50*ms, 0.2), offered(gnmt, 100*ms, 0.8)),
				overloaded("N4", offered(resnet50, 15*ms, 0.12), offered(resnet50, 15*ms, 0.12), offered(resnet50, 30*ms, 0.12),
					offered(mobilenet, 10*ms, 0.12), offered(gnmt, 60*ms, 0.12), offered(vgg16, 30*ms, 0.8)),
				overloaded("N5", offered(resnet152, 30*ms, 0.25), offered(vgg19, 50*ms, 0.25), offered(vgg19, 50*ms, 1)),
			},
		},
		{
			Name: "equal-objectives", Title: "Mixes of equal objectives, and of several next to two overloaded functions",
			Cases: []Case{
				long(loads("E", mix(slo, 12, alexnet, resnet50, resnext50, vgg16, vgg19, resnet152, gnmt, resnet50), guaranteed, partition, mpsSLAB).levels(0.6, 0.9)),
				long(loads("T1", []Function{
					rated(mobilenet, 10*ms, 600), rated(resnet50, 20*ms, 500), rated(resnet152, 40*ms, 120), rated(vgg19, 50*ms, 7000), rated(resnext50, 50*ms, 3000),
				}, guaranteed, partition, mpsSLAB).levels(1)),
				long(loads("T2b", bursts(16,
					rated(resnet50, 20*ms, 1200), rated(mobilenet, 20*ms, 1500), rated(vgg16, 20*ms, 1000), rated(alexnet, 20*ms, 1500),
				), guaranteed, partition, mpsSLAB).levels(1)),
			},
		},
		{
			Name: "short-objectives", Title: "Mixes with guarantees, within 5 and 10 ms", Paper: "Figure 10, Table 3, with objectives that bite here",
			Cases: []Case{
				loads("C2, 10 ms", mix(10*ms, 50, alexnet, vgg19), policies...), loads("C2, 5 ms", mix(5*ms, 50, alexnet, vgg19), policies...),
				loads("C3, 5 ms", with(mix(5*ms, 24, alexnet, resnet50, vgg19), vgg19, 50), policies...),
			},
		},
		{
			Name: "overload", Title: "One function that is offered twice what it can do, within 25 ms",
			Cases: []Case{
				loads("ResNet-50", one(resnet50, slo), guaranteed, mpsSLAB).levels(0.9, 2),
				loads("VGG-19", one(vgg19, slo), guaranteed, mpsSLAB).levels(0.9, 2),
			},
		},
		{
			Name: "blocking", Title: "A function at the highest level next to models at lower levels",
			Cases: blocking(alexnet, mobilenet, resnet50, resnext50, resnet152, vgg16, vgg19, gnmt),
		},
		{
			Name: "changes", Title: "Functions that come and go, with guarantees", Paper: "Figures 1 and 15",
			Cases: []Case{
				adding("functions added one after another", 0.35, policies...),
				{
					Name: "workload change", Kind: kindTimeline, Variants: policies,
					Functions: changing(), Length: 15 * time.Second, Bin: 100 * ms, Events: arrivals,
				},
			},
		},
	}
}

// rate returns a function that is offered a fixed number of requests per second.
func rate(model string, perSecond float64) Function {
	return Function{Name: model, Model: model, SLO: 25 * ms, Batches: ladderOf(model), PerSecond: perSecond}
}

// rated returns a function with an objective that is offered a fixed number of requests per second.
func rated(model string, slo time.Duration, perSecond float64) Function {
	f := rate(model, perSecond)
	f.SLO, f.Percent = slo, 12
	return f
}

// bursts makes requests arrive n at one time.
func bursts(n int, functions ...Function) []Function {
	for i := range functions {
		functions[i].Burst = n
	}
	return functions
}

// long measures each level of a case for 8 s.
func long(c Case) Case {
	c.Settle, c.Warmup, c.Measure = 3*time.Second, time.Second, 8*time.Second
	return c
}

// combination compares the policies. The second level overloads the last function.
func combination(name string, functions ...Function) Case {
	c := loads(name, functions, policies...).levels(0.5, 1)
	c.Settle, c.Warmup, c.Measure = 3*time.Second, time.Second, 4*time.Second
	for i := range c.Functions {
		c.Functions[i].Percent = 24
	}
	return c
}

// offered returns a function that is offered a part of its capacity.
func offered(model string, slo time.Duration, weight float64) Function {
	return Function{Name: model, Model: model, SLO: slo, Batches: ladderOf(model), Weight: weight, Percent: 12}
}

// overloaded compares the policies on a mix. At the second level the last function is offered
// more than its guarantee, and the others less than theirs.
func overloaded(name string, functions ...Function) Case {
	number(functions)
	return loads(name, functions, policies...).levels(0.5, 1)
}

// blocking runs one function at the highest level, alone and next to each model. The function's
// latency shows how long kernels of the model that already run delay others. At the first level of
// load the model's batches are within its guarantee. At the second the model is overloaded.
func blocking(models ...string) (cases []Case) {
	probe := offered(alexnet, 5*ms, 0.02)
	cases = append(cases, loads("alone", []Function{probe}, guaranteed).levels(0.5, 1))
	for _, model := range models {
		functions := []Function{probe, offered(model, 100*ms, 1.5)}
		number(functions)
		cases = append(cases, loads(model, functions, guaranteed).levels(0.5, 1))
	}
	return cases
}

func singles(slo time.Duration, models ...string) (cases []Case) {
	for _, model := range models {
		c := loads(model, one(model, slo), timeSlice, defaultMPS, mpsSLAB, mpsAIMD, partition).levels(0.15, 0.9, 1.3)
		cases = append(cases, brief(c))
	}
	return cases
}

// brief shortens a case.
func brief(c Case) Case {
	c.Settle, c.Warmup, c.Measure = 700*ms, 300*ms, 800*ms
	return c
}

// part runs one function with each component of Penstock alone.
func part(functions []Function) Case {
	return brief(loads(functions[0].Name, functions, defaultMPS, mpsStreams, mpsGather, mpsOnlySLAB, partition).levels(0.1, 0.9))
}

// tuned returns the functions of Figure 16. Each begins with a share that neither needs.
func tuned() []Function {
	functions := mix(50*ms, 26, resnet50, vgg19)
	functions[0].Weight, functions[1].Weight = 1, 1
	return functions
}

func changing() []Function {
	functions := mix(50*ms, 50, vgg16, vgg19)
	functions[0].Weight, functions[1].Weight = 1, 1
	return functions
}

// converging runs vgg19 under full load from the start, once per objective. Its ladder is
// long enough that the objective bounds the batch, not the ladder.
func converging(objectives ...time.Duration) (cases []Case) {
	for _, slo := range objectives {
		cases = append(cases, Case{
			Name: slo.String(), Kind: kindTimeline, Variants: []string{mpsSLAB, mpsAIMD},
			Functions: ladders(one(vgg19, slo), 1, 2, 4, 8, 16, 32, 64, 128, 256),
			Length:    5 * time.Second, Bin: 50 * ms,
			Events: []Cue{{0, cueBegin, vgg19, 0.95}},
		})
	}
	return cases
}

// adding is Figure 1: two functions of resnet50, then vgg19 in addition. Each is offered the
// level's part of its capacity.
func adding(name string, level float64, variants ...string) Case {
	functions := with(mix(50*ms, 24, resnet50, resnet50, vgg19), vgg19, 50)
	for i := range functions {
		functions[i].Weight = 1
	}
	return Case{
		Name: name, Kind: kindTimeline, Functions: functions, Variants: variants, Length: 13 * time.Second, Bin: 100 * ms,
		Events: []Cue{{0, cueBegin, functions[0].Name, level}, {2500 * ms, cueBegin, functions[1].Name, level}, {6 * time.Second, cueBegin, functions[2].Name, level}},
	}
}

func bare(name string, variants []string, ready Ready, models ...string) Case {
	c := Case{Name: name, Kind: kindBare, Variants: variants, Ready: ready}
	for _, m := range models {
		c.Functions = append(c.Functions, Function{Name: m, Model: m, Batches: ready.Batches})
	}
	return c
}

func knees(name string, batches []int, models ...string) Case {
	c := bare(name, []string{byPercentage, byGroups}, Ready{batches, []int{1}, 100 * ms}, models...)
	c.Percents = []float64{8, 24, 50, 90, 100}
	return c.noted("percentages at which f16 models answer rightly: 10, 30, 66, 118 and 132 multiprocessors")
}

func closedLoop(name string, functions []Function, variants ...string) Case {
	return Case{Name: name, Kind: kindClosed, Functions: functions, Variants: variants, Warmup: 1500 * ms, Measure: 1500 * ms}
}

// capped runs resnet50 with batches of at most n. It compares batches of whatever has
// arrived, on two streams, with batches of exactly n or of what has arrived after a delay.
func capped(n int) Case {
	sizes := []int{1, 2, 4, 8, 16}
	sizes = sizes[:slices.Index(sizes, n)+1]
	c := brief(loads(fmt.Sprintf("batches of at most %d", n), ladders(one(resnet50, 25*ms), sizes...), fixed(n), streams2)).levels(0.1, 0.5, 1.0)
	return c.noted("not Triton: its way of batching, in the same server")
}

// quick returns the figure with short times and two cases; on a CPU also with small models
// that Penstock includes. It only shows that the measurement works.
func (f *Figure) quick(onCPU bool) *Figure {
	q := *f
	q.Cases = nil
	for _, c := range f.Cases[:min(2, len(f.Cases))] {
		if len(c.Levels) > 2 {
			c.Levels = []float64{c.Levels[0], c.Levels[len(c.Levels)-1]}
		}
		c.Settle, c.Warmup, c.Measure = c.Settle/5, c.Warmup/2, c.Measure/3
		// A function that is added takes some seconds until it serves, so these time lines
		// keep their length.
		if !slices.ContainsFunc(c.Events, func(e Cue) bool { return e.What == cueBegin && e.At > 0 }) {
			c.Length = 2 * c.Length / 5
		}
		c.Ready.Duration /= 4
		if len(c.Percents) > 2 {
			c.Percents = []float64{c.Percents[0], c.Percents[len(c.Percents)-1]}
		}
		c.Functions = slices.Clone(c.Functions)
		if onCPU {
			c = c.onCPU()
		}
		q.Cases = append(q.Cases, c)
	}
	return &q
}

// onCPU replaces all models with two small ones.
func (c Case) onCPU() Case {
	small := []string{"fashion", "face"}
	for i := range c.Functions {
		f := &c.Functions[i]
		f.Model, f.Batches = small[i%len(small)], []int{1, 2, 4}
		f.SLO = max(f.SLO, 100*ms)
		f.PerSecond /= 50
	}
	if c.Kind == kindBare {
		c.Functions = c.Functions[:1]
		c.Ready.Batches, c.Ready.Streams = []int{1, 4}, []int{1}
	}
	return c
}
