package serve

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/worker"
)

// orders has the orchestrator's present orders. process.watch writes them.
type orders struct {
	share    atomic.Pointer[loop.Share]
	awake    bool
	woken    chan control.Order // the wake, once
	groups   chan []int         // where to move: the last order
	prepared chan string        // why the model could not be prepared; empty if it was
}

// errManagerGone is returned if the manager ended first.
var errManagerGone = errors.New("manager ended")

// open makes the channels, before process.watch begins.
func (o *orders) open() {
	o.woken, o.groups, o.prepared = make(chan control.Order, 1), make(chan []int, 1), make(chan string, 1)
}

// follow stores the share of an order.
func (o *orders) follow(order control.Order) {
	o.share.Store(&loop.Share{
		Percent: order.SharePercent, Governor: order.Governor,
		Terms:    gate.Terms{Guarantee: order.GuaranteePercent / 100, Level: order.Level},
		MaxBatch: order.MaxBatch,
	})
}

// terms returns the last ones, or those of a process without orders.
func (o *orders) terms() (t gate.Terms) {
	if share := o.share.Load(); share != nil {
		t = share.Terms
	}
	return t
}

// wake passes on the first wake. It returns false for any other order.
func (o *orders) wake(order control.Order) bool {
	if order.Do != control.DoWake || o.awake {
		return false
	}
	o.awake = true
	o.woken <- order
	return true
}

// move passes on the groups to run on to the mover. Only the last order counts.
func (o *orders) move(groups []int) {
	select {
	case <-o.groups:
	default:
	}
	o.groups <- groups
}

// finishPreparation passes on the result of a preparation.
func (o *orders) finishPreparation(failed string) {
	select {
	case o.prepared <- failed:
	default: // it is not an answer to a request
	}
}

// watch follows orders and watches both connections until one of them ends, or the process is to drain.
// It then requests the exit and closes gone. Afterwards it reads orders until ended is closed: a process that
// left them unread would count as one that hangs.
func (p *process) watch(ctx context.Context, gone chan<- struct{}, ended <-chan struct{}) {
	p.followOrders(ctx)
	close(gone)
	for {
		select {
		case _, ok := <-p.child.Orders():
			if !ok {
				return
			}
		case <-ended:
			return
		}
	}
}

func (p *process) followOrders(ctx context.Context) {
	manager := p.conn.Gone()
	for {
		select {
		case order, ok := <-p.child.Orders():
			if !ok {
				p.exit.end(&p.exit.peerGone, worker.ErrOrchestratorGone)
				return
			}
			if order.Do == control.DoDrain {
				p.exit.request()
				return
			}
			p.followOrder(order)
		case <-manager:
			p.exit.end(&p.exit.peerGone, errManagerGone)
			return
		case <-ctx.Done():
			p.exit.request()
			return
		}
	}
}

func (p *process) followOrder(order control.Order) {
	switch order.Do {
	case control.DoWake, control.DoShare:
		p.orders.follow(order)
		if !p.orders.wake(order) && p.orders.awake && p.onGPU() {
			p.orders.move(order.SMGroups)
		}
	case control.DoReport:
		p.notices.sendComplete(p.orders.awake)
	case control.DoPrepared:
		p.orders.finishPreparation(order.Failed)
	}
}
