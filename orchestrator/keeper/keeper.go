// Package keeper is the parent of a node's processes. It outlives the orchestrator, and so do
// the processes:
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
// For each process the keeper holds what an orchestrator needs to resume it. These are the
// orchestrator's end of the link, the read ends of the output, the exit status, and a note
// that only orchestrators read. A process's peers see no end of file while the orchestrator
// is away.
//
// The keeper's death ends all of its processes (PDEATHSIG). An orchestrator without a node
// around it (`penstock orchestrator`) has its own Local, and its processes end with it.
package keeper

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"time"
)

// Keeper holds processes. Any goroutine may call its methods.
type Keeper interface {
	// Start starts a process. The caller owns the files of the returned Process.
	Start(Command) (*Process, error)
	// Held lists the processes that the keeper held when it was opened and that are not
	// forgotten. Call it only once. The caller owns the files.
	Held() []*Process
	// Signal sends sig to a process that has not exited, and to its process group.
	Signal(id string, sig syscall.Signal)
	// Note replaces the note of a process.
	Note(id string, note json.RawMessage)
	// Forget drops a process that has exited. Its id can then be used again.
	Forget(id string)
	// PID is the process id of the processes' parent.
	PID() int
	// Gone is closed when the keeper can no longer be used. nil: that cannot happen.
	Gone() <-chan struct{}
	// Close ends the use of the keeper. A Local kills the processes that still run.
	Close() error
}

// Command says what to start. It is pure data.
type Command struct {
	// ID identifies the process. It is unique among the held processes.
	ID   string   `json:"id"`
	Path string   `json:"path"` // the program, absolute or relative to Dir
	Args []string `json:"args"` // Args[0] is the program's name
	Dir  string   `json:"dir,omitempty"`
	Env  []string `json:"env"`
	CPUs []int    `json:"cpus,omitempty"` // CPUs that it may run on; empty: the keeper's
	// Greeting is written to the link before the process starts.
	Greeting []byte          `json:"greeting,omitempty"`
	Note     json.RawMessage `json:"note,omitempty"`
}

// Process is a process that a keeper holds.
type Process struct {
	ID      string
	PID     int
	Started time.Time
	Note    json.RawMessage
	// Link is the parent's end of a SOCK_SEQPACKET pair. The process inherits the other end
	// as descriptor 3.
	Link, Stdout, Stderr *os.File
	// Exit receives once, when the process has exited and no process of its group runs. Exited: the process had exited before
	// the handle was made, and another process may have its process id now.
	Exit   <-chan Exit
	Exited bool
}

func (p *Process) closeFiles() {
	p.Link.Close()
	p.Stdout.Close()
	p.Stderr.Close()
}

// Stop ends a process with SIGTERM and, after patience, with SIGKILL. It returns how the process has ended.
func Stop(k Keeper, p *Process, patience time.Duration) Exit {
	if patience > 0 {
		k.Signal(p.ID, syscall.SIGTERM)
	}
	late := time.AfterFunc(patience, func() { k.Signal(p.ID, syscall.SIGKILL) })
	defer late.Stop()
	return <-p.Exit
}

// Drop stops a process that is not watched, and forgets it.
func Drop(k Keeper, p *Process, patience time.Duration) {
	p.closeFiles()
	Stop(k, p, patience)
	k.Forget(p.ID)
}

// Exit is how a process exited, as wait(2) reports it.
type Exit struct {
	Code   int            `json:"code"`   // exit status, or -1 after a signal
	Signal syscall.Signal `json:"signal"` // the signal that ended it, or 0
	// Ours: Signal sent that signal while the process ran.
	Ours bool `json:"ours"`
}

// ErrClosed is returned by a keeper that was closed, or whose process has ended.
var ErrClosed = errors.New("keeper is closed")
