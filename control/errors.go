package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/unixsock"
)

// Sentinels; every error that a peer can cause wraps one of them, or is a
// *VersionError.
var (
	// ErrBadMessage is returned when a peer says what no message of Version is:
	// not JSON, a field that is unknown or of the wrong type, a value out of its range.
	ErrBadMessage = errors.New("bad message")
	// ErrTooLong is returned when a message is longer than its link allows.
	ErrTooLong = unixsock.ErrTooLong
	// ErrInUse is returned when another process listens where we would.
	ErrInUse = errors.New("socket in use")
	// ErrSilent is returned when a peer said nothing until its deadline.
	ErrSilent = errors.New("peer is silent")
	// ErrHungUp is returned when a peer has closed its end, or has exited. The exit
	// status comes from wait(2), not from the link.
	ErrHungUp = errors.New("peer closed its end")
	// ErrRefused is returned when the manager does not let a process attach; the
	// text around it says why.
	ErrRefused = errors.New("refused by the manager")
	// ErrBehind is returned by Report when the manager has not read earlier
	// reports; this one is dropped, and what must not get lost in it belongs into
	// the next.
	ErrBehind = errors.New("manager is behind")
	// ErrNotStarted is returned when a program that links libml was not started by
	// an orchestrator.
	ErrNotStarted = errors.New("not started by an orchestrator")
)

// VersionError is returned when a peer speaks another version of this package's messages.
type VersionError struct {
	Peer   string // "manager", "orchestrator", "child", "process"
	Theirs int
	Ours   int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s speaks control version %d, this program speaks %d", e.Peer, e.Theirs, e.Ours)
}

// checkVersion gives a *VersionError unless theirs is Version.
func checkVersion(peer string, theirs int) error {
	if theirs != Version {
		return &VersionError{Peer: peer, Theirs: theirs, Ours: Version}
	}
	return nil
}

// peekVersion reads the version of a message before anything else of it is
// judged: a message of another version may look in any way.
func peekVersion(peer string, message []byte) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(message, &v); err != nil {
		return fmt.Errorf("read version of %s's message: %w: %w", peer, ErrBadMessage, err)
	}
	return checkVersion(peer, v.Version)
}

// handshakeTimeout is how long a peer may take for its first words. They need no
// thought on its side, so this only has to outlast a busy machine.
const handshakeTimeout = 2 * time.Second

// writeTimeout is how long a peer may leave a socket full before it counts as hung.
const writeTimeout = time.Second

// isClosed reports whether err says that the peer has gone rather than that it misbehaves.
func isClosed(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
