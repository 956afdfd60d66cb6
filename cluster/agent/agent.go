// Package agent runs next to a node in a pod, and makes the node's functions those that the GPU's plan has for the pod.
//
//  1. watch: an informer on one object, the pod's GPUPlan. The newest plan is also in a file, for an agent that starts while
//     the API server is gone.
//  2. functions: the functions that the plan has for the pod. It is pure.
//  3. diff: the orders that make the node's functions those. It is pure.
//  4. node: sends the orders through the node's admin socket, and repeats those that failed.
//  5. pages: what the operator and the kubelet ask the agent.
//
// An agent decides nothing and writes nothing to the API server. It can be restarted at any time, and so can the node: what the
// node runs is compared with the plan again and again.
//
// # Draining
//
//	serves ──draining in the plan──> clients that follow are sent to peers ──quiet──> drained ──not in the plan──> removed
//
// A segment still serves while it drains and when it is drained. It is drained when no request waits, and none has come for a
// while. If the whole GPUPlan is deleted, or the pod ends, all of its segments drain, and none is removed.
package agent

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Options configures an agent.
type Options struct {
	Pod
	// Dir is the node's runtime folder.
	Dir string
	Log zerolog.Logger
}

// Pod is the pod of an agent.
type Pod struct {
	Namespace, Name string
	// Address is the pod's IP address, which other nodes and clients see.
	Address netip.Addr
}

// Agent is a running agent. Its pages may be used by any goroutine.
type Agent struct {
	Options
	node    *node
	drained chan struct{} // closed when the pod ends and its segments have drained

	mu       sync.Mutex
	segments map[string]segmentState // guarded by mu, by name; replaced, never changed
	problem  string                  // guarded by mu: why the pod is not ready; empty: it is
}

// segmentState is how a segment of the pod does.
type segmentState struct {
	ready   bool // its function serves, also while it drains
	drained bool // its clients have left, and all answers have been sent
	// message says what the segment waits for; empty: nothing.
	message string
}

// noPlan is the problem of an agent that has not read its GPUPlan.
const noPlan = "the agent has no plan yet"

// New returns an agent. Run makes it work.
func New(o Options) *Agent {
	return &Agent{Options: o, node: newNode(o.Dir, o.Log), drained: make(chan struct{}), problem: noPlan}
}

// The intervals at which the agent looks at its node: busyEvery while something changes or drains.
const (
	idleEvery = time.Second
	busyEvery = 200 * time.Millisecond
)

// Run follows plans until ctx ends. Then the segments drain, and Run returns when the node has ended. The kubelet stops the
// node when EndPath answers.
func (a *Agent) Run(ctx context.Context, plans <-chan Plan) error {
	orders, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer a.node.threads.Wait()
	defer cancel()
	tick := time.NewTimer(0)
	defer tick.Stop()
	var plan Plan
	ends, drained := ctx.Done(), false
	for {
		select {
		case plan = <-plans:
		case result := <-a.node.placed:
			a.node.finish(result)
		case <-tick.C:
		case <-ends:
			ends = nil
			a.Log.Info().Msg("pod ends; its functions send their clients to other nodes")
		}
		reached, busy := a.look(orders, plan, ends == nil)
		switch {
		case ends != nil:
		case !reached:
			return nil
		case !drained && a.allDrained():
			drained = true
			close(a.drained)
			a.Log.Info().Msg("all segments have drained")
		}
		if busy {
			tick.Reset(busyEvery)
		} else {
			tick.Reset(idleEvery)
		}
	}
}

// look compares the node with the plan, and sends orders. It reports whether the node answers, and whether something
// changes or drains.
func (a *Agent) look(ctx context.Context, plan Plan, ending bool) (reached, busy bool) {
	if plan.Object == nil {
		a.publish(nil, noPlan)
		return a.node.read(ctx) == nil, false
	}
	wanted := a.Pod.functions(plan.Object)
	if ending || plan.Gone {
		drainAll(wanted)
	}
	err := a.node.step(ctx, wanted)
	a.publish(a.node.states(wanted, err))
	segments, _ := a.state()
	for _, s := range segments {
		busy = busy || s.message != ""
	}
	return err == nil, busy
}

// allDrained reports whether no segment has clients that may still send requests.
func (a *Agent) allDrained() bool {
	segments, _ := a.state()
	for _, s := range segments {
		if !s.drained {
			return false
		}
	}
	return true
}

func (a *Agent) publish(segments map[string]segmentState, problem string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if problem != a.problem {
		a.Log.Info().Str("problem", problem).Bool("ready", problem == "").Msg("readiness changed")
	}
	a.segments, a.problem = segments, problem
}
