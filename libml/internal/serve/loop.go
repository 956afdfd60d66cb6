package serve

import (
	"runtime"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/loop"
)

// openLoop makes the loop of a process that has linked its model. From now on a request to end wakes it.
func (p *process) openLoop(attached control.Attached, linked control.Notice) (*loop.Loop, error) {
	rule, err := p.newRule(p.sizes.ladder)
	if err != nil {
		return nil, err
	}
	queue := batching.NewQueue(rule, int(p.memory.slots), p.memory.inFlight)
	queue.HalfFull = attached.Streams > 1
	queue.State = warmed(rule, p.sizes.warm, 1)
	var smaller []loop.Size
	for _, s := range p.smaller {
		smaller = append(smaller, s.Size)
		queue.States = append(queue.States, warmed(rule, p.sizes.warm, float64(s.took)/float64(p.sizes.warm[0].elapsed)))
	}
	if len(smaller) > 0 {
		queue.States = append(queue.States, queue.State)
		queue.State = queue.States[0]
	}
	g := gate.New(p.newAccount(), p.place, p.entry, p.residence.Resident, p.busy)
	if p.worker.Conducted() {
		if err := p.settle(queue.Typical(rule.Pad(1)), linked); err != nil {
			g.Account.Close()
			return nil, err
		}
	}
	p.place.SetDevice(p.memory.device, p.entry)
	l := loop.New(loop.Config{
		Process: p, Log: p.log, Card: p.card, SLO: p.slo,
		Ring: p.memory.consumer, Slots: int(p.memory.slots),
		Device: p.memory.device, Prioritized: p.memory.prioritized, Tensors: p.memory.tensors, Decoders: p.memory.decoders, Smaller: smaller,
		Queue: queue, Gate: g, Residence: p.residence, Share: &p.orders.share, Ending: &p.exit.draining,
		BusyPoll: attached.BusyPollNanos > 0, CPUs: p.start.CPUs, Threads: p.threads(),
	})
	p.reporter = reporter{p: p, loop: l, account: g.Account, done: make(chan struct{})}
	p.exit.ring.Store(p.memory.consumer)
	return l, nil
}

// serve runs the batch loop, and on a GPU the mover, until the process must end.
func (p *process) serve(l *loop.Loop, ready control.Notice) error {
	run := func() error {
		defer p.reporter.account.Close()
		defer close(p.reporter.done)
		return l.Run()
	}
	d, ok := p.memory.device.(device.Partitioned)
	if !ok {
		return run()
	}
	raisePriority()
	if runtime.NumCPU() >= eagerCPUs {
		p.memory.consumer.Eager(eagerTime)
	}
	m := p.startMover(l, d, ready)
	return m.end(run())
}

// The methods of loop.Process. LoadModel and EvictModel are in residence.go.

func (p *process) InferBatch(slot, n int) error { return p.framework.InferBatch(slot, n) }

func (p *process) CompareNext(slot int, ladder []int) (compared bool, err error) {
	compared, err = p.compareNext(slot, ladder)
	if err != nil && !loop.IsLost(err) {
		p.exit.end(&p.exit.failed, err)
		return false, nil
	}
	return compared, err
}

func (p *process) DeviceLost() error { return p.exit.deviceLost.get() }

// Active tells the orchestrator, and starts to tell the manager, that this process serves.
func (p *process) Active() {
	p.notices.send(control.Notice{State: control.Active})
	go p.reporter.run()
}

func (p *process) Released() { p.notices.send(control.Notice{State: control.Draining}) }
