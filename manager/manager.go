// Package manager is the IF Manager, the manager of inference functions (IFs). It
// receives datagrams and reassembles requests. It passes the requests to the IFs through
// shared memory and sends the replies. It also decides how much of the device each IF
// gets.
//
// Two kinds of code never mix:
//
//   - The data path (package datapath): one receive thread per source of a function, and one
//     reply thread per instance.
//   - The control loop (this file): one goroutine that owns the functions (package fleet).
//     Everything except packets is an event on it: states from the orchestrator, processes that
//     attach or die, edits of the configuration, orders of operators.
//
// The control loop controls the data path by the methods of datapath.Port and datapath.Queue,
// which take the data path's locks for a moment. It sees no other type or lock of it.
package manager

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/fleet"
	"github.com/penstock/penstock/manager/observe"
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
	log     zerolog.Logger
	sandbox string // for the status page

	*mailbox
	foreign observe.Foreign
	metrics *observe.Metrics
	network datapath.Network
	link    *control.ManagerLink

	// Owned by the control loop.
	fleet  *fleet.Fleet
	folder folder
}

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
		cfg: o.Config, log: o.Log, sandbox: o.Sandbox,
		mailbox: newMailbox(),
		folder:  folder{dir: o.Dir},
	}
	m.metrics = observe.New(m.snapshot)
	defer m.end()

	if err := m.cfg.Check(); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if lab := m.cfg.Lab.String(); lab != "" {
		m.log.Warn().Str("lab", lab).Msg(configs.LabVariable + " makes this node a baseline to compare Penstock with, not Penstock")
	}
	if keys, why := m.cfg.Unused(); len(keys) > 0 {
		m.log.Warn().Strs("keys", keys).Msg("these keys have " + why)
	}
	var err error
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
	m.link, err = control.ListenManager(o.Dir, m.log)
	if err != nil {
		return err
	}
	defer m.link.Close()
	attach, err := control.ListenAttach(control.AttachSocketPath(o.Dir), cmp.Or(o.ProcessUser, os.Getuid()), m.log)
	if err != nil {
		return err
	}
	defer attach.Close()
	m.fleet = fleet.New(fleet.Options{
		Config: o.Config, Dir: o.Dir, FindModel: o.FindModel, Log: o.Log, Cache: o.Cache, Run: o.Run, ID: hex.EncodeToString(id),
		Loop: m, Link: m.link, Network: m.network, Metrics: m.metrics,
	})
	defer m.fleet.Close()
	m.fleet.JudgeConfiguration(o.Unread)

	web, err := m.serveHTTP(o.Dir)
	if err != nil {
		return err
	}
	defer web.close()
	m.folder.sockets = []restorer{m.link, attach, web.orders}
	if err := m.fleet.Begin(); err != nil {
		return err
	}
	m.Go(func() { m.acceptAttaches(attach) })
	m.Go(func() { m.foreign.Watch(m.done, m.log) })
	defer attach.Close() // before the wait for its thread and its connections
	if ready != nil {
		ready(m)
	}
	return m.loop(ctx)
}

// loop is the control loop.
func (m *Manager) loop(ctx context.Context) error {
	tick := time.NewTicker(fleet.WatchPeriod)
	defer tick.Stop()
	tune := time.NewTicker(m.cfg.Shares.Interval)
	defer tune.Stop()
	stop := ctx.Done()
	giveUpAt := time.Duration(0) // by runclock.Now
	for {
		m.fleet.Step()
		if stop == nil && m.fleet.Undrained() == "" {
			return nil
		}
		select {
		case call := <-m.calls:
			call()
		case o := <-m.link.Observed():
			m.fleet.Observe(o)
		case <-tick.C:
			if giveUpAt != 0 && runclock.Now() >= giveUpAt {
				return fmt.Errorf("drain: not finished after %s: %s", drainPatience*m.cfg.DrainTimeout, m.fleet.Undrained())
			}
			m.fleet.Watch()
			if restored := m.folder.restore(runclock.Now(), m.log); restored > 0 {
				m.fleet.RestoreFiles()
				m.log.Warn().Str("dir", m.folder.dir).Int("sockets", restored).Msg("runtime folder was emptied; restored its files")
			}
		case <-tune.C:
			m.fleet.Tune()
		case <-stop:
			stop = nil
			m.log.Info().Msg("draining")
			m.fleet.Drain()
			giveUpAt = runclock.Now() + drainPatience*m.cfg.DrainTimeout
		}
	}
}

// Reconfigure applies an edited configuration; see fleet.Fleet.Follow.
func (m *Manager) Reconfigure(c configs.Config) error {
	return m.do(func() error { return m.fleet.Follow(c) })
}

// RejectConfiguration records that the configuration file has been unreadable since its last edit.
func (m *Manager) RejectConfiguration(err error) {
	m.Post(func() { m.fleet.JudgeConfiguration(err) })
}

// acceptAttaches accepts processes until the listener closes.
func (m *Manager) acceptAttaches(attach *control.AttachListener) {
	for {
		conn, hello, err := attach.Accept()
		if err != nil {
			return // closed; the listener itself reports rejected processes
		}
		if !m.Post(func() { m.fleet.Admit(conn, hello) }) {
			conn.Close()
		}
	}
}
