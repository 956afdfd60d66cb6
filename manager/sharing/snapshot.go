package sharing

import (
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
)

// Snapshot is a device of a node at a moment, with the instances there. Decide changes neither it nor what it refers to.
type Snapshot struct {
	Config *configs.Config
	// Now is the time since the manager began, Running the time by package runclock.
	Now, Running time.Duration
	// Observed is the orchestrator's report if it is new; else nil.
	Observed *control.Observed
	// Published is what the orchestrator was sent last.
	Published *control.Desired
	// Counted: the instances' Arrivals are those of this moment. Interval: shares.interval has ended, and
	// the instances have a Window.
	Counted, Interval bool
	Functions         []Function
	// Judged is at which percentages of the GPU models answer rightly. It may lack cards.
	Judged map[*models.Card]Judged
}

// Function is a function of a snapshot.
type Function struct {
	Config    configs.Function
	Objective time.Duration
	// ByHand is the percent per instance that an operator set, and that lasts; else 0.
	ByHand float64
	// Edits counts the edits of share_percent.
	Edits     int
	Removing  bool
	Instances []Instance
}

// Instance is an instance of a snapshot.
type Instance struct {
	Number int          // of the function's instances, some of which may be on other devices
	Card   *models.Card // the desired model
	Worker string       // that is going to host it; empty: none
	Share  float64      // the desired share
	// Processes are all desired ones. Active is the generation of the one that serves, 0 if there is
	// none; Last that of the newest.
	Processes    []Process
	Active, Last uint32
	Changing     bool // a process is about to take over
	// Movable is since when the active process can move to other groups, on the clock of Running. Before it had
	// the ring it was linking, and for its batch sizes the orchestrator has a timeout.
	Movable  time.Duration
	Report   control.Report // the last one of a process that served
	Arrivals int            // since the instance was created
	Window   *datapath.Window
}

// Process is a process of a snapshot.
type Process struct {
	pair.Process
	Worker string // that hosts it; empty: none
	Groups []int  // that it was assigned last
}

// Instance finds an instance; nil if there is none.
func (s *Snapshot) Instance(id gslice.ID) *Instance {
	for i := range s.Functions {
		f := &s.Functions[i]
		n := slices.IndexFunc(f.Instances, func(in Instance) bool { return in.Number == id.Instance })
		if f.Config.Name == id.IF && n >= 0 {
			return &f.Instances[n]
		}
	}
	return nil
}

// process finds a process, nil if it is not desired.
func (in *Instance) process(generation uint32) *Process {
	i := slices.IndexFunc(in.Processes, func(q Process) bool { return q.Generation == generation })
	if i < 0 {
		return nil
	}
	return &in.Processes[i]
}

// active is the process that serves, nil if there is none.
func (in *Instance) active() *Process { return in.process(in.Active) }

// runsIn reports whether a worker hosts a process of the instance or is going to. The empty name
// stands for its own processes.
func (in *Instance) runsIn(worker string) bool {
	return in.Worker == worker || slices.ContainsFunc(in.Processes, func(q Process) bool { return q.Worker == worker })
}

// uses reports whether a card is desired, or a process has it.
func (in *Instance) uses(card *models.Card) bool {
	return card == in.Card || slices.ContainsFunc(in.Processes, func(q Process) bool { return q.Card == card })
}

// AllInstances is the number of no instance: a message is about a function.
const AllInstances = -1

// Action is one step that Decide wants to be taken, of one of these types.
type Action any

type (
	// SetShare sets the desired share of an instance; 0 is the whole device.
	SetShare struct {
		ID      gslice.ID
		Percent float64
	}
	// SetTerms sets the terms of an instance's processes in a worker; the empty name stands for its own.
	SetTerms struct {
		ID     gslice.ID
		Worker string
		Terms  control.Terms
	}
	// SetGroups sets the groups of multiprocessors of an instance. Until Starts, no other process may
	// begin to serve on them.
	SetGroups struct {
		ID     gslice.ID
		Groups []int
		Starts bool
	}
	// NextWindow begins a new window of measurements.
	NextWindow struct{ ID gslice.ID }
	// Tune asks for a snapshot with windows at once.
	Tune struct{}
	// Renew makes the active process give way to its shadow.
	Renew struct{ ID gslice.ID }
	// Kill ends a process.
	Kill struct {
		ID         gslice.ID
		Generation uint32
	}
	// Excuse: a process ends because of its groups, not of its model.
	Excuse struct {
		ID         gslice.ID
		Generation uint32
	}
	// Refuse: a process ends because its model answers wrongly at its percentage.
	Refuse struct {
		ID         gslice.ID
		Generation uint32
	}
	// Judge keeps whether a model answers rightly at a percentage of the GPU.
	Judge struct {
		Card    *models.Card
		Percent float64
		Right   bool
	}
	// Open reads what was learned about a GPU. ForgetDevice: another device replaces the one before,
	// whose processes have ended.
	Open         struct{ GPU *control.GPU }
	ForgetDevice struct{}
	// Log logs a message; the zero ID is the node, and AllInstances the function.
	Log struct {
		ID      gslice.ID
		Level   zerolog.Level
		Message string
		Fields  map[string]any
	}
)
