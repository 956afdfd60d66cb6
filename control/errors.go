package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/internal/unixsock"
)

// Sentinels. Every error that a peer can cause wraps one of them, or is a *VersionError.
var (
	// ErrBadMessage is returned if a peer sends something that is no message of this
	// Version. Examples are invalid JSON, an unknown field, a field of the wrong type, or
	// a value out of its range.
	ErrBadMessage = zmtp.ErrBadMessage
	// ErrTooLong is returned if a message is longer than its link allows.
	ErrTooLong = unixsock.ErrTooLong
	// ErrInUse is returned if another process already uses the socket or lock.
	ErrInUse = unixsock.ErrInUse
	// ErrPeerTimeout is returned if a peer sent nothing before its deadline.
	ErrPeerTimeout = zmtp.ErrPeerTimeout
	// ErrHungUp is returned if a peer has closed its end, or has exited. The exit status
	// comes from wait(2), not from the link.
	ErrHungUp = errors.New("peer closed the connection")
	// ErrRefused is returned if the manager does not let a process attach. The wrapping
	// error has the reason.
	ErrRefused = errors.New("refused by the manager")
	// ErrBehind is returned by Report if the manager has not read earlier reports. The
	// report is dropped; data that must not be lost has to be repeated in the next one.
	ErrBehind = errors.New("manager has not read earlier reports")
	// ErrNotStarted is returned if a program that links libml was not started by an
	// orchestrator.
	ErrNotStarted = errors.New("not started by an orchestrator")
)

// VersionError is returned if a peer uses another version of this package's messages.
type VersionError struct {
	Peer   string // "manager", "orchestrator", "child", "process"
	Theirs int
	Ours   int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has control version %d, this program has %d; run one version of Penstock", e.Peer, e.Theirs, e.Ours)
}

// checkVersion returns a *VersionError unless theirs is Version.
func checkVersion(peer string, theirs int) error {
	if theirs != Version {
		return &VersionError{Peer: peer, Theirs: theirs, Ours: Version}
	}
	return nil
}

// peekVersion reads the version of a message before it decodes anything else. A message of
// another version may have any other content.
func peekVersion(peer string, message []byte) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(message, &v); err != nil {
		return fmt.Errorf("read version of %s's message: %w: %w", peer, ErrBadMessage, err)
	}
	return checkVersion(peer, v.Version)
}

// handshakeTimeout is the max time for a peer's first message. The peer needs almost no
// time for it, but a busy machine may delay it.
const handshakeTimeout = 2 * time.Second

// writeTimeout is how long a peer may leave a socket full before it counts as hung.
const writeTimeout = time.Second

// isClosed reports whether err means that the peer has gone, and not that it misbehaves.
func isClosed(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
