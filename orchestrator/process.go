package orchestrator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// key identifies a process. Keys are never reused.
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

// id names the process in file systems.
func (k key) id() string { return fmt.Sprintf("%s-%d-%d", k.name, k.instance, k.generation) }

func keyOf(p control.DesiredProcess) key { return key{p.IF, p.Instance, p.Generation} }

// spec is everything needed to start a process.
type spec struct {
	key key
	// worker is the worker that hosts the process; empty: it is not in a worker.
	worker  string
	command []string
	dir     string // empty: the orchestrator's working directory
	// environment is added to the orchestrator's own.
	environment map[string]string
	start       control.Start
	// note is what another orchestrator needs to resume the process.
	note json.RawMessage
	// confined is what the process may do. nil lets it do all that the orchestrator may.
	confined *sandbox.Spec
	// limits hold for a confined process.
	limits cgroup.Limits
	// reads are those files and folders of confined that this process itself needs.
	reads []string
}

// spawner starts processes. Only one goroutine may call its methods, except drop.
type spawner interface {
	// spawn starts a process and sends it its Start. After an error nothing of the
	// process is left.
	spawn(spec) (process, error)
	// held lists the processes that another orchestrator started. Call it only once. The
	// caller must resume or drop each of them.
	held() []heldProcess
	// resume takes over a process.
	resume(h heldProcess, k key, c cgroup.Counters) (process, error)
	// drop ends a process with SIGTERM and, after patience, with SIGKILL. It waits for
	// the process's end. Any goroutine may call it.
	drop(h heldProcess, patience time.Duration)
}

// process is a process that was started. Any goroutine may call its methods.
type process interface {
	pid() int
	// order waits at most control's write timeout.
	order(control.Order) error
	// signal goes to the process and to the processes that it started. After the end of
	// the process it has no effect.
	signal(syscall.Signal)
	// events returns what the process reports, then its end; then it is closed. The
	// caller must read all events.
	events() <-chan event
	// note replaces spec.note.
	note(json.RawMessage)
	// forget is called after the process's end, once the manager has been informed.
	forget()
	counters() cgroup.Counters
}

// event is one thing that a process did. Exactly one field is set.
type event struct {
	notice *control.Notice
	broken error // it sent something other than a notice; only its end follows
	exit   *exit
}

// exit is how a process ended.
type exit struct {
	code   int            // exit status, or -1 after a signal
	signal syscall.Signal // the signal that ended it, or 0
	ours   bool           // the orchestrator sent that signal while the process ran
	oom    string         // the kernel's report, if its OOM killer sent the signal
	tail   []string       // its last lines on standard error
}

// clean reports whether the process exited by itself with status 0.
func (e exit) clean() bool { return e.signal == 0 && e.code == 0 }

// String is one line: how the process ended, and its last output.
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

// after appends the process's last output to s, which describes its end.
func (e exit) after(s string) string {
	if len(e.tail) > 0 {
		s += ": " + strings.Join(e.tail, " | ")
	}
	return s
}

func compareKeys(a, b key) int {
	return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(a.instance, b.instance), cmp.Compare(a.generation, b.generation))
}
