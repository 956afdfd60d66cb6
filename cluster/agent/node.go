package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
)

// node is the node next to the agent, as its admin socket shows it. The goroutine of Run owns it.
type node struct {
	dir string
	log zerolog.Logger

	status control.Status
	rates  control.Rates
	device string // that functions run on
	done   map[string]sent
	failed map[string]failure
	quiet  map[string]quiet // of functions that drain

	placing map[string]bool // the functions of an order that is being carried out; nil: there is none
	placed  chan []outcome  // its result
	threads sync.WaitGroup

	grace, patience time.Duration
}

// failure is an order of placement that the node did not carry out.
type failure struct {
	outcome
	count int
	again time.Time // when it is sent again
}

// outcome is the result of an order of placement for one function.
type outcome struct {
	placed control.FunctionPlacement
	err    error
}

// quiet says since when a function that drains has had no requests.
type quiet struct {
	offered       uint64
	began, latest time.Time
}

const (
	// drainGrace is how long no request comes to a function whose clients have left. Clients send a request that was not
	// answered again within that time.
	drainGrace = 2 * time.Second
	// drainPatience is how long a function waits for clients that do not leave.
	drainPatience = time.Minute
	// placePatience bounds one order of placement, which ends when all processes serve.
	placePatience = 3 * time.Minute
	// peersPatience bounds an order that is carried out at once.
	peersPatience = 5 * time.Second
	// maxPause is the max time until a refused order is sent again.
	maxPause = 30 * time.Second
)

func newNode(dir string, log zerolog.Logger) *node {
	return &node{
		dir: dir, log: log, placed: make(chan []outcome, 1), grace: drainGrace, patience: drainPatience,
		done: map[string]sent{}, failed: map[string]failure{}, quiet: map[string]quiet{},
	}
}

// read reads the node's state. A node that was started again has carried out no order.
func (n *node) read(ctx context.Context) (err error) {
	before := n.status.Started
	if n.status, err = control.ReadStatus(ctx, n.dir); err == nil {
		n.rates, err = control.ReadRates(ctx, n.dir)
	}
	if err != nil {
		return err
	}
	at := slices.IndexFunc(n.status.Devices, func(d control.DeviceStatus) bool { return d.Lost == "" })
	if at < 0 {
		return errors.New("the node has no device that works")
	}
	n.device = n.status.Devices[at].Name
	if !n.status.Started.Equal(before) {
		n.done, n.failed = map[string]sent{}, map[string]failure{}
	}
	maps.DeleteFunc(n.done, func(name string, _ sent) bool {
		_, exists := n.status.Function(name)
		return !exists // what was ordered for it is gone, too
	})
	return nil
}

// step compares the node with the wanted functions, and sends the orders that are due.
func (n *node) step(ctx context.Context, wanted []*function) error {
	if err := n.read(ctx); err != nil {
		return err
	}
	places, peers := diff(&n.status, n.device, n.done, wanted)
	for _, o := range peers {
		n.setPeers(ctx, o)
	}
	now := time.Now()
	places = slices.DeleteFunc(places, func(p control.FunctionPlacement) bool {
		last, failed := n.failed[p.Name]
		return failed && reflect.DeepEqual(last.placed, p) && now.Before(last.again)
	})
	if len(places) > 0 && n.placing == nil {
		n.place(ctx, places)
	}
	n.watchQuiet(now, wanted)
	return nil
}

func (n *node) setPeers(ctx context.Context, o control.PeersOrder) {
	ctx, cancel := context.WithTimeout(ctx, peersPatience)
	defer cancel()
	if _, err := control.SendOrder(ctx, n.dir, control.PeersPath, o); err != nil {
		n.log.Warn().Err(err).Str("function", o.Function).Msg("node did not take its peers; trying again")
		return
	}
	d := n.done[o.Function]
	d.peers = o
	n.done[o.Function] = d
}

// place sends orders on another goroutine: an order of placement lasts until all processes serve.
func (n *node) place(ctx context.Context, places []control.FunctionPlacement) {
	n.placing = map[string]bool{}
	for _, p := range places {
		n.placing[p.Name] = true
		n.log.Info().Str("function", p.Name).Int("processes", processes(p)).Msg("ordering placement of function")
	}
	n.threads.Go(func() { n.placed <- n.order(ctx, places) })
}

func processes(p control.FunctionPlacement) (n int) {
	for _, s := range p.Segments {
		n += s.Processes
	}
	return n
}

// order sends all in one order: together they start as fast as the slowest of them. The node refuses it if one function
// cannot be placed. Then there is one order per function.
func (n *node) order(ctx context.Context, places []control.FunctionPlacement) (list []outcome) {
	err := n.orderOnce(ctx, places...)
	_, refused := errors.AsType[control.Refusal](err)
	for _, p := range places {
		own := err
		if refused && len(places) > 1 {
			own = n.orderOnce(ctx, p)
		}
		list = append(list, outcome{p, own})
	}
	return list
}

func (n *node) orderOnce(ctx context.Context, places ...control.FunctionPlacement) error {
	ctx, cancel := context.WithTimeoutCause(ctx, placePatience, fmt.Errorf("processes do not serve after %s", placePatience))
	defer cancel()
	_, err := control.SendOrder(ctx, n.dir, control.PlacePath, control.PlacementOrder{Functions: places})
	return err
}

// finish takes the result of place.
func (n *node) finish(list []outcome) {
	n.placing = nil
	for _, o := range list {
		name := o.placed.Name
		if o.err == nil {
			d := n.done[name]
			d.placed = o.placed
			n.done[name] = d
			delete(n.failed, name)
			n.log.Info().Str("function", name).Msg("function is placed")
			continue
		}
		f := n.failed[name]
		pause := min(time.Second<<f.count, maxPause)
		if _, refused := errors.AsType[control.Refusal](o.err); !refused {
			pause = time.Second // it may be there again soon
		}
		n.failed[name] = failure{o, min(f.count+1, 5), time.Now().Add(pause)}
		n.log.Warn().Err(o.err).Str("function", name).Dur("again_in", pause).Msg("node did not place function")
	}
}

// watchQuiet notes how long functions that drain have had no requests.
func (n *node) watchQuiet(now time.Time, wanted []*function) {
	for _, f := range wanted {
		rate, _ := n.rate(f.name())
		q, known := n.quiet[f.name()]
		switch {
		case !f.peers.Drain || !n.done[f.name()].peers.Drain:
			delete(n.quiet, f.name())
			continue
		case !known:
			q = quiet{rate.Offered, now, now}
		case rate.Offered != q.offered || rate.Waiting > 0:
			q.offered, q.latest = rate.Offered, now
		}
		n.quiet[f.name()] = q
	}
}

func (n *node) rate(function string) (control.FunctionRate, bool) {
	at := slices.IndexFunc(n.rates.Functions, func(r control.FunctionRate) bool { return r.Name == function })
	if at < 0 {
		return control.FunctionRate{}, false
	}
	return n.rates.Functions[at], true
}

// states describes the segments, and says why the pod is not ready. err is the result of the last step. A pod that serves one of
// its functions is ready: without readiness all of them lose their flows.
func (n *node) states(wanted []*function, err error) (segments map[string]segmentState, problem string) {
	segments = map[string]segmentState{}
	if err != nil {
		problem = err.Error()
	}
	serves, waits := false, ""
	for _, f := range wanted {
		state, settled := segmentState{message: problem}, false
		if err == nil {
			state, settled = n.state(f)
		}
		switch {
		case f.peers.Drain:
		case state.ready:
			serves = true
		default:
			waits = cmp.Or(waits, "function "+f.name()+" does not serve: "+state.message)
		}
		for _, s := range f.segments {
			own := state
			// A segment has also left a function that other segments of the pod serve.
			own.drained = s.drains && (state.drained || settled && !f.peers.Drain)
			segments[s.name] = own
		}
	}
	if !serves {
		problem = cmp.Or(problem, waits)
	}
	return segments, problem
}

// state describes a function, and reports whether the node runs it as planned.
func (n *node) state(f *function) (s segmentState, settled bool) {
	now, exists := n.status.Function(f.name())
	rate, counted := n.rate(f.name())
	done, drains := n.done[f.name()], f.peers.Drain
	want := f.placement(n.device)
	s.ready = exists && counted && rate.Ready && (drains || done.placed.Name != "")
	settled = s.ready && len(now.Instances) == processes(want) && reflect.DeepEqual(done, sent{want, f.peers})

	q, known := n.quiet[f.name()]
	s.drained = drains && (!exists || known && (time.Since(q.latest) >= n.grace || time.Since(q.began) >= n.patience))
	failed := n.failed[f.name()].err
	switch {
	case drains && !s.drained:
		s.message = "waits for its clients to leave and for answers"
	case drains || settled:
	case failed != nil:
		s.message = failed.Error()
	case !s.ready && n.placing[f.name()]:
		s.message = "its processes are being started"
	case !s.ready:
		s.message = "no process serves"
	default:
		s.message = "its processes change"
	}
	return s, settled
}
