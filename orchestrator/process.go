package orchestrator

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"

	"github.com/penstock/penstock/control"
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
}

// spawner makes processes. It is called from one goroutine.
type spawner interface {
	// spawn starts a process and gives it its Start. An error says why it could
	// not be started; nothing of it is left then.
	spawn(spec) (process, error)
	// close is called when all processes have ended.
	close() error
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
	tail   []string       // its last lines on standard error
}

// clean reports whether it ended by itself and content.
func (e exit) clean() bool { return e.signal == 0 && e.code == 0 }

// String is one line: how it ended and what it last said.
func (e exit) String() string {
	s := fmt.Sprintf("exit status %d", e.code)
	if e.signal != 0 {
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
