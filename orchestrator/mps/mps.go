// Package mps owns a control daemon of NVIDIA's Multi-Process Service. It starts one for
// a GPU in its own folders, finds it again after a crash, keeps it running, and ends it.
//
//	Start: 1 program, compute mode   find problems that a retry cannot solve
//	       2 folders, lock           one owner per runtime folder
//	       3 adopt, or sweep         a daemon that an orchestrator left behind
//	       4 nvidia-cuda-mps-control -d, until it answers
//	       5 start_server, until it is active
//	keep:  6 the daemon died: sweep, 4, 5, again and again
//	       7 the server died: 5; kill a daemon that starts none at once: 6
//	Close: 8 quit, deadline, kill, sweep
//
// In steps 4 and 5 the package keeps asking a slow daemon while it lives, because the
// driver locks resources of the whole machine. When four nodes started at once, a daemon
// that had answered before was silent for 2 s or more (in 5 of 376 starts, 4 H200). The
// package does not wait for a daemon that has ended. In keep, it sends no command to a
// daemon whose server lives: on a busy machine, a slow answer alone must not cost a
// client its context.
//
// Measured on an H200, driver 580: the daemon answers 10 to 40 ms after its start. Its
// server is active 150 to 260 ms after start_server, and a client that connects meanwhile
// waits for it. A first context takes 85 to 110 ms if a server runs, 340 ms if not. The
// server dies with the daemon, and its clients learn that at their next call
// (CUDA_ERROR_MPS_RPC_FAILURE, 806). A process that starts while no daemon listens runs
// without MPS and reports nothing. `quit` waits for the clients, for ever.
//
// A kernel that faults ends the contexts of all clients (700) and leaves the server in
// the state FAULT. It then refuses new clients (CUDA_ERROR_MPS_SERVER_NOT_READY, 807)
// until the last old client has ended. That includes idle clients, which do not know of
// the fault. See Health.
//
// The daemon's log names a client that "encountered a fatal GPU error". In one of three
// faults it was an innocent client, so the package blames no client by it.
//
// The package does not change a device's compute mode, clocks, persistence or MIG.
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
	"github.com/penstock/penstock/internal/procstat"
)

// controlProgram is the name of the control program. It is searched in PATH and in
// /usr/local/nvidia/bin, where container runtimes put it.
const controlProgram = "nvidia-cuda-mps-control"

// Options say which GPU and where. Durations of zero get their defaults.
type Options struct {
	// Dir is the runtime folder, which must exist. It has one daemon per GPU.
	Dir string
	// UUID identifies the GPU.
	UUID string
	// Session reads the GPU's compute mode; nil if there is no NVML.
	Session nvml.Session
	Log     zerolog.Logger
	// Program is the control program; if it is empty, Start searches for it.
	Program string
	// UID is the user of the daemon, its server and its clients; 0 is this process's
	// user. A server serves one user.
	UID int
	// Confine, if not nil, is called with each command before it starts. It makes the
	// command run as UID.
	Confine func(*exec.Cmd) error `json:"-"`

	// StartTimeout is the max time that Start waits for an active server while the daemon
	// lives; default 20 s.
	StartTimeout time.Duration
	// ReplaceTimeout is the same for a daemon that replaces another. Each time that it is
	// too short it doubles for the next one, up to StartTimeout. Default 5 s.
	ReplaceTimeout time.Duration
	// AnswerTimeout is for the first attempt of one command. It is also how long a start
	// may take before the log says that it is slow. Default 2 s.
	AnswerTimeout time.Duration
	QuitTimeout   time.Duration // quit to kill; default 3 s
	RenewTimeout  time.Duration // server's death to the next server, before the daemon is replaced; default 500 ms
}

// Defaults. A daemon starts in 40 ms and a server in 260 ms. If the driver is not kept
// loaded, the first context takes seconds.
const (
	defaultStartTimeout   = 20 * time.Second
	defaultReplaceTimeout = 5 * time.Second
	defaultAnswerTimeout  = 2 * time.Second
	defaultQuitTimeout    = 3 * time.Second
	defaultRenewTimeout   = 500 * time.Millisecond
)

// Problem is why MPS cannot run: one line, and a command that solves it, if one is known.
// Start returns no other error than this and the context's.
type Problem struct {
	Why string
	Fix string
}

func (p *Problem) Error() string { return p.Why }

// State is the observed state of the daemon.
type State struct {
	// Serving: a process that initialises CUDA now becomes a client. Otherwise it would
	// run without MPS, or be refused.
	Serving bool
	// Why is the reason if Serving is false, in one line.
	Why string
	// Daemon and Server are process ids; 0 if there is none.
	Daemon, Server int
	// Losses counts the servers that died. All contexts on them are lost.
	Losses uint64
}

// Health is the server's state as the daemon reports it.
type Health int

const (
	// Well: the server accepts new clients.
	Well Health = iota
	// Fault: all contexts are lost, and the server accepts no new client until all old
	// ones have ended.
	Fault
	// Gone: there is no such server, and the next client starts another. All contexts are
	// lost.
	Gone
)

// Client is a process that holds a context through the daemon.
type Client struct {
	PID    int
	Server int
}

// Daemon is a control daemon that this process owns. Any goroutine may call its methods.
type Daemon struct {
	o       Options
	folder  folder
	control control
	changes chan struct{}
	ctx     context.Context
	stop    context.CancelFunc
	kept    chan struct{} // closed when keep has ended

	daemon, server *watched      // owned by keep
	patience       time.Duration // timeout of the next replacement; owned by keep

	mu    sync.Mutex
	state State
}

// Start starts a daemon for the GPU, or takes over the one that an orchestrator left in
// the folder. It returns when the daemon has an active server or certainly will have
// none, after StartTimeout at the latest. The caller closes the daemon. A *Problem says
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
	f, err := openFolder(o.Dir, o.UUID, cmp.Or(o.UID, os.Getuid()))
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		o: o, folder: f, control: control{program, f, o.UUID, o.AnswerTimeout, o.Confine},
		changes: make(chan struct{}, 1), kept: make(chan struct{}), patience: o.ReplaceTimeout,
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	if err := d.startServer(ctx); err != nil {
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

// Environment is what a client of the daemon needs: the daemon's folders, and the GPU as
// the only visible one.
func (d *Daemon) Environment() map[string]string {
	return map[string]string{
		"CUDA_MPS_PIPE_DIRECTORY": d.folder.pipe,
		"CUDA_MPS_LOG_DIRECTORY":  d.folder.log,
		"CUDA_VISIBLE_DEVICES":    d.o.UUID,
	}
}

// State is the daemon's present state.
func (d *Daemon) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// Changes holds a value after the state has changed.
func (d *Daemon) Changes() <-chan struct{} { return d.changes }

// Health asks the server for its state; this takes 2 ms. An error means that the daemon
// does not answer, which says nothing about the server.
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

// Clients lists the processes that hold a context.
func (d *Daemon) Clients(ctx context.Context) ([]Client, error) { return d.control.clients(ctx) }

// EndWork ends the work on the GPU of those of the processes that are clients; their later CUDA calls fail. A
// client that is killed while its kernels run may fail the GPU for all clients.
func (d *Daemon) EndWork(ctx context.Context, pids []int) error {
	clients, err := d.control.clients(ctx)
	if err != nil {
		return err
	}
	var commands []string
	for _, c := range clients {
		if slices.Contains(pids, c.PID) {
			commands = append(commands, fmt.Sprintf("terminate_client %d %d", c.Server, c.PID))
		}
	}
	if len(commands) == 0 {
		return nil
	}
	answer, err := d.control.ask(ctx, strings.Join(commands, "\n"))
	if err != nil {
		return err
	}
	for _, line := range strings.Fields(answer) {
		if line != "0" {
			return fmt.Errorf("end work of MPS clients: got %q, want 0 for each", answer)
		}
	}
	return nil
}

// Close ends the daemon and its server: quit, then a kill. The clients should have ended;
// clients that are left lose their contexts.
func (d *Daemon) Close() error {
	d.stop()
	<-d.kept
	err := d.end()
	return errors.Join(err, d.folder.release())
}

// set changes the state and announces the change.
func (d *Daemon) set(change func(*State)) {
	d.mu.Lock()
	before := d.state
	change(&d.state)
	unchanged := d.state == before
	d.mu.Unlock()
	if unchanged {
		return
	}
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// limitStart limits the time of a start, and logs at once when the start is slow.
func (d *Daemon) limitStart(ctx context.Context, timeout time.Duration) (_ context.Context, end func()) {
	ctx, cancel := runclock.Process().WithTimeout(ctx, timeout)
	slow := time.AfterFunc(d.o.AnswerTimeout, func() {
		d.o.Log.Warn().Str("folder", d.folder.pipe).Dur("after_ms", d.o.AnswerTimeout).Dur("at_most_ms", timeout).
			Msg("MPS starts slowly; waiting while its daemon runs")
	})
	return ctx, func() {
		slow.Stop()
		cancel()
	}
}

// startServer makes the daemon and its server run, whatever state they are in.
func (d *Daemon) startServer(ctx context.Context) error {
	began := time.Now()
	ctx, end := d.limitStart(ctx, d.o.StartTimeout)
	defer end()
	if pid, ok := d.control.adoptable(ctx); ok {
		adopting, cancel := runclock.Process().WithTimeout(ctx, d.o.ReplaceTimeout)
		err := d.run(adopting, began, pid, true)
		if cancel(); err == nil || ctx.Err() != nil {
			return err
		}
		d.o.Log.Warn().Err(err).Msg("the MPS daemon of an earlier node has no server; starting another")
		d.unwatch()
	}
	return d.startDaemon(ctx, began)
}

// replace starts a new daemon and its server, whatever ran before.
func (d *Daemon) replace(ctx context.Context) error {
	ctx, end := d.limitStart(ctx, d.patience)
	defer end()
	err := d.startDaemon(ctx, time.Now())
	switch {
	case err == nil:
		d.patience = d.o.ReplaceTimeout
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		// To start again and again does not help a machine that is so busy.
		d.patience = max(d.patience, min(2*d.patience, d.o.StartTimeout))
	}
	return err
}

func (d *Daemon) startDaemon(ctx context.Context, began time.Time) error {
	if err := sweep(d.folder); err != nil {
		return &Problem{Why: err.Error()}
	}
	pid, err := d.control.launch(ctx, began)
	if err != nil {
		return err
	}
	return d.run(ctx, began, pid, false)
}

// renew makes the daemon start another server. A daemon whose server was killed under
// load may not answer for seconds (measured: 4 s), so the limit is RenewTimeout. At that
// point no process has a context that could be lost with the daemon.
func (d *Daemon) renew(ctx context.Context) error {
	ctx, cancel := runclock.Process().WithTimeout(ctx, d.o.RenewTimeout)
	defer cancel()
	return d.serve(ctx, time.Now())
}

// run watches a daemon that answers, and makes its server run.
func (d *Daemon) run(ctx context.Context, began time.Time, pid int, adopted bool) error {
	w, err := watch(pid)
	if err != nil {
		return &Problem{Why: fmt.Sprintf("the MPS daemon ended at once: %v%s", err, d.folder.lastLog())}
	}
	d.daemon = w
	d.set(func(s *State) { s.Daemon = pid })
	d.o.Log.Info().Int("pid", pid).Bool("found", adopted).Str("folder", d.folder.pipe).Msg("MPS daemon started")
	return d.serve(ctx, began)
}

// serve starts a server, unless there is one, and waits until it is active, so that the
// first client need not wait. It stops waiting when ctx ends or the daemon dies. began is
// when the start began.
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
	c, ordered, last := d.control, (chan struct{})(nil), error(nil)
	defer func() {
		if cancel(); ordered != nil {
			<-ordered
		}
	}()
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		servers, err := c.servers(ctx)
		c = c.after(err)
		if ctx.Err() == nil { // after the end of ctx every error is the same
			last = err
		}
		switch {
		case ctx.Err() != nil, err != nil:
		case len(servers) > 0:
			server := servers[len(servers)-1]
			if !alive(server) {
				break // the daemon does not know of the server yet
			}
			// The daemon answers when the server is ready.
			answer, err := c.ask(ctx, fmt.Sprintf("get_server_status %d", server))
			if err == nil && active(answer) {
				return d.watchServer(server, began)
			}
			c = c.after(err)
		case ordered == nil:
			ordered = d.orderServer(ctx)
		}
	}
	return d.serverless(ctx, began, last)
}

// orderServer orders a server, and waits a little for the answer. The channel is closed when
// the answer has come or ctx has ended.
func (d *Daemon) orderServer(ctx context.Context) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The answer says little: serve sees whether a server runs. The command gets all
		// the time there is, as the effect of a second one is unknown.
		c := d.control
		c.timeout = max(d.o.StartTimeout, d.o.ReplaceTimeout)
		c.ask(ctx, "start_server -uid "+strconv.Itoa(cmp.Or(d.o.UID, os.Getuid())))
	}()
	select {
	case <-done:
	case <-time.After(d.o.AnswerTimeout):
	case <-ctx.Done():
	}
	return done
}

// serverless describes why there is no server when ctx has ended. last is the daemon's last
// error.
func (d *Daemon) serverless(ctx context.Context, began time.Time, last error) error {
	switch {
	case d.daemon.over():
		return &Problem{Why: fmt.Sprintf("the MPS daemon (process %d) ended before it had a server%s", d.daemon.pid, d.folder.lastLog())}
	case last != nil:
		return &Problem{Why: fmt.Sprintf("the MPS daemon (process %d) runs, but gave no answer within %v: %v%s", d.daemon.pid, within(ctx, began), last, d.folder.lastLog())}
	}
	return &Problem{
		Why: fmt.Sprintf("the MPS server is not active within %v%s", within(ctx, began), d.folder.lastLog()),
		Fix: "nvidia-smi   # check whether another process holds the GPU; its compute mode may allow only one",
	}
}

// active reports whether a server in this state accepts clients. If a daemon does not
// know the command, its server accepts them.
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
		return &Problem{Why: fmt.Sprintf("the MPS server ended at once: %v%s", err, d.folder.lastLog())}
	}
	d.server = w
	d.set(func(s *State) { s.Server = pid })
	d.o.Log.Info().Int("pid", pid).Dur("after_ms", time.Since(began)).Msg("MPS server is active")
	return nil
}

// The pauses before restarts of a daemon or server that dies repeatedly grow. A daemon or
// server that ran well for maxPause is restarted at once.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// keep keeps daemon and server running until Close.
func (d *Daemon) keep() {
	defer close(d.kept)
	defer d.unwatch()
	var p pause
	began := time.Now()
	for {
		var again func(context.Context) error
		select {
		case <-d.ctx.Done():
			return
		case <-d.daemon.gone:
			d.noteDaemonDeath()
			again = d.replace
		case <-d.server.gone:
			if !d.noteServerDeath() {
				continue
			}
			again = d.renew
		}
		if time.Since(began) > maxPause {
			p = 0
		}
		if !d.restart(again, &p) {
			return
		}
		d.set(func(s *State) { s.Serving, s.Why = true, "" })
		began = time.Now()
	}
}

// noteDaemonDeath records the death of the daemon. The server dies with it.
func (d *Daemon) noteDaemonDeath() {
	d.unwatch()
	d.set(func(s *State) {
		if s.Server != 0 {
			s.Losses++
		}
		s.Serving, s.Why = false, "the MPS daemon ended"
		s.Daemon, s.Server = 0, 0
	})
	d.o.Log.Error().Msg("MPS daemon ended; all CUDA contexts are lost; restarting it")
}

// noteServerDeath records the death of the server. It returns false if the daemon is dead as
// well.
func (d *Daemon) noteServerDeath() bool {
	if d.State().Server != 0 {
		// A client that connects now would find a daemon without a server.
		d.set(func(s *State) {
			s.Serving, s.Why = false, "the MPS server ended"
			s.Server = 0
			s.Losses++
		})
	}
	if d.daemon.over() {
		return false
	}
	d.server.close()
	d.o.Log.Error().Msg("MPS server ended; all CUDA contexts are lost; restarting it")
	return true
}

// restart starts the server again, and after a failure the daemon, until one runs. It returns
// false after Close.
func (d *Daemon) restart(start func(context.Context) error, p *pause) bool {
	for {
		if !p.wait(d.ctx) {
			return false
		}
		err := start(d.ctx)
		if err == nil {
			return true
		}
		if d.ctx.Err() != nil {
			return false
		}
		d.o.Log.Error().Err(err).Dur("pause_ms", time.Duration(*p)).Msg("cannot restart MPS")
		d.unwatch()
		d.set(func(s *State) { s.Serving, s.Why = false, err.Error() })
		start = d.replace
	}
}

// pause is the pause before the next restart.
type pause time.Duration

// wait waits for the pause and makes it longer. It returns false if ctx ends first.
func (p *pause) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(*p)):
		*p = min(max(pause(minPause), 2**p), pause(maxPause))
		return true
	}
}

func (d *Daemon) unwatch() {
	d.daemon.close()
	d.server.close()
}

// end ends the daemon and the server, and leaves the folder empty.
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
		d.o.Log.Warn().Err(err).Ints("pids", left).Msg("MPS did not quit in time; killing it")
	}
	return sweep(d.folder)
}

// find returns the control program's path.
func find(o Options) (string, error) {
	if path := findProgram(o.Program); path != "" {
		return path, nil
	}
	p := &Problem{Why: controlProgram + " is not installed", Fix: "apt-get install nvidia-compute-utils-<the driver's branch>, or add its folder to PATH"}
	if o.Program != "" {
		p.Why = o.Program + " is not a program"
	}
	if o.Session != nil {
		if version, _, err := o.Session.Driver(); err == nil {
			branch, _, _ := strings.Cut(version, ".")
			p.Fix = "apt-get install nvidia-compute-utils-" + branch
		}
	}
	return "", p
}

// permitted returns an error if the GPU's compute mode keeps an MPS server out.
func permitted(o Options) error {
	if o.Session == nil {
		return nil
	}
	devices, err := o.Session.Devices()
	if err != nil {
		return nil // starting the daemon tells more
	}
	for _, d := range devices {
		if d.UUID != o.UUID {
			continue
		}
		switch d.ComputeMode {
		case nvml.Prohibited:
			return &Problem{
				Why: fmt.Sprintf("%s is in compute mode %s, which lets no process use it", d.Name, d.ComputeMode),
				Fix: fmt.Sprintf("nvidia-smi -i %s -c DEFAULT   # as root", d.UUID),
			}
		case nvml.ExclusiveProcess:
			if s := Strangers(o.Dir, o.UUID); len(s) > 0 {
				return &Problem{
					Why: fmt.Sprintf("%s is in compute mode %s, and another MPS daemon (process %d, folder %s) may hold it", d.Name, d.ComputeMode, s[0].PID, s[0].Folder),
					Fix: s[0].Quit(),
				}
			}
		}
	}
	return nil
}

// logFile is the path of a log of the daemon or its servers.
func (f folder) logFile(name string) string { return filepath.Join(f.log, name) }

// alive reports whether a process runs. A zombie does not.
func alive(pid int) bool {
	stat, _ := procstat.Read(pid)
	return !stat.Ended()
}
