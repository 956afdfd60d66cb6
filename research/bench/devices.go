package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/shm"
)

// Devices is the report of `penstock-lab devices`. It compares a node on one device with a node on all.
type Devices struct {
	Machine testbed.Machine `json:"machine"`
	// Devices are all; the node on one device has the first.
	Devices []string `json:"devices"`
	// Model is that of the single function. One and All are its answers per second under a closed loop, with an
	// objective of a second, a value per round.
	Model string    `json:"model"`
	One   []float64 `json:"one_per_s"`
	All   []float64 `json:"all_per_s"`
	// Ratio is the median of All / One, round by round.
	Ratio   float64        `json:"ratio"`
	Mixes   []DevicesMix   `json:"mixes,omitempty"`
	Doubled []DevicesGrown `json:"doubled,omitempty"`
}

// DevicesMix compares a function per model on one device with as many per device on all, at the same rates.
type DevicesMix struct {
	Load float64 `json:"load"` // of the capacity of one device
	// One and All are the percent in time of the worst function, a value per round.
	One []float64 `json:"one_worst_percent"`
	All []float64 `json:"all_worst_percent"`
}

// DevicesGrown is a function whose rate doubles, so that one device is too small for it.
type DevicesGrown struct {
	// Seconds is from the doubling until an instance serves on another device; Kept until all answers of a second are in time.
	Seconds float64 `json:"serves_s"`
	Kept    float64 `json:"kept_s"`
	// OthersLate counts the answers of the other functions that were not in time.
	Others, OthersLate int
}

// DevicesOptions say what is measured.
type DevicesOptions struct {
	Setup
	Devices []string
	// Models are those of the mixes; the first is also that of the single function and of the one that grows.
	ModelNames []string
	Loads      []float64
	Duration   time.Duration
	Rounds     int
	// InFlight is how many requests each of the closed loop's flows keeps in flight. There are devicesFlows per device.
	InFlight int
	// Receivers is the number of receivers of each function.
	Receivers int
}

const (
	devicesFlows = 4
	// patience is for how many objectives a client waits for an answer.
	patience = 10
)

// RunDevices measures, in each round, one device and all in turn.
func RunDevices(ctx context.Context, o DevicesOptions) (Devices, error) {
	r := Devices{Machine: o.Machine, Devices: o.Devices, Model: o.ModelNames[0]}
	one := o.Devices[:1]
	var ratios []float64
	for round := range o.Rounds {
		o.Printf("round %d of %d: %s", round+1, o.Rounds, r.Model)
		a, err := o.capacity(ctx, one, o.ModelNames[0], 2*o.InFlight, time.Second)
		if err != nil {
			return r, err
		}
		b, err := o.capacity(ctx, o.Devices, o.ModelNames[0], 2*o.InFlight, time.Second)
		if err != nil {
			return r, err
		}
		o.Printf("%.0f and %.0f answers per second: ratio %.3f", a, b, b/a)
		r.One, r.All, ratios = append(r.One, a), append(r.All, b), append(ratios, b/a)
	}
	r.Ratio, _, _ = Spread(ratios)
	if len(o.Loads) == 0 {
		return r, nil
	}

	capacity := map[string]float64{}
	for _, name := range o.ModelNames {
		c, err := o.capacity(ctx, one, name, o.InFlight, 0)
		if err != nil {
			return r, err
		}
		o.Printf("capacity for %s: %.0f answers in time per second", name, c)
		capacity[name] = c
	}
	for _, load := range o.Loads {
		r.Mixes = append(r.Mixes, DevicesMix{Load: load})
	}
	for round := range o.Rounds {
		for i := range r.Mixes {
			m := &r.Mixes[i]
			o.Printf("round %d of %d: load %v", round+1, o.Rounds, m.Load)
			a, err := o.worst(ctx, one, m.Load, capacity)
			if err != nil {
				return r, err
			}
			b, err := o.worst(ctx, o.Devices, m.Load, capacity)
			if err != nil {
				return r, err
			}
			o.Printf("the worst has %.2f and %.2f %% in time", a, b)
			m.One, m.All = append(m.One, a), append(m.All, b)
		}
		o.Printf("round %d of %d: a rate doubles", round+1, o.Rounds)
		g, err := o.double(ctx, capacity)
		if err != nil {
			return r, err
		}
		o.Printf("%+v", g)
		r.Doubled = append(r.Doubled, g)
	}
	return r, nil
}

// start starts a node with functions of these models on devices, and returns the pictures to send to each. Each
// function begins with so many instances. An objective of 0 is the card's.
func (o *DevicesOptions) start(ctx context.Context, devices []string, models []string, instances int, slo time.Duration) (*testbed.Harness, []devicesFunction, error) {
	list, err := json.Marshal(devices)
	if err != nil {
		return nil, nil, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "devices: %s\nfunctions:\n", list)
	functions := make([]devicesFunction, len(models))
	for i, name := range models {
		card, err := o.Card(name)
		if err != nil {
			return nil, nil, err
		}
		functions[i] = devicesFunction{name: fmt.Sprintf("%s-%d", name, i), slo: cmp.Or(slo, card.SLO), picture: testbed.Noise(card, 2)}
		fmt.Fprintf(&text, "  - {name: %s, model: %s, port: 0, receivers: %d, instances: %d, slo: %v}\n", functions[i].name, card.File, o.Receivers, instances, functions[i].slo)
	}
	b, err := testbed.Start(ctx, o.Binary, testbed.Options{More: text.String()})
	return b, functions, err
}

// devicesFunction is a function of a measured node.
type devicesFunction struct {
	name    string
	slo     time.Duration
	picture []byte
}

func (f *devicesFunction) traffic(ctx context.Context, b *testbed.Harness, flows, inFlight int) (*Traffic, error) {
	status, err := b.Function(f.name)
	if err != nil {
		return nil, err
	}
	return NewTraffic(ctx, TrafficOptions{
		Port: status.Port, Flows: flows, InFlight: inFlight, Picture: f.picture,
		Timeout: patience * f.slo, // so that a client does not send for long what an overload has left
	})
}

// late counts answers that were not ok, or later than the objective.
func (f *devicesFunction) late(all []Answered) (n int) {
	for _, a := range all {
		if a.Unsent || a.Status != client.StatusOK || time.Duration(a.Latency) > f.slo {
			n++
		}
	}
	return n
}

// capacity returns the answers in time per second of a single function under a closed loop, with inFlight requests on
// each flow and an instance per device.
func (o *DevicesOptions) capacity(ctx context.Context, devices []string, model string, inFlight int, slo time.Duration) (float64, error) {
	b, functions, err := o.start(ctx, devices, []string{model}, len(devices), slo)
	if err != nil {
		return 0, err
	}
	defer b.Kill()
	f := &functions[0]
	t, err := f.traffic(ctx, b, devicesFlows*len(devices), inFlight)
	if err != nil {
		return 0, err
	}
	defer t.Stop()
	if err := t.Keep(inFlight); err != nil {
		return 0, err
	}
	if err := testbed.Pause(ctx, o.Duration/2); err != nil { // batches adapt
		return 0, err
	}
	from := shm.Now()
	if err := testbed.Pause(ctx, o.Duration); err != nil {
		return 0, err
	}
	to := shm.Now()
	all := t.Between(from, to)
	return float64(len(all)-f.late(all)) / time.Duration(to-from).Seconds(), nil
}

// grown waits until a function's instances serve on two devices.
func grown(ctx context.Context, b *testbed.Harness, name string) error {
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("no second device after a minute"))
	defer cancel()
	return b.WaitFor(limit, "a second device", func() bool {
		f, err := b.Function(name)
		if err != nil {
			return false
		}
		var on []string
		for i := range f.Instances {
			if _, ok := f.Instances[i].Serving(); ok && !slices.Contains(on, f.Instances[i].Device) {
				on = append(on, f.Instances[i].Device)
			}
		}
		return len(on) > 1
	})
}

// worst runs a function per model and device at a load, and returns the percent in time of the worst one.
func (o *DevicesOptions) worst(ctx context.Context, devices []string, load float64, capacity map[string]float64) (float64, error) {
	b, functions, err := o.start(ctx, devices, slices.Repeat(o.ModelNames, len(devices)), 1, 0)
	if err != nil {
		return 0, err
	}
	defer b.Kill()
	var loads []*Traffic
	defer func() {
		for _, t := range loads {
			t.Stop()
		}
	}()
	for i := range functions {
		f := &functions[i]
		t, err := f.traffic(ctx, b, devicesFlows, 1024)
		if err != nil {
			return 0, err
		}
		t.Pace(load * capacity[o.ModelNames[i%len(o.ModelNames)]] / float64(len(o.ModelNames)))
		loads = append(loads, t)
	}
	if err := testbed.Pause(ctx, o.Duration); err != nil { // batches and guarantees adapt
		return 0, err
	}
	from := shm.Now()
	if err := testbed.Pause(ctx, o.Duration); err != nil {
		return 0, err
	}
	to, worst := shm.Now(), 100.0
	for i := range functions {
		all := loads[i].Between(from, to)
		late := functions[i].late(all)
		if late > 0 {
			o.Printf("%s on %d devices: %d of %d answers late, %s", functions[i].name, len(devices), late, len(all), outcomes(all))
		}
		worst = min(worst, 100*float64(len(all)-late)/float64(max(1, len(all))))
	}
	return worst, nil
}

// outcomes says how many requests ended in which way, and the largest latency.
func outcomes(all []Answered) string {
	count, longest := map[string]int{}, time.Duration(0)
	for _, a := range all {
		what := a.Status.String()
		if a.Unsent {
			what = "unsent"
		}
		count[what]++
		longest = max(longest, time.Duration(a.Latency))
	}
	return fmt.Sprintf("%v, the last after %v", count, longest.Round(time.Millisecond))
}

// double gives the first model's function 0.75 and then 1.5 times the capacity of a device, next to small functions of the others.
func (o *DevicesOptions) double(ctx context.Context, capacity map[string]float64) (g DevicesGrown, err error) {
	b, functions, err := o.start(ctx, o.Devices, o.ModelNames, 1, 0)
	if err != nil {
		return g, err
	}
	defer b.Kill()
	var loads []*Traffic
	defer func() {
		for _, t := range loads {
			t.Stop()
		}
	}()
	pace := func(f *devicesFunction, rate float64) error {
		t, err := f.traffic(ctx, b, devicesFlows, 1024)
		if err == nil {
			t.Pace(rate)
			loads = append(loads, t)
		}
		return err
	}
	for i := range functions {
		part := 0.75
		if i > 0 {
			part = 0.05
		}
		if err := pace(&functions[i], part*capacity[o.ModelNames[i]]); err != nil {
			return g, err
		}
	}
	if err := testbed.Pause(ctx, o.Duration); err != nil {
		return g, err
	}
	from := shm.Now()
	if err := pace(&functions[0], 0.75*capacity[o.ModelNames[0]]); err != nil {
		return g, err
	}
	if err := grown(ctx, b, functions[0].name); err != nil {
		return g, err
	}
	g.Seconds = time.Duration(shm.Now() - from).Seconds()
	first := &functions[0]
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("answers were late for a minute"))
	defer cancel()
	err = b.WaitFor(limit, "answers in time", func() bool {
		now := shm.Now()
		last := slices.Concat(loads[0].Between(now-int64(time.Second), now), loads[len(loads)-1].Between(now-int64(time.Second), now))
		g.Kept = time.Duration(now - from).Seconds()
		return len(last) > 0 && first.late(last) == 0
	})
	for i := range functions[1:] {
		all := loads[i+1].Between(from, 0)
		g.Others += len(all)
		g.OthersLate += functions[i+1].late(all)
	}
	return g, cmp.Or(err, ctx.Err())
}
