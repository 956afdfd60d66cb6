package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/unixsock"
)

// version is that of the messages below. The first message of each side contains
// {"version": N}; that never changes. If a client has another version, the keeper ends all
// processes.
const version = 1

// message is one packet. Op says which fields are used.
type message struct {
	Version int    `json:"version,omitempty"`
	Op      op     `json:"op,omitempty"`
	ID      string `json:"id,omitempty"`
	// For start, the Command is in a memory file, since an environment may be too large
	// for a packet. These fields are for started and held, which carry the files link,
	// stdout and stderr.
	PID     int             `json:"pid,omitempty"`
	Started time.Time       `json:"started,omitzero"`
	Note    json.RawMessage `json:"note,omitempty"`
	Error   string          `json:"error,omitempty"`
	Signal  syscall.Signal  `json:"signal,omitempty"`
	Exit    *Exit           `json:"exit,omitempty"`
	Exited  bool            `json:"exited,omitempty"`
}

type op string

const (
	opStart  op = "start"
	opSignal op = "signal"
	opNote   op = "note"
	opForget op = "forget"

	opHeld    op = "held"  // once per process, before ready
	opReady   op = "ready" // ends the list
	opStarted op = "started"
	opExited  op = "exited"
)

// maxPacketBytes is the max length of a packet. Notes are its longest part.
const maxPacketBytes = 64 << 10

// maxFiles is the max number of files of a message: link, stdout and stderr.
const maxFiles = 3

// newLink takes ownership of one end of the socket pair. If this process cannot open more files, a message comes without
// them.
func newLink(f *os.File) (*unixsock.Link, error) {
	l, err := unixsock.OpenLink(f, unixsock.Limits{SendBytes: maxPacketBytes, ReceiveBytes: maxPacketBytes, Files: maxFiles})
	if err != nil {
		return nil, fmt.Errorf("open keeper's socket: %w", err)
	}
	return l, nil
}

// receive waits for a message. The caller owns its files.
func receive(l *unixsock.Link) (m message, files []*os.File, err error) {
	text, files, err := l.Receive()
	if err != nil && !errors.Is(err, unixsock.ErrFilesLost) {
		return m, nil, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		unixsock.CloseAll(files)
		return m, nil, err
	}
	return m, files, nil
}

// SocketPair makes the ends of a connection: the keeper's, for Serve, and the
// orchestrator's, for Connect. The orchestrator's process is to inherit its end.
func SocketPair() (keeper, orchestrator *os.File, err error) {
	keeper, orchestrator, err = unixsock.Pair()
	if err != nil {
		return nil, nil, fmt.Errorf("make keeper's socket: %w", err)
	}
	return keeper, orchestrator, nil
}

// Remote is a Keeper in the parent process, used over a connection.
type Remote struct {
	link *unixsock.Link
	pid  int // process id of the keeper
	held []*Process
	done chan struct{} // closed when the keeper has gone

	mu       sync.Mutex
	exits    map[string]chan Exit // of running processes
	starting map[string]chan startResult
}

// startResult is what Start returns.
type startResult struct {
	process *Process
	err     error
}

// ErrVersion is returned by Connect if the keeper has another version. The keeper has then
// ended all its processes.
var ErrVersion = errors.New("keeper of another version")

// Connect takes ownership of f, the orchestrator's end of SocketPair.
func Connect(f *os.File) (*Remote, error) {
	c, err := newLink(f)
	if err != nil {
		return nil, err
	}
	return connect(c)
}

func connect(l *unixsock.Link) (*Remote, error) {
	r := &Remote{link: l, done: make(chan struct{}), exits: map[string]chan Exit{}, starting: map[string]chan startResult{}}
	if err := r.shake(); err != nil {
		l.Close()
		for _, p := range r.held {
			p.closeFiles()
		}
		return nil, fmt.Errorf("connect to keeper: %w", err)
	}
	go r.read()
	return r, nil
}

// shake exchanges versions and receives the list of held processes.
func (r *Remote) shake() error {
	if err := r.link.Send(message{Version: version}); err != nil {
		return err
	}
	for first := true; ; first = false {
		m, files, err := receive(r.link)
		if err != nil {
			return err
		}
		switch {
		case first && m.Version != version:
			unixsock.CloseAll(files)
			return fmt.Errorf("%w: it has version %d, want %d; restart `penstock up`", ErrVersion, m.Version, version)
		case first:
			r.pid = m.PID
		case m.Op == opHeld:
			if p, err := r.process(m, files); err == nil {
				r.held = append(r.held, p)
			}
		case m.Op == opExited && m.Exit != nil:
			r.exited(m) // a process had exited before; its exit follows right after its handover
		case m.Op == opReady:
			return nil
		default:
			unixsock.CloseAll(files)
		}
	}
}

// process makes a handle from a message started or held. A process without its files
// cannot be used: it is killed, and forgotten when it has exited.
func (r *Remote) process(m message, files []*os.File) (*Process, error) {
	if len(files) != maxFiles {
		unixsock.CloseAll(files)
		go r.Signal(m.ID, syscall.SIGKILL) // the keeper may wait until this goroutine reads
		return nil, fmt.Errorf("receive the files of process %s: %w", m.ID, unix.EMFILE)
	}
	exit := make(chan Exit, 1)
	r.mu.Lock()
	r.exits[m.ID] = exit
	r.mu.Unlock()
	return &Process{
		ID: m.ID, PID: m.PID, Started: m.Started, Note: m.Note, Exit: exit, Exited: m.Exited,
		Link: files[0], Stdout: files[1], Stderr: files[2],
	}, nil
}

func (r *Remote) read() {
	defer close(r.done)
	for {
		m, files, err := receive(r.link)
		if err != nil {
			break
		}
		switch {
		case m.Op == opStarted:
			r.started(m, files)
		case m.Op == opExited && m.Exit != nil:
			r.exited(m)
		default:
			unixsock.CloseAll(files)
		}
	}
	// The processes end with the keeper.
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, exit := range r.exits {
		exit <- Exit{Code: -1, Signal: syscall.SIGKILL, Ours: true}
		delete(r.exits, id)
	}
}

// exited publishes the exit status of a process.
func (r *Remote) exited(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	exit := r.exits[m.ID]
	if exit == nil { // its files were lost
		go r.Forget(m.ID)
		return
	}
	exit <- *m.Exit
	delete(r.exits, m.ID)
}

func (r *Remote) started(m message, files []*os.File) {
	var result startResult
	if m.Error == "" {
		result.process, result.err = r.process(m, files)
	} else {
		unixsock.CloseAll(files)
		result.err = errors.New(m.Error)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if wait := r.starting[m.ID]; wait != nil {
		delete(r.starting, m.ID)
		wait <- result
	}
}

// Start implements Keeper.
func (r *Remote) Start(c Command) (*Process, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	file, err := inMemory(text)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	wait := make(chan startResult, 1)
	r.mu.Lock()
	_, taken := r.starting[c.ID]
	if !taken {
		r.starting[c.ID] = wait
	}
	r.mu.Unlock()
	if taken {
		return nil, fmt.Errorf("process %s is being started already", c.ID)
	}
	if err := r.link.Send(message{Op: opStart, ID: c.ID}, file); err != nil {
		r.mu.Lock()
		delete(r.starting, c.ID)
		r.mu.Unlock()
		return nil, fmt.Errorf("call keeper: %w", err)
	}
	select {
	case result := <-wait:
		return result.process, result.err
	case <-r.done:
		return nil, ErrClosed
	}
}

// inMemory returns a memory file that holds text.
func inMemory(text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("penstock-command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err := f.Write(text); err != nil {
		f.Close()
		return nil, fmt.Errorf("write memory file: %w", err)
	}
	return f, nil
}

// Held implements Keeper.
func (r *Remote) Held() []*Process { return r.held }

// A keeper that is gone accepts no more messages. Process.Exit and Start report that.

// Signal implements Keeper.
func (r *Remote) Signal(id string, sig syscall.Signal) {
	_ = r.link.Send(message{Op: opSignal, ID: id, Signal: sig})
}

// Note implements Keeper.
func (r *Remote) Note(id string, note json.RawMessage) {
	_ = r.link.Send(message{Op: opNote, ID: id, Note: note})
}

// Forget implements Keeper.
func (r *Remote) Forget(id string) { _ = r.link.Send(message{Op: opForget, ID: id}) }

// PID implements Keeper.
func (r *Remote) PID() int { return r.pid }

// Gone implements Keeper.
func (r *Remote) Gone() <-chan struct{} { return r.done }

// Close closes the connection. The processes keep running.
func (r *Remote) Close() error {
	err := r.link.Close()
	<-r.done
	return err
}

// Serve lets the process at the other end of f use the keeper, until that process closes
// the connection or dies. Serve takes ownership of f.
func (l *Local) Serve(f *os.File) error {
	c, err := newLink(f)
	if err != nil {
		return err
	}
	defer c.Close()
	// First finish the orders that the last client sent before its death. One may be a
	// start.
	l.serving.Lock()
	defer l.serving.Unlock()
	hello, files, err := receive(c)
	unixsock.CloseAll(files)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil || hello.Version != version {
		l.endAll()
		_ = c.Send(message{Version: version})
		return fmt.Errorf("orchestrator has version %d of the keeper's messages, want %d; ended its processes: %w",
			hello.Version, version, errors.Join(ErrVersion, err))
	}
	if err := c.Send(message{Version: version, PID: os.Getpid()}); err != nil {
		return err
	}
	for _, p := range l.Held() {
		l.hand(c, opHeld, p)
	}
	if err := c.Send(message{Op: opReady}); err != nil {
		return err
	}
	for {
		m, files, err := receive(c)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		switch m.Op {
		case opStart:
			l.serveStart(c, m, files)
		case opSignal:
			l.Signal(m.ID, m.Signal)
		case opNote:
			l.Note(m.ID, m.Note)
		case opForget:
			l.Forget(m.ID)
		}
		unixsock.CloseAll(files)
	}
}

func (l *Local) serveStart(c *unixsock.Link, m message, files []*os.File) {
	p, err := func() (*Process, error) {
		if len(files) != 1 {
			return nil, fmt.Errorf("receive command: %w", unix.EMFILE)
		}
		command, err := readCommand(files[0])
		if err != nil {
			return nil, err
		}
		return l.Start(command)
	}()
	if err != nil {
		_ = c.Send(message{Op: opStarted, ID: m.ID, Error: err.Error()})
		return
	}
	l.hand(c, opStarted, p)
}

func readCommand(f *os.File) (c Command, err error) {
	info, err := f.Stat()
	if err != nil {
		return c, fmt.Errorf("read command: %w", err)
	}
	const most = 16 << 20
	if info.Size() > most {
		return c, fmt.Errorf("read command: %d bytes, at most %d", info.Size(), most)
	}
	text := make([]byte, info.Size())
	if n, err := f.ReadAt(text, 0); n != len(text) {
		return c, fmt.Errorf("read command: %d of %d bytes: %w", n, len(text), err)
	}
	return c, json.Unmarshal(text, &c)
}

// hand reports a process to the client, and later its exit. It ignores errors: if the
// client is gone, the next one gets the process.
func (l *Local) hand(c *unixsock.Link, op op, p *Process) {
	m := message{Op: op, ID: p.ID, PID: p.PID, Started: p.Started, Exited: p.Exited}
	if op == opHeld {
		m.Note = p.Note
	}
	_ = c.Send(m, p.Link, p.Stdout, p.Stderr)
	p.closeFiles()
	go func() {
		exit := <-p.Exit
		_ = c.Send(message{Op: opExited, ID: p.ID, Exit: &exit})
	}()
}
