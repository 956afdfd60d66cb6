package control

// The attach link connects a process of an inference function to the manager. It is a Unix socket that
// preserves message boundaries (SOCK_SEQPACKET) and carries file descriptors. A message therefore
// arrives as a whole or not at all:
//
//	process                              manager
//	1 DialAttach: Attach ──────────────> ListenAttach: version, user and pid checked
//	2                     <───────────── Grant: Attached, and the descriptors;
//	                                     or Refuse: the reason, and the end
//	3 Report ──────────────────────────> ReadReport
//	4 Gone is closed      <───────────── the manager closes its end, or dies
//	  closes its end, or dies ─────────> io.EOF from ReadReport
//
// In step 4 the kernel reports the end to the other side, so each side sees the other's death at
// once.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/internal/unixsock"
)

// Max lengths of messages on the attach link. Attached needs the most, because its card can have
// thousands of labels.
const (
	maxAttachBytes   = 4 << 10 // of an Attach or a Report
	maxAttachedBytes = 128 << 10
)

// AttachListener is the socket where the manager gives processes their shared memory.
type AttachListener struct {
	listener *Listener
	uid      int // user whose processes may attach
	log      zerolog.Logger
	arrived  chan arrival

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	background sync.WaitGroup
	rejected   atomic.Uint64
}

type arrival struct {
	conn   *AttachConn
	attach Attach
}

// ListenAttach opens the manager's attach socket at path (see AttachSocketPath), for processes of the
// user uid and of root. Unless the manager runs as root, uid must be its own user. ListenAttach returns
// ErrInUse if another process listens there. The listener logs each failed handshake; see Rejected.
func ListenAttach(path string, uid int, log zerolog.Logger) (*AttachListener, error) {
	l, err := openListenerFor("unixpacket", path, uid)
	if err != nil {
		return nil, fmt.Errorf("open attach socket: %w", err)
	}
	a := &AttachListener{listener: l, uid: uid, log: log, arrived: make(chan arrival)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.background.Go(a.listen)
	return a, nil
}

// Accept returns the next process that has sent a valid Attach. The listener has checked its version,
// and that the kernel reports the same process id and a permitted user. The caller owns the connection.
// It calls Grant if it expects the process, and Refuse otherwise. After Close, Accept returns
// net.ErrClosed.
func (a *AttachListener) Accept() (*AttachConn, Attach, error) {
	select {
	case in := <-a.arrived:
		return in.conn, in.attach, nil
	case <-a.ctx.Done():
		return nil, Attach{}, net.ErrClosed
	}
}

// Restore makes the attach socket's file again; see Listener.Restore.
func (a *AttachListener) Restore() (restored bool, err error) { return a.listener.Restore() }

// Rejected counts the connections that Accept never returned.
func (a *AttachListener) Rejected() uint64 { return a.rejected.Load() }

// Close stops listening, removes the socket file, and waits for the goroutines. Accepted connections
// stay open.
func (a *AttachListener) Close() error {
	a.cancel()
	err := a.listener.Close()
	a.background.Wait()
	return err
}

// listen accepts connections, and closes those beyond maxHandshakes.
func (a *AttachListener) listen() {
	unixsock.Serve(a.ctx, a.listener, maxHandshakes, func(err error) { a.log.Error().Err(err).Msg("cannot accept process") }, a.handshake)
}

// maxHandshakes is the max number of connections in their handshake at once. Peers that send nothing cannot use up
// goroutines and descriptors.
const maxHandshakes = 1024

func (a *AttachListener) handshake(c *net.UnixConn) {
	conn := &AttachConn{unixsock.NewLink(c, unixsock.Limits{SendBytes: maxAttachedBytes, ReceiveBytes: maxAttachBytes})}
	attach, err := conn.readAttach(a.uid)
	if err == nil {
		select {
		case a.arrived <- arrival{conn, attach}:
			return
		case <-a.ctx.Done():
		}
	} else if !errors.Is(err, net.ErrClosed) {
		a.log.Warn().Err(err).Msg("process did not attach")
		conn.send(Attached{Version: Version, Refused: err.Error()}, nil) // best effort
	}
	a.rejected.Add(1)
	c.Close()
}

// AttachConn is the manager's end of the link to one process.
type AttachConn struct{ link *unixsock.Link }

func (c *AttachConn) readAttach(uid int) (Attach, error) {
	var a Attach
	cred, err := unixsock.Peer(c.link.UnixConn, uid)
	if err != nil {
		return a, err
	}
	var message []byte
	err = runclock.Within(handshakeTimeout, c.link.SetReadDeadline, func() (err error) {
		message, _, err = c.link.Receive()
		return err
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return a, fmt.Errorf("read attach: %w: process %d sent nothing for %v", ErrPeerTimeout, cred.Pid, handshakeTimeout)
	}
	if err != nil {
		return a, fmt.Errorf("read attach: %w", err)
	}
	if err := peekVersion("process", message); err != nil {
		return a, err
	}
	if err := decodeStrict(message, &a); err != nil {
		return a, fmt.Errorf("read attach: %w", err)
	}
	if err := (identity{a.IF, a.Instance, a.Generation}).check(); err != nil {
		return a, fmt.Errorf("read attach: %w", err)
	}
	if a.PID != int(cred.Pid) {
		return a, fmt.Errorf("read attach: %w: %s reports process id %d, but is process %d", ErrBadMessage, a.IF, a.PID, cred.Pid)
	}
	if err := c.link.SetReadDeadline(time.Time{}); err != nil {
		return a, fmt.Errorf("read attach: %w", err)
	}
	return a, nil
}

// Grant answers with the memory that the process may map. The caller still owns the files; the process
// gets its own descriptors of them.
func (c *AttachConn) Grant(a Attached, files []*os.File) error {
	a.Version, a.Refused = Version, ""
	if err := c.send(a, files); err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	return nil
}

// Refuse answers with the reason, and closes the connection.
func (c *AttachConn) Refuse(reason string) error {
	if reason == "" {
		reason = "no reason given"
	}
	err := c.send(Attached{Version: Version, Refused: reason}, nil)
	if err != nil {
		err = fmt.Errorf("refuse: %w", err)
	}
	return errors.Join(err, c.Close())
}

func (c *AttachConn) send(a Attached, files []*os.File) error {
	return runclock.Within(writeTimeout, c.link.SetWriteDeadline, func() error { return c.link.Send(a, files...) })
}

// ReadReport waits for the process's next report. Only one goroutine may call it. It returns io.EOF
// when the process has ended or closed its end, and ErrBadMessage for an invalid message. The caller
// then closes the connection.
func (c *AttachConn) ReadReport() (Report, error) {
	var r Report
	message, _, err := c.link.Receive()
	if err == io.EOF {
		return r, err
	}
	if err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}
	if err := decodeStrict(message, &r); err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}
	switch r.Fit {
	case FitUnknown, FitUnder, fitOver:
	default:
		return r, fmt.Errorf("read report: %w: fit %q", ErrBadMessage, r.Fit)
	}
	return r, nil
}

// Close closes the connection. The process then sees Gone, and ends.
func (c *AttachConn) Close() error { return c.link.Close() }

// Attachment is the process's end of the attach link.
type Attachment struct {
	link *unixsock.Link
	gone chan struct{}
}

// DialAttach connects to the manager's attach socket at path and sends a. It sets the version and the
// process id. It returns the manager's answer, the files that come with it, and the link. The caller
// closes the files and the link. Children do not inherit the files. The error is ErrRefused, with the
// manager's reason, if the manager refuses, and ErrPeerTimeout if it does not answer.
func DialAttach(path string, a Attach) (Attached, []*os.File, *Attachment, error) {
	fail := func(err error) (Attached, []*os.File, *Attachment, error) {
		return Attached{}, nil, nil, fmt.Errorf("attach to %s: %w", path, err)
	}
	if err := checkSocketPath(path); err != nil {
		return fail(err)
	}
	a.Version, a.PID = Version, os.Getpid()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		return fail(err)
	}
	link := unixsock.NewLink(c, unixsock.Limits{SendBytes: maxAttachBytes, ReceiveBytes: maxAttachedBytes, Files: unixsock.MaxFiles})
	granted, files, err := handshakeAttach(link, a)
	if err != nil {
		c.Close()
		return fail(err)
	}
	t := &Attachment{link: link, gone: make(chan struct{})}
	go t.watch()
	return granted, files, t, nil
}

// answerTimeout is the max time for sending Attach and receiving the manager's answer. Before it
// answers, the manager may have to allocate many megabytes for tensors.
const answerTimeout = 10 * time.Second

func handshakeAttach(c *unixsock.Link, attach Attach) (granted Attached, files []*os.File, err error) {
	end := runclock.Now() + answerTimeout
	err = runclock.Until(end, c.SetWriteDeadline, func() error { return c.Send(attach) })
	if err != nil {
		return granted, nil, err
	}

	var message []byte
	err = runclock.Until(end, c.SetReadDeadline, func() (err error) {
		message, files, err = c.Receive()
		return err
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return granted, nil, fmt.Errorf("%w: no answer within %v", ErrPeerTimeout, answerTimeout)
	}
	if err != nil {
		return granted, nil, fmt.Errorf("read answer: %w", err)
	}
	defer func() {
		if err != nil {
			unixsock.CloseAll(files)
			files = nil
		}
	}()
	if err := peekVersion("manager", message); err != nil {
		return granted, files, err
	}
	if err := decodeStrict(message, &granted); err != nil {
		return granted, files, fmt.Errorf("read answer: %w", err)
	}
	if granted.Refused != "" {
		return granted, files, fmt.Errorf("%w: %s", ErrRefused, granted.Refused)
	}
	return granted, files, c.SetDeadline(time.Time{})
}

// Report sends r to the manager. It never waits: if the socket is full because the manager does not
// read, it drops the report and returns ErrBehind. Any goroutine may call it.
func (t *Attachment) Report(r Report) error {
	b, err := t.link.Encode(r)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	raw, err := t.link.SyscallConn()
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var sent error
	if err := raw.Write(func(fd uintptr) bool {
		sent = unix.Send(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true // never wait until the socket is writable
	}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if errors.Is(sent, syscall.EAGAIN) {
		return fmt.Errorf("report: %w", ErrBehind)
	}
	if sent != nil {
		return fmt.Errorf("report: %w", sent)
	}
	return nil
}

// Gone is closed when the manager has gone, or after Close. The process must then end.
func (t *Attachment) Gone() <-chan struct{} { return t.gone }

// Close closes the link, and waits until Gone is closed.
func (t *Attachment) Close() error {
	err := t.link.Close()
	<-t.gone
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// watch waits for the end of the link. The manager sends nothing after its answer.
func (t *Attachment) watch() {
	defer close(t.gone)
	for {
		_, files, err := t.link.Receive()
		unixsock.CloseAll(files)
		if err != nil && !errors.Is(err, ErrTooLong) && !errors.Is(err, unixsock.ErrFilesLost) {
			return
		}
	}
}
