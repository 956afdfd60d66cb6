package fleet

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
)

// segments returns the placement of a function with so many processes on each of two GPUs, which have a share of 10 %.
func segments(name string, first, second int) control.FunctionPlacement {
	c := control.FunctionPlacement{Name: name}
	for device, n := range map[string]int{"cuda": first, "cuda:1": second} {
		if n > 0 {
			c.Segments = append(c.Segments, control.PlacedSegment{Device: device, Processes: n, SharePercent: 10})
		}
	}
	return c
}

func placements(list ...control.FunctionPlacement) control.PlacementOrder {
	return control.PlacementOrder{Functions: list}
}

// ends turns the node until an order ends, and returns its result. Until then, the functions named always serve.
func (b *nodeBed) ends(o Order, serving ...string) error {
	b.t.Helper()
	for range 100 {
		select {
		case err := <-o.End:
			return err
		default:
		}
		b.turn()
		for _, name := range serving {
			if len(b.instancesOn(name)) == 0 {
				b.t.Errorf("%s does not serve meanwhile", name)
			}
		}
	}
	b.t.Fatal("the order does not end")
	return nil
}

// has checks how many instances of a function serve on each of two GPUs, and that there are no others.
func (b *nodeBed) has(name string, first, second int) {
	b.t.Helper()
	want := append(slices.Repeat([]string{"cuda"}, first), slices.Repeat([]string{"cuda:1"}, second)...)
	f := b.functions.find(name)
	if f == nil {
		if len(want) > 0 {
			b.t.Errorf("there is no %s, want it on %v", name, want)
		}
		return
	}
	if on := slices.Sorted(slices.Values(b.instancesOn(name))); !slices.Equal(on, want) || len(f.instances) != len(want) {
		b.t.Errorf("%s serves on %v with %d instances, want %v", name, on, len(f.instances), want)
	}
}

func TestPlace(t *testing.T) {
	for name, c := range map[string]struct{ first, second int }{
		"more on its device": {3, 0},
		"on both":            {1, 2},
		"on the other":       {0, 1},
		"more on the other":  {0, 3},
		"as before":          {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTwoGPUs(t)
			b.turns()
			must.OK(t, b.add(named("a", 20)))
			must.OK(t, b.instance("a", 0).move(b.devices[0]))
			must.OK(t, b.add(named("stays", 20)))
			b.turns()
			stays := b.instancesOn("stays")
			order := must.Get(b.Place(placements(segments("a", c.first, c.second), segments("new", 1, 1))))(t)
			must.OK(t, b.ends(order, "a"))
			b.has("a", c.first, c.second)
			b.has("new", 1, 1)
			if on := b.instancesOn("stays"); !slices.Equal(on, stays) {
				t.Errorf("a function that the order does not name moved to %v", on)
			}
			for _, in := range b.functions.find("new").instances {
				if in.percent != 10 {
					t.Errorf("instance %d has a share of %v %%, want 10", in.id.Instance, in.percent)
				}
			}

			// Another order brings it back, and removes the other.
			order = must.Get(b.Place(placements(segments("a", 1, 0), segments("new", 0, 0), segments("unknown", 0, 0))))(t)
			must.OK(t, b.ends(order, "a"))
			b.has("a", 1, 0)
			b.has("new", 0, 0)
		})
	}
}

// If one process cannot serve, everything is as before.
func TestPlaceUndone(t *testing.T) {
	for name, c := range map[string]struct {
		disturb func(b *nodeBed)
		error   string
	}{
		"second instance of a new one": {func(b *nodeBed) { b.dies("new", 1) }, "function new: it cannot serve: out of memory"},
		"first instance of a new one":  {func(b *nodeBed) { b.dies("new", 0) }, "out of memory"},
		"added instance":               {func(b *nodeBed) { b.dies("grows", 1) }, "function grows: it cannot serve on device cuda:1: out of memory"},
		"moved instance":               {func(b *nodeBed) { b.dies("moves", 0) }, "function moves: it cannot serve on device cuda:1: out of memory"},
		"lost device":                  {func(b *nodeBed) { b.lost = map[string]string{"cuda:1": "it was unplugged"} }, "cannot serve on device cuda:1"},
		"removed":                      {func(b *nodeBed) { must.OK(b.t, b.remove("new")) }, "function new: it was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTwoGPUs(t)
			b.turns()
			for _, name := range []string{"grows", "moves"} {
				must.OK(t, b.add(named(name, 20)))
				must.OK(t, b.instance(name, 0).move(b.devices[0]))
				b.turns()
			}
			b.turns()
			order := must.Get(b.Place(placements(segments("grows", 1, 1), segments("moves", 0, 1), segments("new", 1, 1))))(t)
			b.turn()
			if _, err := b.Place(placements()); err == nil || !strings.Contains(err.Error(), "another order") {
				t.Errorf("a second order gets %v", err)
			}
			c.disturb(b)
			wait := time.Now().Add(patience)
			var err error
			for err == nil && time.Now().Before(wait) { // MPS has time to say why a process failed
				b.turn()
				select {
				case err = <-order.End:
				default:
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.error) {
				t.Errorf("the order ends with %v, want %q", err, c.error)
			}
			b.turns()
			b.has("grows", 1, 0)
			b.has("moves", 1, 0)
			b.has("new", 0, 0)
			for _, name := range []string{"grows", "moves"} {
				if f := b.functions.find(name); f.fixed || f.instances[0].percent != 0 {
					t.Errorf("%s has the share %v of the order", name, f.instances[0].percent)
				}
			}
		})
	}
}

// dies lets the newest process of an instance fail.
func (b *nodeBed) dies(name string, number int) {
	in := b.instance(name, number)
	b.fakes[victim{in.id, in.pair.Last()}].die(control.Failed, "out of memory")
}

func TestPlaceRefused(t *testing.T) {
	b := newTwoGPUs(t)
	b.turns()
	must.OK(t, b.add(named("a", 60)))
	must.OK(t, b.add(named("b", 60)))
	b.turns()
	before := b.told
	segment := func(device string, processes int, percent float64) control.FunctionPlacement {
		return control.FunctionPlacement{Name: "a", Segments: []control.PlacedSegment{{Device: device, Processes: processes, SharePercent: percent}}}
	}
	other, slow := segment("cuda", 1, 10), segment("cuda", 1, 10)
	other.Model, slow.SLO = "other", time.Hour
	elsewhere := segment("cuda", 1, 10)
	elsewhere.Port = 1
	twice := segment("cuda", 1, 10)
	twice.Segments = append(twice.Segments, control.PlacedSegment{Device: "cuda", Processes: 1, SharePercent: 20})
	unnamed := segment("cuda", 1, 10)
	unnamed.Name = "no name"
	for want, order := range map[string]control.PlacementOrder{
		`function a: device "cuda:7" is not one of the node's`:      placements(segment("cuda:7", 1, 10)),
		"function a: 0 processes":                                   placements(segment("cuda", 0, 10)),
		"function a: 65 processes":                                  placements(segment("cuda", 65, 1)),
		"function a: a share of -1 %":                               placements(segment("cuda", 1, -1)),
		"function a: a share of NaN %":                              placements(segment("cuda", 1, math.NaN())),
		"function a: a share of 101 %":                              placements(segment("cuda", 1, 101)),
		"function a: shares of 10 and 20 % on device cuda":          placements(twice),
		"function a is named twice":                                 placements(segment("cuda", 1, 10), segment("cuda:1", 1, 10)),
		"the shares on device cuda:1 are 110 % together":            placements(segment("cuda:1", 5, 10)),
		"function a: it runs model a, and the order wants other":    placements(other),
		"function a: its objective is 1m0s, and the order wants 1h": placements(slow),
		"and the order wants 1; remove it first":                    placements(elsewhere),
		"no name":                                                   placements(unnamed),
	} {
		if _, err := b.Place(order); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	b.turns()
	if b.told.Seq != before.Seq {
		t.Errorf("something was changed: %+v", b.told.Processes)
	}
}

// A function that an order adds gets the port of the order.
func TestPlacePort(t *testing.T) {
	b := newTwoGPUs(t)
	b.turns()
	free := must.Get(freeport.Find())(t)
	a, other := segments("a", 2, 0), segments("b", 0, 1)
	a.Port, other.Port = free.Port(), free.Port()
	for range 2 { // the second order changes nothing
		must.OK(t, b.ends(must.Get(b.Place(placements(a)))(t)))
		b.has("a", 2, 0)
		if port := b.functions.find("a").port.LocalAddr().Port(); port != free.Port() {
			t.Errorf("a has port %d, want %d", port, free.Port())
		}
	}
	err := b.ends(must.Get(b.Place(placements(other)))(t))
	if err == nil || !strings.Contains(err.Error(), `belongs to function "a"`) {
		t.Errorf("the same port for another function: %v", err)
	}
	b.has("a", 2, 0)
	b.has("b", 0, 0)
}

// A plan may cut MIG instances: they are devices of the node as long as an order uses them.
func TestPlaceOnMIG(t *testing.T) {
	const instance = "MIG-1"
	b := newTwoGPUs(t)
	b.cfg.Shares.Change = configs.ChangeShadow
	b.turns()
	must.OK(t, b.add(named("a", 20)))
	b.turns()
	order := placements(control.FunctionPlacement{Name: "a", Segments: []control.PlacedSegment{{Device: instance, Processes: 2}}})
	if _, err := b.Place(order); err == nil || !strings.Contains(err.Error(), `"MIG-1" is not one of the node's`) {
		t.Errorf("without `mig: manage`: %v", err)
	}
	b.cfg.MIG, b.cfg.Devices = configs.MIGManage, []configs.DeviceName{"cuda", "cuda:1"}
	must.OK(t, b.ends(must.Get(b.Place(order))(t), "a"))
	if on := b.instancesOn("a"); !slices.Equal(on, []string{instance, instance}) || !slices.Contains(b.told.Devices, instance) {
		t.Errorf("a serves on %v of %v", on, b.told.Devices)
	}
	must.OK(t, b.ends(must.Get(b.Place(placements(segments("a", 1, 0))))(t), "a"))
	b.turn()
	if want := []string{"cuda", "cuda:1"}; !slices.Equal(b.told.Devices, want) || !slices.Equal(b.cfg.DeviceNames(), want) {
		t.Errorf("devices %v and %v, want no instance", b.told.Devices, b.cfg.DeviceNames())
	}

	b.lost = map[string]string{instance: "no such device"}
	err := b.ends(must.Get(b.Place(order))(t), "a")
	if err == nil || !strings.Contains(err.Error(), "it cannot serve on device MIG-1, which is lost: no such device") || slices.Contains(b.told.Devices, instance) {
		t.Errorf("an instance that is not there: %v, devices %v", err, b.told.Devices)
	}
	b.has("a", 1, 0)
}
