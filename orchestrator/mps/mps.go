// Package mps owns a control daemon of NVIDIA's Multi-Process Service: it starts
// one for a GPU in folders of its own, finds it again after a crash, keeps it
// running, and ends it.
//
//	Start: 1 program, compute mode   find what cannot be mended by trying
//	       2 folders, lock           one owner a runtime folder
//	       3 adopt, or sweep         a daemon that an orchestrator left behind
//	       4 nvidia-cuda-mps-control -d, until it answers
//	       5 start_server, until it is active
//	keep:  6 the daemon died: sweep, 4, 5, again and again
//	       7 the server died: 5; a daemon that brings none at once is killed: 6
//	Close: 8 quit, deadline, kill, sweep
//
// In 4 and 5 a daemon that lives and is slow is asked again and again: the driver locks
// things for the whole machine, and where four nodes started at once a daemon that had
// answered before was mute for 2 s or more (in 5 of 376 starts, 4 H200). One that has
// ended is not waited for. In keep nobody asks a daemon whose server lives: however busy the
// machine, a slow answer alone costs no client its context.
//
// What the processes do (measured on an H200, driver 580): the daemon answers 10
// to 40 ms after its start; its server is active 150 to 260 ms after start_server,
// and a client that comes meanwhile waits for it. A first context takes 85 to 110
// ms with a server there, 340 without. The server dies with the daemon, and its
// clients learn it at their next call (CUDA_ERROR_MPS_RPC_FAILURE, 806). A process
// that begins while no daemon listens runs without MPS and says nothing. `quit`
// waits for the clients, for ever.
//
// A kernel that faults ends the contexts of all clients (700) and leaves the server
// in the state FAULT: it refuses new clients (CUDA_ERROR_MPS_SERVER_NOT_READY, 807)
// until the last old one has ended, the idle ones too, which do not know. See Health.
//
// The daemon's log names a client that "encountered a fatal GPU error"; in one of
// three faults it was an innocent one, so nobody is blamed by it.
//
// Nothing here changes a device's compute mode, clocks, persistence or MIG.
package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda/nvml"
)

// controlProgram is the control program's name, looked for in PATH and in
// /usr/local/nvidia/bin, where container runtimes put it.
const controlProgram = "nvidia-cuda-mps-control"

// Options say which GPU and where. Times of zero get their defaults.
type Options struct {
	// Dir is the runtime folder, which there is; one daemon a folder.
	Dir string
	// UUID is the GPU's.
	UUID string
	// Session tells the GPU's compute mode; nil where there is no NVML.
	Session nvml.Session
	Log     zerolog.Logger
	// Program is the control program; empty looks for it.
	Program string
	// UID is the user of the daemon, its server and its clients; 0 is this process's own. A
	// server serves one user.
	UID int
	// Confine, if not nil, is called with each command before it is started: it makes the
	// command run as UID.
	Confine func(*exec.Cmd) error `json:"-"`

	// StartTimeout is how long Start waits in all for an active server, while the daemon
	// lives; default 20 s.
	StartTimeout time.Duration
	// ReplaceTimeout is the same of a daemon that replaces another; each time that it was
	// too short the next has twice as long, up to StartTimeout. Default 5 s.
	ReplaceTimeout time.Duration
	// AnswerTimeout is of one command, the first time that it is asked, and how long a
	// start takes before the log says that it is slow; default 2 s.
	AnswerTimeout time.Duration
	QuitTimeout   time.Duration // of quit, before a kill; default 3 s
	RenewTimeout  time.Duration // to another server when one died, before the daemon is replaced; default 500 ms
}

// Defaults. A daemon starts in 40 ms and a server in 260; a machine whose driver is
// not kept loaded takes seconds for its first context.
const (
	defaultStartTimeout   = 20 * time.Second
	defaultReplaceTimeout = 5 * time.Second
	defaultAnswerTimeout  = 2 * time.Second
	defaultQuitTimeout    = 3 * time.Second
	defaultRenewTimeout   = 500 * time.Millisecond
)

// Problem is why MPS cannot run: one line, and a command that mends it where one is
// known. Start returns no other error but the context's.
type Problem struct {
	Why  string
	Mend string
}

func (p *Problem) Error() string { return p.Why }

// State is how the daemon is.
type State struct {
	// Serving: a process that touches CUDA now becomes a client. While it is false
	// one would run without MPS, or be refused.
	Serving bool
	// Why says why not, in one line.
	Why string
	// Daemon and Server are process ids; 0 where there is none.
	Daemon, Server int
	// Losses counts the servers that died: all contexts on them are lost.
	Losses uint64
}

// Health is what the server says of itself.
type Health int

const (
	// Well: it takes new clients.
	Well Health = iota
	// Fault: all contexts are lost, and it takes no new client until all old ones
	// have ended.
	Fault
	// Gone: there is no such server; the next client starts another. All contexts
	// are lost.
	Gone
)

// Client is a process that holds a context through the daemon.
type Client struct {
	PID    int
	Server int
}

// Daemon is a control daemon that this process owns. Its methods may be called
// from any goroutine.
type Daemon struct {
	o       Options
	folder  folder
	control control
	changes chan struct{}
	ctx     context.Context
	stop    context.CancelFunc
	kept    chan struct{} // closed when keep has ended

	daemon, server *watched      // keep's
	patience       time.Duration // with the next replacement, keep's

	mu    sync.Mutex
	state State
}

// Start starts a daemon for the GPU, or takes over the one that an orchestrator
// left in the folder, and returns once it has an active server, or it is sure that
// there will be none, StartTimeout later at most. The caller closes it. A *Problem says
// why MPS cannot run here.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	for _, d := range []struct {
		at        *time.Duration
		otherwise time.Duration
	}{
		{&o.StartTimeout, defaultStartTimeout}, {&o.AnswerTimeout, defaultAnswerTimeout}, {&o.QuitTimeout, defaultQuitTimeout},
		{&o.RenewTimeout, defaultRenewTimeout}, {&o.ReplaceTimeout, defaultReplaceTimeout},
	} {
		if *d.at <= 0 {
			*d.at = d.otherwise
		}
	}
	program, err := find(o)
	if err != nil {
		return nil, err
	}
	if err := permitted(o); err != nil {
		return nil, err
	}
	f, err := openFolder(o.Dir, cmp.Or(o.UID, os.Getuid()))
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		o: o, folder: f, control: control{program, f, o.UUID, o.AnswerTimeout, o.Confine},
		changes: make(chan struct{}, 1), kept: make(chan struct{}), patience: o.ReplaceTimeout,
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	if err := d.bring(ctx); err != nil {
		d.stop()
		d.unwatch()
		d.end()
		f.release()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("start MPS: %w", ctx.Err())
		}
		return nil, err
	}
	d.set(func(s *State) { s.Serving = true })
	go d.keep()
	return d, nil
}

// Environment is what a client of the daemon needs: its folders, and the GPU,
// which is the client's only one.
func (d *Daemon) Environment() map[string]string {
	return map[string]string{
		"CUDA_MPS_PIPE_DIRECTORY": d.folder.pipe,
		"CUDA_MPS_LOG_DIRECTORY":  d.folder.log,
		"CUDA_VISIBLE_DEVICES":    d.o.UUID,
	}
}

// State is how the daemon is now.
func (d *Daemon) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Changes holds a value after the state has changed.
func (d *Daemon) Changes() <-chan struct{} { return d.changes }

// Health asks the server; it takes 2 ms. An error is a daemon that does not answer,
// which says nothing of the server.
func (d *Daemon) Health(ctx context.Context) (Health, error) {
	server := d.State().Server
	if server == 0 {
		return Gone, nil
	}
	answer, err := d.control.ask(ctx, fmt.Sprintf("get_server_status %d", server))
	switch {
	case strings.Contains(answer, "not found"):
		return Gone, nil
	case err != nil:
		return Well, err
	case strings.Contains(answer, "FAULT"):
		return Fault, nil
	}
	return Well, nil
}

// Clients lists who holds a context.
func (d *Daemon) Clients(ctx context.Context) ([]Client, error) { return d.control.clients(ctx) }

// Close ends the daemon and its server: quit, then a kill. The clients should have
// ended; what is left of them loses its contexts.
func (d *Daemon) Close() error {
	d.stop()
	<-d.kept
	err := d.end()
	return errors.Join(err, d.folder.release())
}

// set changes the state and tells.
func (d *Daemon) set(change func(*State)) {
	d.mu.Lock()
	before := d.state
	change(&d.state)
	same := d.state == before
	d.mu.Unlock()
	if same {
		return
	}
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// patiently bounds a start, and says at once when it is slow.
func (d *Daemon) patiently(ctx context.Context, most time.Duration) (_ context.Context, end func()) {
	ctx, cancel := runclock.Process().WithTimeout(ctx, most)
	slow := time.AfterFunc(d.o.AnswerTimeout, func() {
		d.o.Log.Warn().Str("folder", d.folder.pipe).
			Msgf("MPS is not up after %v: its daemon or server is slow; waiting up to %v in all while the daemon lives", d.o.AnswerTimeout, most)
	})
	return ctx, func() {
		slow.Stop()
		cancel()
	}
}

// bring makes the daemon and its server run, whatever there was before.
func (d *Daemon) bring(ctx context.Context) error {
	began := time.Now()
	ctx, end := d.patiently(ctx, d.o.StartTimeout)
	defer end()
	if pid, ok := d.control.adoptable(ctx); ok {
		adopting, cancel := runclock.Process().WithTimeout(ctx, d.o.ReplaceTimeout)
		err := d.run(adopting, began, pid, true)
		if cancel(); err == nil || ctx.Err() != nil {
			return err
		}
		d.o.Log.Warn().Err(err).Msg("the MPS daemon that was left here brings no server; starting another")
		d.unwatch()
	}
	return d.begin(ctx, began)
}

// replace starts a daemon in place of whatever there was before, and its server.
func (d *Daemon) replace(ctx context.Context) error {
	ctx, end := d.patiently(ctx, d.patience)
	defer end()
	err := d.begin(ctx, time.Now())
	switch {
	case err == nil:
		d.patience = d.o.ReplaceTimeout
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		// A machine that is so busy is not helped by starting it over and over.
		d.patience = max(d.patience, min(2*d.patience, d.o.StartTimeout))
	}
	return err
}

func (d *Daemon) begin(ctx context.Context, began time.Time) error {
	if err := sweep(d.folder); err != nil {
		return &Problem{Why: err.Error()}
	}
	pid, err := d.control.launch(ctx, began)
	if err != nil {
		return err
	}
	return d.run(ctx, began, pid, false)
}

// renew has the daemon start another server. One whose server was killed under load
// may answer nobody for seconds (measured: 4 s): it gets RenewTimeout. Nobody has a
// context then that could be lost with it.
func (d *Daemon) renew(ctx context.Context) error {
	ctx, cancel := runclock.Process().WithTimeout(ctx, d.o.RenewTimeout)
	defer cancel()
	return d.serve(ctx, time.Now())
}

// run watches a daemon that answers and makes its server run.
func (d *Daemon) run(ctx context.Context, began time.Time, pid int, adopted bool) error {
	w, err := watch(pid)
	if err != nil {
		return &Problem{Why: fmt.Sprintf("the MPS daemon ended at once: %v%s", err, d.folder.said())}
	}
	d.daemon = w
	d.set(func(s *State) { s.Daemon = pid })
	d.o.Log.Info().Int("pid", pid).Bool("found", adopted).Str("folder", d.folder.pipe).Msg("MPS daemon runs")
	return d.serve(ctx, began)
}

// serve starts a server, unless there is one, and waits until it is active: the
// first client then need not. It waits as long as ctx lets it and the daemon lives;
// began is when the start began.
func (d *Daemon) serve(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	daemon := d.daemon
	go func() {
		select {
		case <-daemon.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	c, told, last := d.control, (chan struct{})(nil), error(nil)
	defer func() {
		if cancel(); told != nil {
			<-told
		}
	}()
	for ; ; time.Sleep(5 * time.Millisecond) {
		servers, err := c.servers(ctx)
		c = c.after(err)
		if ctx.Err() == nil { // after that all errors are the same
			last = err
		}
		switch {
		case ctx.Err() != nil, err != nil:
		case len(servers) > 0:
			server := servers[len(servers)-1]
			if !alive(server) {
				break // the daemon does not know yet
			}
			// The daemon answers when the server is ready.
			answer, err := c.ask(ctx, fmt.Sprintf("get_server_status %d", server))
			if err == nil && active(answer) {
				return d.watchServer(server, began)
			}
			c = c.after(err)
		case told == nil:
			told = make(chan struct{})
			go func() {
				defer close(told)
				// Its answer says little: whether a server runs is seen. It is given all the
				// time that there is, as nobody knows what a second one would do.
				c := d.control
				c.timeout = max(d.o.StartTimeout, d.o.ReplaceTimeout)
				c.ask(ctx, "start_server -uid "+strconv.Itoa(cmp.Or(d.o.UID, os.Getuid())))
			}()
			select {
			case <-told:
			case <-time.After(d.o.AnswerTimeout):
			case <-ctx.Done():
			}
		}
		if ctx.Err() == nil {
			continue
		}
		switch {
		case daemon.over():
			return &Problem{Why: fmt.Sprintf("the MPS daemon (process %d) ended before it had a server%s", daemon.pid, d.folder.said())}
		case last != nil:
			return &Problem{Why: fmt.Sprintf("the MPS daemon (process %d) lives and does not answer within %v: %v%s", daemon.pid, within(ctx, began), last, d.folder.said())}
		}
		return &Problem{
			Why:  fmt.Sprintf("the MPS server is not active within %v%s", within(ctx, began), d.folder.said()),
			Mend: "nvidia-smi   # is another process holding the GPU? its compute mode may let in only one",
		}
	}
}

// active reports whether a server's status lets clients in. A daemon that knows no
// such command has a server that does.
func active(status string) bool {
	for _, s := range []string{"INITIALIZING", "FAULT", "not found"} {
		if strings.Contains(status, s) {
			return false
		}
	}
	return status != ""
}

func (d *Daemon) watchServer(pid int, began time.Time) error {
	w, err := watch(pid)
	if err != nil {
		return &Problem{Why: fmt.Sprintf("the MPS server ended at once: %v%s", err, d.folder.said())}
	}
	d.server = w
	d.set(func(s *State) { s.Server = pid })
	d.o.Log.Info().Int("pid", pid).Dur("after_ms", time.Since(began)).Msg("MPS server is active")
	return nil
}

// A daemon or server that dies again and again is started with growing pauses; one
// that did well for pauseMost, at once.
const (
	pauseFirst = 100 * time.Millisecond
	pauseMost  = 5 * time.Second
)

// keep keeps daemon and server running until Close.
func (d *Daemon) keep() {
	defer close(d.kept)
	defer d.unwatch()
	pause, began := time.Duration(0), time.Now()
	for {
		var again func(context.Context) error
		select {
		case <-d.ctx.Done():
			return
		case <-d.daemon.gone:
			d.unwatch() // the server goes with it
			d.set(func(s *State) {
				if s.Server != 0 {
					s.Losses++
				}
				s.Serving, s.Why = false, "the MPS daemon died"
				s.Daemon, s.Server = 0, 0
			})
			d.o.Log.Error().Msg("MPS daemon died; all contexts are lost; starting it again")
			again = d.replace
		case <-d.server.gone:
			if d.State().Server != 0 {
				// A client that comes now would find a daemon without a server.
				d.set(func(s *State) {
					s.Serving, s.Why = false, "the MPS server died"
					s.Server = 0
					s.Losses++
				})
			}
			if d.daemon.over() {
				continue
			}
			d.server.close()
			d.o.Log.Error().Msg("MPS server died; all contexts are lost; starting it again")
			again = d.renew
		}
		wait := func() bool {
			select {
			case <-d.ctx.Done():
				return false
			case <-time.After(pause):
				pause = min(max(pauseFirst, 2*pause), pauseMost)
				return true
			}
		}
		if time.Since(began) > pauseMost {
			pause = 0
		}
		if !wait() {
			return
		}
		for {
			err := again(d.ctx)
			if err == nil {
				break
			}
			if d.ctx.Err() != nil {
				return
			}
			d.o.Log.Error().Err(err).Dur("pause_ms", pause).Msg("MPS does not start again")
			d.unwatch()
			d.set(func(s *State) { s.Serving, s.Why = false, err.Error() })
			again = d.replace
			if !wait() {
				return
			}
		}
		d.set(func(s *State) { s.Serving, s.Why = true, "" })
		began = time.Now()
	}
}

func (d *Daemon) unwatch() {
	d.daemon.close()
	d.server.close()
}

// end makes daemon and server end, and leaves the folder empty.
func (d *Daemon) end() error {
	running := belonging(d.folder)
	if len(running) == 0 {
		return sweep(d.folder)
	}
	ctx, cancel := runclock.Process().WithTimeout(context.Background(), d.o.QuitTimeout)
	defer cancel()
	_, err := d.control.ask(ctx, "quit")
	for err == nil && len(living(slices.Clone(running))) > 0 && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	if left := belonging(d.folder); len(left) > 0 {
		d.o.Log.Warn().Err(err).Ints("pids", left).Msg("MPS did not quit; killing it")
	}
	return sweep(d.folder)
}

// find returns the control program's path.
func find(o Options) (string, error) {
	if path := lookUp(o.Program); path != "" {
		return path, nil
	}
	p := &Problem{Why: controlProgram + " is not installed", Mend: "apt-get install nvidia-compute-utils-<the driver's branch>, or put its folder on the PATH"}
	if o.Program != "" {
		p.Why = o.Program + " is no program"
	}
	if o.Session != nil {
		if version, _, err := o.Session.Driver(); err == nil {
			branch, _, _ := strings.Cut(version, ".")
			p.Mend = "apt-get install nvidia-compute-utils-" + branch
		}
	}
	return "", p
}

// permitted says whether the GPU's compute mode lets an MPS server in.
func permitted(o Options) error {
	if o.Session == nil {
		return nil
	}
	devices, err := o.Session.Devices()
	if err != nil {
		return nil // trying tells more
	}
	for _, d := range devices {
		if d.UUID != o.UUID {
			continue
		}
		switch d.ComputeMode {
		case nvml.Prohibited:
			return &Problem{
				Why:  fmt.Sprintf("%s is in compute mode %s: nobody may use it", d.Name, d.ComputeMode),
				Mend: fmt.Sprintf("nvidia-smi -i %s -c DEFAULT   # as root", d.UUID),
			}
		case nvml.ExclusiveProcess:
			if s := Strangers(o.Dir); len(s) > 0 {
				return &Problem{
					Why:  fmt.Sprintf("%s is in compute mode %s, and another MPS daemon (process %d, folder %s) may hold it", d.Name, d.ComputeMode, s[0].PID, s[0].Folder),
					Mend: s[0].Quit(),
				}
			}
		}
	}
	return nil
}

// logFile is where the daemon and its servers log, in the folder's log folder.
func (f folder) logFile(name string) string { return filepath.Join(f.log, name) }

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	s := stateOf(pid)
	return s != 0 && s != 'Z' && s != 'X'
}
