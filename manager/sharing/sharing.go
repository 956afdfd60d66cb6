// Package sharing divides the device among the instances of functions. The configuration says how:
//
//	guarantee.go                 each instance has a guarantee of the device's time
//	shares.go, percentages.go    its share is a quota of CPU time, or an MPS percentage
//	groups.go                    its share is a set of groups of multiprocessors
//
// The policies below manager/policy decide. This package measures for them, and carries out what
// they decide: by the instances' pairs, and by what the desired processes carry (Instance.Fill).
// It knows no ports, models' files or connections.
package sharing

import (
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
)

// Options configures a Sharing.
type Options struct {
	// Config is the node's configuration. It may change between calls. Sharing writes Shares.Policy
	// if the device cannot hold guarantees.
	Config *configs.Config
	// Dir is the runtime folder.
	Dir string
	// Cache is the folder for what is learned about the GPU; empty: nothing is kept.
	Cache string
	// Started is when the manager began.
	Started time.Time
	Log     zerolog.Logger
}

// Sharing divides a device. The control loop owns it and everything in it.
type Sharing struct {
	Device Device
	// FellBack: the policy is gslice because this GPU cannot hold the configured guarantees.
	FellBack bool

	cfg       *configs.Config
	log       zerolog.Logger
	started   time.Time
	cpus      int // of the machine; 0: not known
	functions []*Function

	policy      *gslice.Controller
	tuned       time.Time // when the instances were last measured
	percentages percentages
	workers     workers
	turns       turns
	busy        busy
}

// New returns a Sharing without functions. Close frees it.
func New(o Options) (*Sharing, error) {
	policy, err := gslice.NewController(shareConfig(o.Config))
	return &Sharing{
		Device: Device{Known: o.Config.Device == configs.DeviceCPU},
		cfg:    o.Config, log: o.Log, started: o.Started, policy: policy, tuned: o.Started,
		percentages: percentages{cache: o.Cache, log: o.Log},
		workers:     newWorkers(),
		busy:        busy{dir: o.Dir, log: o.Log},
	}, err
}

// Close frees shared memory. Processes keep their mappings.
func (s *Sharing) Close() {
	s.turns.close()
	s.busy.close()
}

// Host is what sharing asks about a function.
type Host interface {
	// Configuration is the function's present configuration.
	Configuration() configs.Function
	// Objective is the latency objective.
	Objective() time.Duration
	// WorkerOf names the worker of the processes that run a card; empty: they are not in one. For nil
	// it names the worker of the processes that serve.
	WorkerOf(*models.Card) string
}

// Function is a function's part in sharing.
type Function struct {
	Host
	// Configured is the configured way to change a share, Change the way on this device.
	Configured, Change configs.Change
	// ByHand is the percent per instance that was set by hand, if shares are not tuned; else 0.
	ByHand float64

	s         *Sharing
	name      string
	log       zerolog.Logger
	instances []*Instance
	leaving   bool // it is being removed
}

// NewFunction returns a function without instances. It takes part from Add on.
func (s *Sharing) NewFunction(h Host, log zerolog.Logger) *Function {
	f := &Function{Host: h, s: s, name: h.Configuration().Name, log: log}
	f.Configured = s.cfg.ChangeOf(h.Configuration())
	f.Change = s.Device.changeOn(f.Configured)
	return f
}

// Traffic has measurements of the requests that pass through an instance.
type Traffic interface {
	// Arrivals counts the requests since the instance was created.
	Arrivals() int
	// TakeWindow returns the window statistics and begins a new window, if they are ready.
	TakeWindow(ready func(*datapath.Window) bool) (w datapath.Window, taken bool)
	// ResetWindow begins a new window.
	ResetWindow()
}

// Instance is an instance's part in sharing.
type Instance struct {
	Placement placement // on a GPU whose groups of multiprocessors are allocated
	Entitled  entitlement
	Measured  measurement
	Traffic   Traffic
	// Fit and Limit are what libml has reported last: whether the share suits, and the limit of the batch
	// size.
	Fit   control.Fit
	Limit float64

	f         *Function
	id        gslice.ID
	log       zerolog.Logger
	pair      *pair.Pair
	queue     Queue
	processes processes
}

// Queue is an instance's queue of requests.
type Queue interface {
	Traffic
	// SetWeight sets the instance's part of the function's requests.
	SetWeight(weight float64)
}

// NewInstance adds an instance with its processes and its queue to a function.
func (f *Function) NewInstance(p *pair.Pair, q Queue, log zerolog.Logger) *Instance {
	in := &Instance{
		f: f, id: gslice.ID{IF: f.name, Instance: len(f.instances)}, log: log,
		pair: p, queue: q, Traffic: q, processes: processes{},
	}
	f.instances = append(f.instances, in)
	in.setChange()
	return in
}

// setChange tells the pair how the function's shares change.
func (in *Instance) setChange() {
	in.pair.InPlace = in.f.Change == configs.ChangeInPlace || in.f.Change == configs.ChangePartition || in.f.whole()
	in.pair.Restart = in.f.Change == configs.ChangeRestart
}

// whole reports whether the instances have no shares, so that each may use the whole device.
func (f *Function) whole() bool { return f.Change == configs.ChangeNone }

// within is the part of the objective that the node may use.
func (f *Function) within() time.Duration { return aggregate.Within(f.Objective(), f.s.cfg.Transit) }

// Add lets a function take part. It gets its shares at once, and those of the others change.
func (s *Sharing) Add(f *Function) {
	s.functions = append(s.functions, f)
	if f.Configured == configs.ChangeNone {
		for _, in := range f.instances {
			in.SetShare(0)
		}
		return
	}
	for _, in := range f.instances {
		s.check(s.policy.Add(in.id, in.firstShare()))
	}
	s.reshare(f.name + " was added")
}

// Remove takes the shares of a function that is being removed. Its processes keep their groups until Forget.
func (s *Sharing) Remove(f *Function) {
	f.leave()
	if !f.whole() {
		s.reshare(f.name + " was removed")
	}
}

// leave gives up the function's shares.
func (f *Function) leave() {
	if f.leaving {
		return
	}
	f.leaving = true
	if f.whole() {
		return
	}
	for _, in := range f.instances {
		f.s.check(f.s.policy.Remove(in.id))
	}
}

// Forget drops a function that is gone.
func (s *Sharing) Forget(f *Function) {
	f.leave()
	s.functions = slices.DeleteFunc(s.functions, func(other *Function) bool { return other == f })
	s.Device.allocator.Invalidate()
}

// Step allocates what has changed since the last one.
func (s *Sharing) Step() {
	s.allocateGroups()
	if s.cfg.Guarantees() && s.missesGuarantee() {
		s.Guarantee()
	}
}

// Watch runs at each tick. It passes on turns, and follows rates that rise.
func (s *Sharing) Watch(now time.Time) {
	s.watchTurns()
	if s.onGPU() {
		s.busy.sweep()
	}
	if s.cfg.Guarantees() {
		s.observeDemand(now.Sub(s.started))
	}
}

// configurations are those of the functions that are not being removed.
func (s *Sharing) configurations() (list []configs.Function) {
	for _, f := range s.functions {
		if !f.leaving {
			list = append(list, f.Configuration())
		}
	}
	return list
}

// onGPU reports whether models run on a GPU; false while that is unknown.
func (s *Sharing) onGPU() bool { return s.Device.GPU != nil }

func (s *Sharing) eachInstance(do func(*Instance)) {
	for _, f := range s.functions {
		for _, in := range f.instances {
			do(in)
		}
	}
}

// instance finds an instance, nil if there is none.
func (s *Sharing) instance(id gslice.ID) (found *Instance) {
	s.eachInstance(func(in *Instance) {
		if in.id == id {
			found = in
		}
	})
	return found
}
