package orchestrator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// key names a process for ever.
type key struct {
	name       string
	instance   int
	generation uint32
}

// place is where one process follows another: an instance of an inference function.
type place struct {
	name     string
	instance int
}

func (k key) place() place { return place{k.name, k.instance} }

func (k key) String() string { return fmt.Sprintf("%s/%d#%d", k.name, k.instance, k.generation) }

func keyOf(p control.DesiredProcess) key { return key{p.IF, p.Instance, p.Generation} }

// spec is all that a process is started from.
type spec struct {
	key     key
	command []string
	dir     string // empty: the orchestrator's
	// environment is added to the orchestrator's own.
	environment map[string]string
	start       control.Start
	// note is what another orchestrator will need to go on with the process.
	note json.RawMessage
	// confined is what the process may do; nil lets it do all that the orchestrator may.
	confined *sandbox.Spec
}

// spawner makes processes. It is called from one goroutine.
type spawner interface {
	// spawn starts a process and gives it its Start. An error says why it could
	// not be started; nothing of it is left then.
	spawn(spec) (process, error)
	// held lists the processes that another orchestrator started, once. Each is then
	// resumed or dropped.
	held() []heldProcess
	// resume goes on with a process.
	resume(h heldProcess, k key, memory memoryGroup) (process, error)
	// drop ends a process with SIGTERM and, after patience, SIGKILL, and waits for its
	// end. Any goroutine may call it.
	drop(h heldProcess, patience time.Duration)
}

// process is one that was started. Its methods may be called from any goroutine.
type process interface {
	pid() int
	// order never waits longer than control's write timeout.
	order(control.Order) error
	// signal reaches the process and what it started itself; after the end it
	// reaches nobody.
	signal(syscall.Signal)
	// events gives what the process says, then its end, and is closed. They have to
	// be read.
	events() <-chan event
	// note replaces spec.note.
	note(json.RawMessage)
	// forget is called after the end, when the manager has been told of it.
	forget()
	memoryGroup() memoryGroup
}

// event is one thing that a process did: exactly one of the fields is set.
type event struct {
	notice *control.Notice
	broken error // it said what is no notice; nothing but its end follows
	exit   *exit
}

// exit is how a process ended.
type exit struct {
	code   int            // exit status, or -1 after a signal
	signal syscall.Signal // that ended it, or 0
	ours   bool           // the orchestrator sent that signal while the process ran
	oom    string         // set if the kernel's OOM killer sent it: where the kernel says so
	tail   []string       // its last lines on standard error
}

// clean reports whether it ended by itself and content.
func (e exit) clean() bool { return e.signal == 0 && e.code == 0 }

// String is one line: how it ended and what it last said.
func (e exit) String() string {
	s := fmt.Sprintf("exit status %d", e.code)
	switch {
	case e.oom != "":
		s = fmt.Sprintf("out of memory: the kernel's OOM killer sent signal %d (%s)", int(e.signal), e.oom)
	case e.signal == syscall.SIGKILL && !e.ours:
		s = "killed by signal 9 (not by Penstock)"
	case e.signal != 0:
		s = fmt.Sprintf("ended by signal %d (%v)", int(e.signal), e.signal)
	}
	return e.after(s)
}

// after is what it last said, after how it ended.
func (e exit) after(s string) string {
	if len(e.tail) > 0 {
		s += ": " + strings.Join(e.tail, " | ")
	}
	return s
}

func compareKeys(a, b key) int {
	return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.instance, b.instance), cmp.Compare(a.generation, b.generation))
}
