package placement

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// on returns a function with one instance per need, on the devices a, b, ... It may use all of three.
func on(name string, needs ...float64) Function {
	f := Function{Name: name, Allowed: []string{"a", "b", "c"}}
	for i, need := range needs {
		if need >= 0 {
			f.Instances = append(f.Instances, Instance{Device: string(rune('a' + i)), NeedPercent: need})
		}
	}
	return f
}

func with(f Function, change func(f *Function)) Function {
	change(&f)
	return f
}

func TestDecide(t *testing.T) {
	costs := func(a, b float64) func(f *Function) {
		return func(f *Function) { f.Cost = map[string]float64{"a": a, "b": b} }
	}
	only := func(devices ...string) func(f *Function) { return func(f *Function) { f.Allowed = devices } }
	behind := func(f *Function) { f.Instances[0].Behind = true }
	fixed := func(f *Function) { f.Fixed = true }
	for _, c := range []struct {
		name      string
		functions []Function
		others    [2]float64 // what b and c need besides
		want      Action
	}{
		{"nothing is overloaded", []Function{on("f", 60), on("g", 30)}, [2]float64{}, Action{}},
		{"saturated", []Function{on("f", 87), on("g", 8)}, [2]float64{16, 16}, Action{Add, "f", 1, "b"}},
		{"best balance", []Function{on("f", 70), on("g", 50)}, [2]float64{20, 90}, Action{Move, "g", 0, "b"}},
		{"emptiest device", []Function{on("f", 70), on("g", 50)}, [2]float64{20, 10}, Action{Move, "g", 0, "c"}},
		{"alone it grows", []Function{on("f", 120)}, [2]float64{20, 10}, Action{Add, "f", 1, "c"}},
		{"alone on a slow one it moves", []Function{with(on("f", 120), costs(4, 1))}, [2]float64{20, 70}, Action{Move, "f", 0, "b"}},
		{"grows again", []Function{on("f", 110, 110)}, [2]float64{}, Action{Add, "f", 2, "c"}},
		{"too large for one", []Function{on("f", 130), on("g", 5)}, [2]float64{0, 90}, Action{Add, "f", 1, "b"}},
		{"behind", []Function{with(on("f", 60), behind), on("g", 8)}, [2]float64{16, 16}, Action{Add, "f", 1, "b"}},
		{"behind alone", []Function{with(on("f", 60), behind)}, [2]float64{16, 16}, Action{Add, "f", 1, "b"}},
		{"behind others", []Function{with(on("f", 5), behind), on("g", 70)}, [2]float64{16, 16}, Action{Move, "f", 0, "b"}},
		{"no device is free", []Function{on("f", 120)}, [2]float64{81, 95}, Action{}},
		{"may use no other", []Function{with(on("f", 120), only("a"))}, [2]float64{}, Action{}},
		{"may use another", []Function{with(on("f", 120), only("a", "b"))}, [2]float64{10, 0}, Action{Add, "f", 1, "b"}},
		{"fixed number", []Function{with(on("f", 120), fixed)}, [2]float64{}, Action{}},
		{"fixed number moves", []Function{with(on("f", 70), fixed), on("g", 40)}, [2]float64{0, 90}, Action{Move, "f", 0, "b"}},
		{"slower there", []Function{with(on("f", 70), costs(1, 3)), with(on("g", 60), costs(1, 3))}, [2]float64{0, 90}, Action{Add, "f", 1, "b"}},
		{"cannot run there", []Function{with(on("f", 120), costs(1, math.Inf(1)))}, [2]float64{0, 90}, Action{}},
		{"changing", []Function{on("f", 70), with(on("g", 50), func(f *Function) { f.Changing = true })}, [2]float64{}, Action{}},
		{"no gain", []Function{on("f", 101), on("g", 1)}, [2]float64{75, 79}, Action{}},
		{"an instance too many", []Function{on("f", 25, 25)}, [2]float64{}, Action{Remove, "f", 1, "b"}},
		{"both are needed", []Function{on("f", 31, 31)}, [2]float64{}, Action{}},
		{"others need the device", []Function{on("f", 25, 25), on("g", 15)}, [2]float64{}, Action{}},
		{"fixed number stays", []Function{with(on("f", 5, 5), fixed)}, [2]float64{}, Action{}},
		{"too slow without it", []Function{with(on("f", 30, 30), costs(5, 1))}, [2]float64{}, Action{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			devices := []Device{{"a", 0}, {"b", c.others[0]}, {"c", c.others[1]}}
			for _, f := range c.functions {
				for _, in := range f.Instances {
					devices[in.Device[0]-'a'].NeedsPercent += in.NeedPercent
				}
			}
			var p Policy
			now, patience := time.Duration(0), Patience
			if c.want.Kind == Remove {
				patience = Calm
			}
			for ; now < patience; now += time.Second {
				if got, ok := p.Decide(now, devices, c.functions); ok {
					t.Fatalf("%+v after %v", got, now)
				}
			}
			if got, ok := p.Decide(now, devices, c.functions); got != c.want || ok != (c.want.Kind != 0) {
				t.Errorf("%+v, %v; want %+v", got, ok, c.want)
			}
		})
	}
}

// A short overload is no reason, and each has its own patience.
func TestPatience(t *testing.T) {
	var p Policy
	f := []Function{on("f", 120)}
	for now := range 100 * time.Second / time.Second {
		devices := []Device{{"a", 120}, {"b", 0}}
		if now%9 == 8 {
			devices[0].NeedsPercent = 89
		}
		if a, ok := p.Decide(now*time.Second, devices, f); ok {
			t.Fatalf("%+v after %d s", a, now)
		}
	}
}

// node is a node in simulated time, with constant rates.
type node struct {
	names     []string
	functions []simulated
}

type simulated struct {
	rate float64
	cost map[string]float64 // the true one, in percent of the device's time per request
	// known is the part of the cost that the policy sees: processes also wait for what is not device time.
	known float64
	on    []string
	seen  map[string]float64
}

// look returns what the policy sees. Requests that a saturated device cannot answer do not arrive.
func (n *node) look() (devices []Device, functions []Function) {
	wanted, needs := map[string]float64{}, map[string]float64{}
	each := make([]float64, len(n.functions)) // wanted of each instance
	for i, s := range n.functions {
		speed := 0.0
		for _, d := range s.on {
			speed += 1 / s.cost[d]
			s.seen[d] = s.cost[d]
		}
		each[i] = s.rate / speed
		for _, d := range s.on {
			wanted[d] += each[i]
		}
	}
	for i, s := range n.functions {
		f := Function{Name: fmt.Sprint(i), Allowed: n.names, Cost: maps.Clone(s.seen)}
		for _, d := range s.on {
			in := Instance{Device: d, NeedPercent: s.known * each[i] * min(1, 100/wanted[d]), Behind: wanted[d] > 100}
			f.Instances = append(f.Instances, in)
			needs[d] += in.NeedPercent
		}
		functions = append(functions, f)
	}
	for _, name := range n.names {
		devices = append(devices, Device{name, needs[name]})
	}
	return devices, functions
}

// At constant rates there are finitely many actions, whatever the devices cost.
func TestComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := node{names: []string{"a", "b", "c", "d"}[:rapid.IntRange(1, 4).Draw(t, "devices")]}
		for range rapid.IntRange(1, 8).Draw(t, "functions") {
			s := simulated{rate: rapid.Float64Range(0, 200).Draw(t, "rate"), cost: map[string]float64{}, seen: map[string]float64{},
				known: rapid.Float64Range(0.3, 1).Draw(t, "known")}
			for _, name := range n.names {
				s.cost[name] = rapid.Float64Range(0.1, 10).Draw(t, "cost")
			}
			s.on = []string{rapid.SampledFrom(n.names).Draw(t, "device")}
			n.functions = append(n.functions, s)
		}
		var p Policy
		last, actions := time.Duration(0), 0
		for now := time.Duration(0); now < 4*time.Hour; now += 5 * time.Second {
			devices, functions := n.look()
			a, ok := p.Decide(now, devices, functions)
			if !ok {
				continue
			}
			last, actions = now, actions+1
			var number int
			fmt.Sscan(a.Function, &number)
			f := &n.functions[number]
			switch a.Kind {
			case Add:
				f.on = append(f.on, a.Device)
			case Move:
				f.on[a.Instance] = a.Device
			case Remove:
				f.on = f.on[:a.Instance]
			}
			if sorted := slices.Sorted(slices.Values(f.on)); len(slices.Compact(sorted)) != len(f.on) || len(f.on) == 0 {
				t.Fatalf("function %s runs on %v", a.Function, f.on)
			}
		}
		if most := 6 * len(n.functions) * len(n.names); actions > most || last > 2*time.Hour {
			t.Fatalf("%d actions, the last one after %v; want at most %d", actions, last, most)
		}
	})
}
