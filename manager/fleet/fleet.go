// Package fleet has the functions of a node, with their instances and processes. It follows edits of
// the configuration file and orders of operators, and keeps the record that the next manager resumes
// with. It knows neither HTTP nor how ports are opened.
package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/manager/policy/fault"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/placement"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Loop is the control loop, which calls all methods of a Fleet.
type Loop interface {
	// Post queues a call for the loop; false if the loop has ended.
	Post(call func()) bool
	// Go runs f on another goroutine. The loop's owner waits for it.
	Go(f func())
}

// Link is the connection to the orchestrator, a control.ManagerLink.
type Link interface {
	Publish(control.Desired) error
	PeerAlive() bool
}

// Options configures a Fleet. Dir, FindModel, Cache and Run are those of manager.Options.
type Options struct {
	Config    configs.Config
	Dir       string
	FindModel func(name string) (*models.Card, error)
	Log       zerolog.Logger
	Cache     string
	Run       string
	// ID names the manager to the orchestrator.
	ID string

	Loop    Loop
	Link    Link
	Network datapath.Network
	Metrics *observe.Metrics
}

// Fleet is the functions of a node. The control loop owns it.
type Fleet struct {
	cfg     configs.Config
	find    func(string) (*models.Card, error)
	log     zerolog.Logger
	started time.Time
	loop    Loop
	metrics *observe.Metrics
	network datapath.Network

	functions    functions
	generations  map[gslice.ID]uint32 // the last ones of removed instances; the orchestrator remembers them
	orchestrator orchestrator
	devices      []*device // at least one
	newDevice    func(name string)
	file         configFile
	recorder     recorder
	placements   placement.Policy
	placing      *placing // nil: no order of placement is being carried out
	draining     bool
}

// Order is an order of an operator that is being carried out.
type Order struct {
	// Done tells the operator what was done, if it has succeeded.
	Done string
	// End gets the result; nil if the order was carried out at once.
	End <-chan error
}

// newOrder returns an order that ends when done is called.
func newOrder(text string) (o Order, done func(error)) {
	end := make(chan error, 1)
	return Order{text, end}, func(err error) { end <- err }
}

// ErrStopped is the error of orders that a node no longer carries out.
var ErrStopped = errors.New("manager has stopped")

// New returns a fleet without functions. Close frees it.
func New(o Options) *Fleet {
	fl := &Fleet{
		cfg: o.Config, find: o.FindModel, log: o.Log, started: time.Now(),
		loop: o.Loop, metrics: o.Metrics, network: o.Network,
		generations: map[gslice.ID]uint32{},
		file:        newConfigFile(),
		recorder:    recorder{dir: o.Dir, run: o.Run},
	}
	fl.orchestrator = orchestrator{link: o.Link, next: []control.DesiredProcess{}, desired: control.Desired{
		Version: control.Version, ManagerID: o.ID, AttachSocket: control.AttachSocketPath(o.Dir),
		NoMPS: fl.cfg.Lab.TimeSlicing, ProbePriorities: fl.cfg.Guarantees(),
	}}
	fl.newDevice = func(name string) { fl.addDevice(name, &o) }
	for _, name := range fl.cfg.DeviceNames() {
		fl.newDevice(name)
	}
	return fl
}

func (fl *Fleet) addDevice(name string, o *Options) {
	fl.devices = append(fl.devices, &device{
		Sharing: sharing.New(sharing.Options{Config: &fl.cfg, Device: name, Dir: o.Dir, Cache: o.Cache, Log: fl.log}),
		cfg:     &fl.cfg, functions: &fl.functions, published: &fl.orchestrator.desired, started: fl.started, log: fl.log,
		faults: faults{guard: fault.Guard{Hold: fl.cfg.FaultHold}},
	})
}

// findFor finds a card for a function. Requests of several sizes need a function that runs on CPUs only.
func (fl *Fleet) findFor(c *configs.Function, model string) (*models.Card, error) {
	card, err := fl.find(model)
	notCPU := func(device string) bool { return device != configs.DeviceCPU }
	if err == nil && slices.ContainsFunc(fl.cfg.DevicesOf(c), notCPU) {
		card = card.OneSize()
	}
	return card, err
}

// Close frees all memory and ports, whatever state the functions are in.
func (fl *Fleet) Close() {
	for _, f := range fl.functions {
		f.close()
	}
	fl.functions = nil
	for _, d := range fl.devices {
		d.Sharing.Close()
	}
}

// Step lets every instance's policy act on the observed state. It publishes the desired
// state if that changed.
func (fl *Fleet) Step() {
	fl.judge()
	fl.rescue()
	fl.decide(occasion{})
	fl.functions.eachInstance(func(in *instance) {
		if in.device().Device.Known { // shares and memory of processes depend on it
			in.step()
		}
	})
	for _, f := range fl.functions {
		f.dropInstance()
	}
	fl.advancePlacing()
	if had := len(fl.functions); had > 0 {
		if fl.functions = slices.DeleteFunc(fl.functions, (*function).reap); len(fl.functions) < had {
			fl.decide(occasion{})
		}
	}
	fl.dropWorkers()
	fl.followWaiting()
	fl.heal()
	fl.publish()
}

// Observe applies the orchestrator's report.
func (fl *Fleet) Observe(o control.Observed) {
	ok, another := fl.orchestrator.receive(o)
	if !ok {
		return
	}
	if another {
		fl.log.Info().Str("orchestrator", o.OrchestratorID).Int("cpus", o.CPUs).Msg("orchestrator connected")
	}
	for _, d := range fl.devices {
		d.noteLoss(o.Device(d.Device.Name).Lost)
		d.decide(occasion{observed: &o})
		if d.Device.MPS && d.lost == "" {
			d.noteLost(o.Processes)
		}
	}
	for _, p := range o.Processes {
		if in := fl.functions.instance(gslice.ID{IF: p.IF, Instance: p.Instance}); in != nil {
			in.observe(p)
		}
	}
}

// WatchPeriod is how often the control loop calls Watch. It bounds how late a hung process is
// noticed.
const WatchPeriod = 50 * time.Millisecond

// Watch looks for hung processes, for functions without processes, for an orchestrator that has
// stopped reporting, and for rates that rise.
func (fl *Fleet) Watch() {
	if fl.orchestrator.checkAlive() {
		fl.log.Warn().Msg("orchestrator does not answer; running processes continue, but none can be started")
	}
	for _, f := range fl.functions {
		f.watch()
	}
	for _, d := range fl.devices {
		d.decide(occasion{counts: true})
		d.Sharing.Watch()
	}
}

// Tune adapts the shares, and the devices of the functions. The control loop calls it at the configured interval.
func (fl *Fleet) Tune() {
	fl.decide(occasion{interval: true})
	fl.rebalance()
}

// Admit gives a process its memory, if the process is desired.
func (fl *Fleet) Admit(conn *control.AttachConn, hello control.Attach) {
	in := fl.functions.instance(gslice.ID{IF: hello.IF, Instance: hello.Instance})
	if in == nil {
		conn.Refuse(fmt.Sprintf("no instance %d of %q", hello.Instance, hello.IF))
		return
	}
	if err := in.admit(conn, hello); err != nil {
		fl.log.Warn().Err(err).Str("if", hello.IF).Int("instance", hello.Instance).Uint32("generation", hello.Generation).Msg("refused to attach process")
		conn.Refuse(err.Error())
	}
}

// Drain refuses new requests everywhere and removes every function.
func (fl *Fleet) Drain() {
	fl.draining = true
	for _, f := range fl.functions {
		if !f.removing {
			f.remove()
		}
	}
}

// Undrained describes what a drain still waits for; empty: it has ended.
func (fl *Fleet) Undrained() string {
	var waits []string
	for _, f := range fl.functions {
		waits = append(waits, fmt.Sprintf("%s has %d requests and %d processes", f.name, f.port.Pending(), f.instances.processes()))
	}
	return strings.Join(waits, "; ")
}

// Ready returns nil if every function has a process that serves. It ignores functions that
// are being removed, and functions on trial, which are not yet part of the node.
func (fl *Fleet) Ready() error {
	if fl.draining {
		return errors.New("draining")
	}
	for _, d := range fl.devices {
		if !d.Device.Known && d.lost == "" && len(fl.functions) > 0 {
			return fmt.Errorf("the orchestrator has not found device %s yet; see its log", d.Device.Name)
		}
	}
	var waits []string
	for _, f := range fl.functions {
		if !f.instances.serving() && !f.removing && !f.trial.running() {
			waits = append(waits, strings.TrimSuffix(f.name+" ("+cmp.Or(f.instances.held(), f.instances.failure())+")", " ()"))
		}
	}
	if len(waits) > 0 {
		return fmt.Errorf("no process serves yet: %s", strings.Join(waits, ", "))
	}
	return nil
}

// RestoreFiles writes again what was removed from the runtime folder: the record of functions, and
// the unpacked files of models.
func (fl *Fleet) RestoreFiles() {
	fl.recorder.kept = nil
	fl.keep()
	for _, f := range fl.functions {
		if _, err := fl.find(cmp.Or(f.config.Model, f.name)); err != nil {
			fl.log.Error().Err(err).Str("if", f.name).Msg("cannot unpack model again")
		}
	}
}

// Snapshot describes the functions.
func (fl *Fleet) Snapshot() (s observe.Snapshot) {
	fl.decide(occasion{}) // what it decided last may be older than the processes
	s.Status = control.Status{
		Started: fl.started.UTC(), Policy: string(fl.cfg.Shares.Policy), Lab: fl.cfg.Lab.String(),
		Configuration: fl.file.status, Functions: []control.FunctionStatus{}, Workers: fl.functions.workersStatus(fl.cfg.Workers),
	}
	for _, d := range fl.devices {
		seen := fl.orchestrator.observed.Device(d.Device.Name)
		s.Status.Devices = append(s.Status.Devices, control.DeviceStatus{
			Name: d.Device.Name, Mechanism: seen.Mechanism, GPU: d.Device.GPU, Faults: control.FaultStatus{Count: d.faults.count},
			NeedsPercent: d.NeedsPercent(), Lost: seen.Lost,
		})
	}
	for _, f := range fl.functions {
		stats := f.port.Stats()
		s.Status.Functions = append(s.Status.Functions, f.status(&stats))
		s.Functions = append(s.Functions, observe.Function{
			Stats: stats, Histograms: fl.metrics.Of(f.name), Picture: f.port.PictureNumber(),
			Serving: f.instances.serving(), Planned: f.peers.Rate, Failures: f.instances.failures(),
			PersistentBytes: f.memory.persistentBytes, EphemeralBytes: f.memory.ephemeralBytes, Uses: f.instances.uses(),
		})
	}
	return s
}

// SetPeers tells a function which other nodes serve it.
func (fl *Fleet) SetPeers(o control.PeersOrder) (Order, error) {
	f := fl.functions.find(o.Function)
	if f == nil {
		return Order{}, fl.functions.unknown(o.Function)
	}
	if err := o.Check(); err != nil {
		return Order{}, fmt.Errorf("set peers of %s: %w", o.Function, err)
	}
	if o.Drain != f.peers.Drain {
		f.log.Info().Bool("drain", o.Drain).Int("peers", len(o.Peers)).Msg("function sends its clients to other nodes")
	}
	f.setPeers(o)
	fl.keep()
	return Order{Done: fmt.Sprintf("%s has %d peers", f.name, len(o.Peers))}, nil
}

// Card returns the card of the model that serves a function, or that will serve it.
func (fl *Fleet) Card(name string) (*models.Card, error) {
	f := fl.functions.find(name)
	if f == nil {
		return nil, fl.functions.unknown(name)
	}
	return f.model.current(), nil
}

// Picture returns how to get the newest picture of a function. Any goroutine may call get.
func (fl *Fleet) Picture(name string) (get func() (control.Picture, error), err error) {
	f := fl.functions.find(name)
	if f == nil {
		return nil, fl.functions.unknown(name)
	}
	port := f.port
	return func() (control.Picture, error) {
		p, ok := port.Picture()
		if !ok {
			return control.Picture{}, fmt.Errorf("function %s has no picture yet; `pictures: 1/s` in its configuration keeps some", name)
		}
		return control.Picture{
			Number: p.Number, From: p.From, Answered: time.Now().Add(time.Duration(p.Sent - shm.Now())), Latency: time.Duration(p.Sent - p.FirstFragment),
			ModelVersion: p.ModelVersion, Kind: p.Kind, Payload: p.Payload, Pixels: p.Pixels, Shape: p.Shape,
		}, nil
	}, nil
}
