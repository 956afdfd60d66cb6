// Package manager is the IF Manager, the manager of inference functions (IFs). It
// receives datagrams and reassembles requests. It passes the requests to the IFs through
// shared memory and sends the replies. It also decides how much of the device each IF
// gets.
//
// Two kinds of code never mix:
//
//   - The data plane (package dataplane): one receive thread per source of a function, and one
//     reply thread per instance.
//   - The control loop (this file): one goroutine that owns the life of every function and
//     instance. Everything except packets is an event on it: states from the orchestrator,
//     processes that attach or die, what package sharing decides, additions and removals
//     (lifetime.go).
//
// The control loop controls the data plane by the methods of datapath.Port and datapath.Queue,
// which take the data plane's locks for a moment. It sees no other type or lock of it.
package manager

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
)

// Options configures a manager.
type Options struct {
	Config configs.Config
	// Dir is the runtime folder, shared with the orchestrator.
	Dir string
	// FindModel finds a card by its name or file.
	FindModel func(name string) (*models.Card, error)
	Log       zerolog.Logger
	// Cache is the folder for what the manager learns about the GPU. If it is empty, the
	// manager learns it again at each start.
	Cache string
	// Run names the run of the node (`penstock up`) that this manager belongs to. The
	// manager resumes with the runtime changes of an earlier manager of the same run, and
	// records its own for the next. If Run is empty, it begins with Config and records
	// nothing.
	Run string
	// Unread is the reason why the configuration file could not be read; Config is then
	// the last version that was followed. Unread is nil if the file was read.
	Unread error
	// ProcessUser is the id of the user that inference functions run as; 0 is the
	// manager's own user.
	ProcessUser int
	// Sandbox is control.Status.Sandbox.
	Sandbox string
}

// Manager is a running IF Manager.
type Manager struct {
	cfg     configs.Config
	find    func(string) (*models.Card, error)
	log     zerolog.Logger
	sandbox string // for the status page
	started time.Time

	mailbox
	foreign observe.Foreign
	threads sync.WaitGroup
	metrics *observe.Metrics
	network datapath.Network

	// Owned by the control loop.
	functions    functions
	generations  generations
	orchestrator orchestrator
	sharing      *sharing.Sharing
	faults       faults
	file         configFile
	folder       folder
	draining     bool
}

// tickEvery is the control loop's period. It bounds how late the loop notices a hung
// process. The interval of shares is configured.
const tickEvery = 50 * time.Millisecond

// The manager gives up a drain after drainPatience times the drain timeout: one for
// requests, one for processes, one for what neither has ended.
const drainPatience = 4

// Run runs a manager until ctx ends, then drains it: the manager rejects new requests,
// answers the accepted ones, and its processes end. ready, if not nil, is called once
// every configured port is open.
func Run(ctx context.Context, o Options, ready func(*Manager)) error {
	id := make([]byte, 8)
	rand.Read(id)
	m := &Manager{
		cfg: o.Config, find: o.FindModel, log: o.Log, sandbox: o.Sandbox,
		started:     time.Now(),
		mailbox:     newMailbox(),
		generations: newGenerations(),
		file:        newConfigFile(),
		folder:      folder{recorder: recorder{dir: o.Dir, run: o.Run}},
	}
	m.judgeConfiguration(o.Unread)
	m.faults.guard.Hold = m.cfg.FaultHold
	m.metrics = observe.New(m.snapshot)
	defer m.threads.Wait()
	defer close(m.done)

	if m.cfg.Device != configs.DeviceAuto { // for a file, configs/read.go has reported it better
		if err := m.cfg.On(m.cfg.Device); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
	}
	if lab := m.cfg.Lab.String(); lab != "" {
		m.log.Warn().Str("lab", lab).Msg(configs.LabVariable + " makes this node a baseline to compare Penstock with, not Penstock")
	}
	if keys := m.cfg.Unused(); len(keys) > 0 {
		m.log.Warn().Strs("keys", keys).Msg("these keys have no effect without `shares: {policy: gslice}`")
	}
	var err error
	m.sharing, err = sharing.New(sharing.Options{Config: &m.cfg, Dir: o.Dir, Cache: o.Cache, Started: m.started, Log: m.log})
	if err != nil {
		return fmt.Errorf("shares: %w", err)
	}
	defer m.sharing.Close()
	// Open ports before any process may connect: DPDK needs seconds to allocate its
	// memory.
	if m.network, err = openNetwork(&m.cfg, m.log); err != nil {
		return err
	}
	defer func() {
		if err := m.network.Close(); err != nil {
			m.log.Warn().Err(err).Msg("cannot close network port")
		}
	}()
	link, err := control.ListenManager(o.Dir, m.log)
	if err != nil {
		return err
	}
	defer link.Close()
	m.orchestrator.link = link
	socket := control.AttachSocketPath(o.Dir)
	attach, err := control.ListenAttach(socket, cmp.Or(o.ProcessUser, os.Getuid()), m.log)
	if err != nil {
		return err
	}
	defer attach.Close()
	m.orchestrator.desired = control.Desired{
		Version: control.Version, ManagerID: hex.EncodeToString(id), AttachSocket: socket,
		Device: m.cfg.Device, NoMPS: m.cfg.Lab.TimeSlicing, ProbePriorities: m.cfg.Guarantees(),
	}

	web, err := m.serveHTTP(o.Dir)
	if err != nil {
		return err
	}
	defer web.close()
	for _, s := range []any{link, attach, web.orders} {
		if r, ok := s.(restorer); ok {
			m.folder.sockets = append(m.folder.sockets, r)
		}
	}
	defer m.closeFunctions()
	if err := m.begin(); err != nil {
		return err
	}
	m.threads.Go(func() { m.acceptAttaches(attach) })
	m.threads.Go(func() { m.foreign.Watch(m.done, m.log) })
	defer attach.Close() // before the wait for its thread and its connections
	if ready != nil {
		ready(m)
	}
	return m.loop(ctx)
}

// loop is the control loop.
func (m *Manager) loop(ctx context.Context) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	tune := time.NewTicker(m.cfg.Shares.Interval)
	defer tune.Stop()
	stop := ctx.Done()
	giveUpAt := time.Duration(0) // by runclock.Now
	for {
		m.step()
		if m.draining && len(m.functions) == 0 {
			return nil
		}
		select {
		case call := <-m.calls:
			call()
		case o := <-m.orchestrator.link.Observed():
			m.observe(o)
		case <-tick.C:
			if giveUpAt != 0 && runclock.Now() >= giveUpAt {
				return fmt.Errorf("drain: not finished after %s: %s", drainPatience*m.cfg.DrainTimeout, m.functions.undrained())
			}
			m.watch()
			m.watchFolder()
		case <-tune.C:
			m.sharing.Tune(time.Now())
		case <-stop:
			stop = nil
			m.log.Info().Msg("draining")
			m.drain()
			giveUpAt = runclock.Now() + drainPatience*m.cfg.DrainTimeout
		}
	}
}

// step lets every instance's policy act on the observed state. It publishes the desired
// state if that changed.
func (m *Manager) step() {
	m.judge()
	if m.sharing.Device.Known { // shares and memory of processes depend on it
		m.functions.eachInstance((*instance).step)
	}
	if had := len(m.functions); had > 0 {
		m.functions = slices.DeleteFunc(m.functions, (*function).reap)
	}
	m.dropWorkers()
	m.addWaiting()
	m.heal()
	m.sharing.Step()
	m.publish()
}

// observe applies the orchestrator's report.
func (m *Manager) observe(o control.Observed) {
	ok, another := m.orchestrator.receive(o)
	if !ok {
		return
	}
	if another {
		m.log.Info().Str("orchestrator", o.OrchestratorID).Str("mechanism", o.Mechanism).Int("cpus", o.CPUs).Msg("orchestrator connected")
	}
	if m.sharing.Observe(&o) {
		m.functions.eachInstance((*instance).forgetDevice)
	}
	if another && m.sharing.Device.GPU == nil {
		for _, f := range m.functions {
			warnIfCrowded(len(f.instances), o.CPUs, f.log)
		}
	}
	if m.sharing.Device.MPS {
		if lost := m.faults.lost(&o); len(lost) > 0 {
			m.deviceFailed(&o, lost)
		}
	}
	for _, p := range o.Processes {
		if in := m.functions.instance(place{p.IF, p.Instance}); in != nil {
			in.observe(p)
		}
	}
}

// watch runs at each tick. It looks for hung processes, for functions without processes,
// for an orchestrator that has stopped reporting, and for rates that rise.
func (m *Manager) watch() {
	if m.orchestrator.checkAlive() {
		m.log.Warn().Msg("orchestrator does not answer; running processes continue, but none can be started")
	}
	for _, f := range m.functions {
		f.watch()
	}
	m.sharing.Watch(time.Now())
}

// acceptAttaches accepts processes until the listener closes.
func (m *Manager) acceptAttaches(attach *control.AttachListener) {
	for {
		conn, hello, err := attach.Accept()
		if err != nil {
			return // closed; the listener itself reports rejected processes
		}
		if !m.post(func() { m.admit(conn, hello) }) {
			conn.Close()
		}
	}
}

// admit gives a process its memory, if the process is desired.
func (m *Manager) admit(conn *control.AttachConn, hello control.Attach) {
	in := m.functions.instance(place{hello.IF, hello.Instance})
	if in == nil {
		conn.Refuse(fmt.Sprintf("no instance %d of %q", hello.Instance, hello.IF))
		return
	}
	if err := in.admit(conn, hello); err != nil {
		m.log.Warn().Err(err).Str("if", hello.IF).Int("instance", hello.Instance).Uint32("generation", hello.Generation).Msg("refused to attach process")
		conn.Refuse(err.Error())
	}
}
