package evaluate

import (
	"math"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
)

// intakeRules are the rules by which a node gets enough receivers and sockets. They ensure
// that the GPU limits the variants, and not the path of the requests into the node. A report's
// settings include them.
type intakeRules struct {
	// BytesPerReceiver is how many bytes per second each receiver is given, as long as there
	// are fewer than MaxReceivers. One thread takes 3.6 GB/s out of a socket
	// (docs/networking.md). Therefore 2 or 3 receivers are never overrun, however the kernel
	// distributes the load's sockets among them.
	BytesPerReceiver float64
	// MaxReceivers leaves CPUs to the manager's other threads: the manager has 5 CPUs of a
	// lane of 16.
	MaxReceivers int
	// FlowsPerReceiver is how many sockets per receiver send to a function that has several
	// receivers. The kernel distributes them at random, differently in every step. The fullest
	// of 4 receivers has half of 32 sockets or more once in 120 steps, and half of 16 sockets
	// once in 9. In that case the 4 receivers take only 7.2 GB/s.
	FlowsPerReceiver int
	// FlowRPS is the max requests per second that one socket sends to a function with one
	// receiver. MaxFlows is the max number of sockets of such a function.
	FlowRPS  float64
	MaxFlows int
	// ReceiveMiB is the receive buffer of each socket of the node. The kernel grants twice as
	// much because it counts its overhead, which is small for whole trains of datagrams. 4 MiB
	// are 8 ms at BytesPerReceiver, and 4 ms if four receivers share the max load of AlexNet.
	// A thread that does not run for some milliseconds therefore loses nothing. An overrun
	// thread falls behind by some milliseconds only, not by the objective. With 16 MiB AlexNet
	// at 90 % load fell to 30 % in time in every other run, and stayed there.
	ReceiveMiB int
	// BytesInMix is the max bytes per second that a function in a mix is offered at level 1:
	// as much as one thread takes out of a socket. AlexNet alone answers 49,000 pictures per
	// second, 7.4 GB/s. With that load and other functions, a lane's 16 CPUs would be the
	// bottleneck, not the GPU.
	BytesInMix float64
	// NodeSlabMiB bounds the packet memory of all functions of a node together. Four nodes on
	// a machine of 128 GB then leave most of the memory to the load, the models and the
	// kernel.
	NodeSlabMiB int
}

var rules = intakeRules{BytesPerReceiver: 1e9, MaxReceivers: 4, FlowsPerReceiver: 8, FlowRPS: 4000, MaxFlows: 4, ReceiveMiB: 4, BytesInMix: 3.6e9, NodeSlabMiB: 8 << 10}

// intake says how a case's requests get into its nodes. It is the same for all variants of a
// case, because it follows from the case and from the models' capacities.
type intake struct {
	receivers  map[string]int // of each function
	slots      int            // requests in flight, of each function
	slabMiB    int            // packet memory, of each function
	receiveMiB int            // of each receiver's socket
}

// peak returns the largest part of its capacity and weight that a case ever offers a function.
func (c *Case) peak(f *Function) (level float64) {
	if c.Kind == kindLoads {
		return slices.Max(c.Levels)
	}
	for _, cue := range c.Events {
		if cue.Function == f.Name {
			level = max(level, cue.Level)
		}
	}
	return level
}

// full returns the requests per second that a case offers a function at level 1: its weight
// times the capacity of its model.
func (r *runner) full(c *Case, f *Function, card *models.Card) float64 {
	if f.PerSecond > 0 {
		return f.PerSecond
	}
	alone := r.report.capacity(f.Model)
	if len(c.Functions) > 1 {
		alone = min(alone, rules.BytesInMix/float64(card.Input.WireBytes()))
	}
	return f.Weight * alone
}

// intake gives each function of a case enough receivers for its max load. A closed loop offers
// as many requests as are answered, and only the GPU may bound that, so it has the max number
// of receivers. cards are keyed by function.
func (r *runner) intake(c *Case, cards map[string]*models.Card) intake {
	in := intake{receivers: map[string]int{}, receiveMiB: rules.ReceiveMiB}
	requests, several := 0.0, false
	for i := range c.Functions {
		f := &c.Functions[i]
		n := rules.MaxReceivers
		if c.Kind != kindClosed {
			perSecond := c.peak(f) * r.full(c, f, cards[f.Name])
			// Requests that are younger than the objective may be in flight; older ones are
			// evicted.
			requests = max(requests, perSecond*f.SLO.Seconds())
			bytes := perSecond * float64(cards[f.Name].Input.WireBytes())
			n = min(max(int(math.Ceil(bytes/rules.BytesPerReceiver)), 1), rules.MaxReceivers)
		}
		in.receivers[f.Name] = n
		several = several || n > 1
		in.slots = max(in.slots, slotsFor(slices.Max(f.Batches), requests))
	}
	for _, card := range cards {
		// Reserve half as much again as all slots hold, because the packets of an answered
		// request are freed a little later.
		need := 3 * in.slots * card.Input.WireBytes() / 2
		if several {
			// Receivers have equal parts of the memory, but up to twice their part of the
			// sockets.
			need *= 2
		}
		in.slabMiB = max(in.slabMiB, 64, need>>20)
	}
	in.slabMiB = min(in.slabMiB, rules.NodeSlabMiB/max(len(c.Functions), 1))
	return in
}

// slotsFor returns how many requests a function may have in flight. The objective is to bound
// them, not the credit. requests is how many arrive within the objective.
func slotsFor(batch int, requests float64) int {
	slots := 1024
	for slots < configs.MaxSlots && float64(slots) < max(float64(4*batch), requests) {
		slots *= 2
	}
	return slots
}

// flows returns how many sockets send to a function: FlowsPerReceiver for each of several
// receivers, otherwise as many as the rate needs.
func flows(receivers int, perSecond float64) int {
	if receivers > 1 {
		return rules.FlowsPerReceiver * receivers
	}
	return min(1+int(perSecond/rules.FlowRPS), rules.MaxFlows)
}
