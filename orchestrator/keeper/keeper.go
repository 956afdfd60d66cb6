// Package keeper is the parent of a node's processes. It outlives the orchestrator, so
// they do, too:
//
//	penstock up (Local, Serve)                 orchestrator (Remote)
//	1 socket pair, starts the orchestrator ──> Connect
//	2 all processes that it holds ───────────> Held: adopted
//	3          <── start: command and note ─── Start
//	  fork; link, pipes, process id ─────────>
//	4          <── note, signal ────────────── Note, Signal
//	5 wait(2); exit status ──────────────────> Process.Exit
//	6          <── forget ──────────────────── Forget
//
// For each process the keeper holds what an orchestrator needs to go on with it: the
// orchestrator's end of the link, the read ends of its output, its exit status, and a note
// that only orchestrators read. No peer of a process sees an end of file while the
// orchestrator is away.
//
// The keeper's death ends all of its processes (PDEATHSIG). An orchestrator without a node
// around it (`penstock orchestrator`) has a Local of its own, and takes its processes along.
package keeper

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"time"
)

// Keeper holds processes. Its methods may be called from any goroutine.
type Keeper interface {
	// Start starts a process. The caller owns the files of the returned Process.
	Start(Command) (*Process, error)
	// Held lists the processes that were there when the keeper was opened, and are not
	// forgotten. It is called once; the caller owns the files.
	Held() []*Process
	// Signal reaches a process that has not exited, and its process group.
	Signal(id string, sig syscall.Signal)
	// Note replaces the note of a process.
	Note(id string, note json.RawMessage)
	// Forget drops a process that has exited. Its id is free again.
	Forget(id string)
	// PID is the parent of the processes.
	PID() int
	// Gone is closed when the keeper cannot be used any more; nil: that cannot happen.
	Gone() <-chan struct{}
	// Close ends the use of the keeper. A Local kills what still runs.
	Close() error
}

// Command is what to start. It is pure data.
type Command struct {
	// ID names the process; it is unique among those that are held.
	ID   string   `json:"id"`
	Path string   `json:"path"` // of the program, absolute or from Dir
	Args []string `json:"args"` // Args[0] is the program's name
	Dir  string   `json:"dir,omitempty"`
	Env  []string `json:"env"`
	CPUs []int    `json:"cpus,omitempty"` // that it may run on; empty: the keeper's
	// Greeting is written to the link before the process is started.
	Greeting []byte          `json:"greeting,omitempty"`
	Note     json.RawMessage `json:"note,omitempty"`
}

// Process is a process that is held.
type Process struct {
	ID      string
	PID     int
	Started time.Time
	Note    json.RawMessage
	// Link is the parent's end of a SOCK_SEQPACKET pair; the process inherits the other
	// as descriptor 3.
	Link, Stdout, Stderr *os.File
	// Exit gives how the process exited, once. Exited: it had when the handle was made,
	// and its process id may be another's.
	Exit   <-chan Exit
	Exited bool
}

// closeFiles gives the files back.
func (p *Process) closeFiles() {
	p.Link.Close()
	p.Stdout.Close()
	p.Stderr.Close()
}

// Exit is how a process exited, as wait(2) has it.
type Exit struct {
	Code   int            `json:"code"`   // exit status, or -1 after a signal
	Signal syscall.Signal `json:"signal"` // that ended it, or 0
	// Ours: the signal was sent by Signal while the process ran.
	Ours bool `json:"ours"`
}

// ErrClosed is returned by a keeper that was closed, or whose process has ended.
var ErrClosed = errors.New("keeper is closed")
