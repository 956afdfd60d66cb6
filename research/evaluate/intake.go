package evaluate

import (
	"math"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
)

// intakeRules say how requests get into a node fast enough that the GPU is what variants
// are compared by. A report's settings cover them.
type intakeRules struct {
	// BytesPerReceiver is how many bytes a second each receiver is given, as long as there
	// are fewer than MostReceivers. One thread takes 3.6 GB/s out of a socket
	// (docs/receivers.md): so 2 and 3 receivers are never overrun, however the kernel
	// spreads the sockets of the load over them.
	BytesPerReceiver float64
	// MostReceivers leaves CPUs to the manager's other threads: it has 5 of a lane of 16.
	MostReceivers int
	// FlowsPerReceiver is how many sockets send to a function for each of several
	// receivers. The kernel spreads them by chance, anew in every step: of 32 sockets the
	// fullest of 4 receivers has half or more once in 120 steps, of 16 once in 9, and then
	// 7.2 GB/s is all that the 4 take.
	FlowsPerReceiver int
	// FlowRPS is how many requests a second one socket is to send at most to a function
	// with one receiver, MostFlows how many sockets it has then.
	FlowRPS   float64
	MostFlows int
	// ReceiveMiB is the receive buffer of each socket of the node. The kernel grants twice
	// as much, for it counts its overhead, of which whole trains of datagrams have little:
	// 4 MiB are 8 ms at BytesPerReceiver, and 4 where four receivers share the most that
	// AlexNet is offered. So a thread that does not run for some milliseconds loses nothing,
	// and one that is overrun is some milliseconds behind and not the objective. With
	// 16 MiB AlexNet at 90 % fell to 30 % in time in every other run, and stayed there.
	ReceiveMiB int
	// BytesInMix is how many bytes a second a function is offered at most at level 1 where
	// it is beside others: what one thread takes out of a socket. AlexNet alone does
	// 49,000 pictures a second, 7.4 GB/s: with that beside others a lane's 16 CPUs are what
	// is short, not the GPU.
	BytesInMix float64
	// NodeSlabMiB bounds the packet memory of all functions of a node together: four nodes
	// on a machine of 128 GB leave most of it to the load, the models and the kernel.
	NodeSlabMiB int
}

var rules = intakeRules{BytesPerReceiver: 1e9, MostReceivers: 4, FlowsPerReceiver: 8, FlowRPS: 4000, MostFlows: 4, ReceiveMiB: 4, BytesInMix: 3.6e9, NodeSlabMiB: 8 << 10}

// intake is how a case's requests get into its nodes: the same for all its variants, for
// it follows from the case and from what the models can do alone.
type intake struct {
	receivers  map[string]int // of each function
	slots      int            // requests in flight, of each function
	slabMiB    int            // packet memory, of each function
	receiveMiB int            // of each receiver's socket
}

// peak is the largest part of its capacity and weight that a case ever offers a function.
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

// full is how many requests a second a function of a case is offered at level 1: its
// weight's part of what its model can do alone.
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

// intake gives each function of a case receivers for the most that it is ever offered. A
// closed loop offers what is answered, which nothing but the GPU is to bound: it has the
// most of them. cards are by function.
func (r *runner) intake(c *Case, cards map[string]*models.Card) intake {
	in := intake{receivers: map[string]int{}, receiveMiB: rules.ReceiveMiB}
	requests, several := 0.0, false
	for i := range c.Functions {
		f := &c.Functions[i]
		n := rules.MostReceivers
		if c.Kind != kindClosed {
			perSecond := c.peak(f) * r.full(c, f, cards[f.Name])
			// What comes within the objective may be in flight; what is older is given up.
			requests = max(requests, perSecond*f.SLO.Seconds())
			bytes := perSecond * float64(cards[f.Name].Input.WireBytes())
			n = min(max(int(math.Ceil(bytes/rules.BytesPerReceiver)), 1), rules.MostReceivers)
		}
		in.receivers[f.Name] = n
		several = several || n > 1
		in.slots = max(in.slots, slotsFor(slices.Max(f.Batches), requests))
	}
	for _, card := range cards {
		// Half as much again as all slots hold: what is answered is given back a little later.
		need := 3 * in.slots * card.Input.WireBytes() / 2
		if several {
			// Receivers have equal parts of it, and up to twice their part of the sockets.
			need *= 2
		}
		in.slabMiB = max(in.slabMiB, 64, need>>20)
	}
	in.slabMiB = min(in.slabMiB, rules.NodeSlabMiB/max(len(c.Functions), 1))
	return in
}

// slotsFor is how many requests a function may have in flight: enough that the objective
// bounds them and not the credit. requests come within the objective.
func slotsFor(batch int, requests float64) int {
	slots := 1024
	for slots < configs.MaxSlots && float64(slots) < max(float64(4*batch), requests) {
		slots *= 2
	}
	return slots
}

// flows is how many sockets send to a function: enough that each of several receivers has
// some, else as many as the rate asks for.
func flows(receivers int, perSecond float64) int {
	if receivers > 1 {
		return rules.FlowsPerReceiver * receivers
	}
	return min(1+int(perSecond/rules.FlowRPS), rules.MostFlows)
}
