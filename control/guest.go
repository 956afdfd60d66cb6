package control

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/unixsock"
	"github.com/penstock/penstock/private"
)

// guestSocketName is the orchestrator's socket for guests, in the runtime folder.
const guestSocketName = "guests.sock"

// maxGuestMessage bounds a message of either side. A list of guests is the longest.
const maxGuestMessage = 128 << 10

// MaxGuestCommand is the max length of GuestRun.Command, in bytes. JSON takes up to six for one: a list of all guests
// fits a message.
const MaxGuestCommand = 256

// GuestVariable is the environment variable that marks all processes of a guest. Its value is
// GuestPlace.Token.
const GuestVariable = "PENSTOCK_GUEST"

// busyFileName is the file of the busy word, in the runtime folder.
const busyFileName = "gpu-busy"

// MakeBusyFile opens the file of the busy word for shm.OpenBusyFile, and makes it if it is missing.
func MakeBusyFile(dir string) (*os.File, error) {
	folder, err := private.OpenFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("make busy file: %w", err)
	}
	defer folder.Close()
	f, err := folder.Open(busyFileName, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("make busy file: %w", err)
	}
	return f, nil
}

// FindBusyFile returns the path of the busy word's file, which guests read. The manager makes the file when the
// node runs on a GPU.
func FindBusyFile(dir string) (path string, err error) {
	if path, err = filepath.Abs(filepath.Join(dir, busyFileName)); err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("find busy file: %w; start the guest again, or else restart the node", err)
	}
	return path, nil
}

// GuestOrder is a message to the orchestrator: one JSON object per packet, with one of its fields
// set. `penstock run` sends Run, Started and Ending, and its open connection is the guest's life.
// `penstock guest` sends one of the others.
type GuestOrder struct {
	Run     *GuestRun `json:"run,omitempty"`
	Started int       `json:"started,omitempty"` // process id of the launcher, which waits
	// Ending says that `penstock run` is about to send the program a signal that ends it. Done answers it.
	Ending bool `json:"ending,omitempty"`

	List   bool   `json:"list,omitempty"`
	Pause  string `json:"pause,omitempty"` // a guest's name or process id
	Resume string `json:"resume,omitempty"`
	Stop   string `json:"stop,omitempty"`
}

// GuestRun asks for a place.
type GuestRun struct {
	Name    string `json:"name"`
	Command string `json:"command"` // for people; at most MaxGuestCommand bytes
	// Key is the same for the same command with the same arguments.
	Key         string `json:"key"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // 0: no limit
	Own         bool   `json:"own,omitempty"`          // outside MPS
	// Device is the name of the device, one of Desired.Devices, or a GPU's UUID. Empty: the node chooses.
	Device string `json:"device,omitempty"`
	// Swap lets the guest's GPU memory leave the GPU while other guests with Swap run.
	Swap bool `json:"swap,omitempty"`
	// User is the user that the program is to run as. Only root may name another than itself. nil: the node chooses.
	User *GuestUser `json:"user,omitempty"`
}

// GuestAnswer is the orchestrator's answer, with one of its fields set.
type GuestAnswer struct {
	Error string `json:"error,omitempty"`
	// Place answers Run, and Go answers Started: the program may begin.
	Place *GuestPlace `json:"place,omitempty"`
	Go    *GuestGo    `json:"go,omitempty"`
	// Ended is why the orchestrator ends the guest. It may come at any time.
	Ended string `json:"ended,omitempty"`

	Guests []GuestStatus `json:"guests,omitempty"`
	Done   string        `json:"done,omitempty"`
}

// GuestPlace says how to start the program.
type GuestPlace struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	// Environment replaces the variables of CUDA and MPS. It is empty on a CPU.
	Environment map[string]string `json:"environment,omitempty"`
	// User is the user that the program has to run as; nil: the caller's.
	User *GuestUser `json:"user,omitempty"`
	// CPUs are those that the program may run on; empty: the caller's.
	CPUs []int `json:"cpus,omitempty"`
}

// GuestUser is a user with its groups.
type GuestUser struct {
	Name   string `json:"name"`
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Groups []int  `json:"groups,omitempty"`
}

// GuestGo lets the program begin.
type GuestGo struct {
	// Missing has a line for each protection that this machine cannot give.
	Missing []string `json:"missing,omitempty"`
}

// States of a guest.
const (
	GuestStarting = "starting"
	GuestRunning  = "running"
	GuestPaused   = "paused"
	GuestStopping = "stopping"
)

// GuestStatus describes a guest.
type GuestStatus struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"` // 0 while it is starting
	State   string `json:"state"`
	Command string `json:"command"`
	// Device is cpu, mps or own. On is the name of the device if the node has several.
	Device string `json:"device"`
	On     string `json:"on,omitempty"`
	// MemoryBytes is GPU memory on a GPU, and resident memory on a CPU; -1 if unknown.
	MemoryBytes int64 `json:"memory_bytes"`
	LimitBytes  int64 `json:"limit_bytes,omitempty"`
	// NotEnforced names what the guest can evade: "end", that all its processes end with it, and "memory", its limit.
	NotEnforced []string  `json:"not_enforced,omitempty"`
	CPUMillis   int64     `json:"cpu_ms"`
	Since       time.Time `json:"since"`
}

// ListenGuests opens the socket for guests of the orchestrator whose runtime folder is dir. It
// returns ErrInUse if another process listens there.
func ListenGuests(dir string) (*Listener, error) {
	l, err := openListener("unixpacket", filepath.Join(dir, guestSocketName))
	if err != nil {
		return nil, fmt.Errorf("open socket for guests: %w", err)
	}
	return l, nil
}

// DialGuests connects to the orchestrator whose runtime folder is dir.
func DialGuests(dir string) (*GuestLink, error) {
	folder, err := private.OpenFolder(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("connect to node: there is no node in %s; start one with `penstock up`", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	defer folder.Close()
	path := filepath.Join(folder.Path(), guestSocketName)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: path})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("connect to node: no node runs in %s; start one with `penstock up`", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	return NewGuestLink(c), nil
}

// GuestLink is either end of a connection. One goroutine may send while another receives.
type GuestLink struct{ *unixsock.Link }

// NewGuestLink takes ownership of c.
func NewGuestLink(c *net.UnixConn) *GuestLink {
	return &GuestLink{unixsock.NewLink(c, unixsock.Limits{SendBytes: maxGuestMessage, ReceiveBytes: maxGuestMessage})}
}

// Send sends a GuestOrder or a GuestAnswer.
func (l *GuestLink) Send(message any) error {
	if err := l.Link.Send(message); err != nil {
		return fmt.Errorf("send to peer: %w", err)
	}
	return nil
}

// Receive waits for a GuestOrder or a GuestAnswer. It returns io.EOF when the peer has closed its
// end, and ErrTooLong or ErrBadMessage for what is no message.
func (l *GuestLink) Receive(message any) error {
	text, _, err := l.Link.Receive()
	if err == io.EOF {
		return err
	}
	if err != nil {
		return fmt.Errorf("receive from peer: %w", err)
	}
	return decodeStrict(text, message)
}
