package weights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/unixsock"
	"github.com/penstock/penstock/private"
)

// Options of a weight server.
type Options struct {
	// Socket is the path of the Unix socket that processes connect to.
	Socket string
	// Loader is the command of a program that calls Load: it copies a file to the GPU.
	Loader []string
	Log    zerolog.Logger
	// Linger is how long the server keeps a file that no process uses. 0 stands for a minute:
	// processes that a fault has ended are back long before.
	Linger time.Duration
	// Report is called with the files that are held, at the start and after each change; one
	// call at a time.
	Report func(control.WeightsHeld)
}

// Bounds for peers.
const (
	maxPeers        = 4096             // connections: several per process of a node
	requestDeadline = 2 * time.Second  // from the connection to its request
	defaultLinger   = time.Minute      //
	maxFileBytes    = int64(256) << 30 // more than a GPU has memory
	loadsAtOnce     = 2                // each loader has a context of some 500 MB
)

type server struct {
	o      Options
	loader interface {
		load(context.Context, *os.File) (Loaded, *os.File, error)
	}
	loads chan struct{} // one element per running loader

	mu   sync.Mutex // guards held
	held map[Identity]*file

	reporting sync.Mutex // one call of Options.Report at a time
}

// file is a file that is held, or that a loader is loading.
type file struct {
	ready  chan struct{} // closed when the load has ended; err, loaded and memory are set then
	err    error         // of the load; the file is then no longer in held
	loaded Loaded
	memory *os.File
	users  int       // connections that have it, or wait for it
	since  time.Time // when users became 0
}

// Serve serves weights until ctx ends. It returns an error only if it cannot listen: no
// message of a peer ends it. Processes keep the memory that they have mapped.
func Serve(ctx context.Context, o Options) error {
	if o.Linger <= 0 {
		o.Linger = defaultLinger
	}
	if o.Report == nil {
		o.Report = func(control.WeightsHeld) {}
	}
	s := &server{o: o, loader: loader{o.Loader}}
	return s.run(ctx)
}

func (s *server) run(ctx context.Context) error {
	s.loads = make(chan struct{}, loadsAtOnce)
	s.held = make(map[Identity]*file)
	l, err := listen(s.o.Socket)
	if err != nil {
		return fmt.Errorf("serve weights: %w", err)
	}
	var sweeps sync.WaitGroup
	sweeps.Go(func() { s.sweep(ctx) })
	s.report()

	failed := func(err error) { s.o.Log.Error().Err(err).Msg("cannot accept a process that requests weights") }
	unixsock.Serve(ctx, l, maxPeers, failed, func(c *net.UnixConn) {
		defer c.Close()
		if err := s.serve(ctx, c); err != nil && ctx.Err() == nil {
			s.o.Log.Warn().Err(err).Msg("cannot give weights to a process")
		}
	})
	sweeps.Wait()
	for id, f := range s.held {
		f.memory.Close()
		delete(s.held, id)
	}
	return nil
}

// listen binds the socket. Only this user may connect to it. listen removes the socket of
// an earlier server: the orchestrator starts one at a time.
func listen(path string) (*net.UnixListener, error) {
	if path == "" { // the kernel would choose a path
		return nil, errors.New("want a socket")
	}
	folder, err := private.MakeFolder(filepath.Dir(path), 0o700)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return unixsock.Listen("unixpacket", path, 0o600)
}

// serve answers one process, and returns when the process hangs up.
func (s *server) serve(ctx context.Context, conn *net.UnixConn) error {
	c := newLink(conn)
	source, err := s.receiveRequest(c)
	if errors.Is(err, io.EOF) {
		return nil // it only checked whether the server listens
	}
	var id Identity
	if err == nil {
		id, err = Identify(source)
	}
	if err == nil && id.Bytes > maxFileBytes {
		err = fmt.Errorf("the file has %d bytes, want at most %d", id.Bytes, maxFileBytes)
	}
	var f *file
	if err == nil {
		f, err = s.get(ctx, id, source)
	}
	if source != nil {
		source.Close()
	}
	if err != nil {
		_ = c.send(response{Version: version, Refused: line(err)}) // the process may have ended
		return err
	}
	defer s.put(f)
	if err := c.send(response{Version: version, Loaded: f.loaded}, f.memory); err != nil {
		return fmt.Errorf("pass on weights: %w", err)
	}

	// The process uses the memory until it closes the connection. It has to send nothing
	// more.
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	n, _, _, _, err := c.ReadMsgUnix(make([]byte, 1), nil)
	if err == nil && n > 0 {
		return fmt.Errorf("%w: a process sends more than its request", errBadMessage)
	}
	return nil
}

// receiveRequest reads the request and its file. It reads the request before it checks the peer:
// if a socket is closed with an unread message, the peer does not receive the reason.
func (s *server) receiveRequest(c link) (*os.File, error) {
	if err := c.SetReadDeadline(time.Now().Add(requestDeadline)); err != nil {
		return nil, err
	}
	var a request
	source, err := c.receive(&a)
	if err != nil {
		return nil, err
	}
	_, err = unixsock.Peer(c.UnixConn, os.Getuid()) // root may: it can open the files anyway
	switch {
	case err != nil:
	case a.Version != version:
		err = fmt.Errorf("process has protocol version %d, weight server has %d", a.Version, version)
	case source == nil:
		err = fmt.Errorf("%w: the request has no file", errBadMessage)
	}
	if err != nil && source != nil {
		source.Close()
	}
	return source, err
}

// get returns a held file, and adds a user to it. The first call for a file loads it; other
// calls wait for that.
func (s *server) get(ctx context.Context, id Identity, source *os.File) (*file, error) {
	s.mu.Lock()
	f := s.held[id]
	first := f == nil
	if first {
		f = &file{ready: make(chan struct{})}
		s.held[id] = f
	}
	f.users++
	s.mu.Unlock()
	if first {
		s.fill(ctx, id, f, source)
	}
	select {
	case <-f.ready:
	case <-ctx.Done():
		s.put(f)
		return nil, ctx.Err()
	}
	if f.err != nil {
		s.put(f)
		return nil, f.err
	}
	return f, nil
}

// put removes a user from a file.
func (s *server) put(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users--
	f.since = time.Now()
}

// fill loads a file into f, and closes f.ready.
func (s *server) fill(ctx context.Context, id Identity, f *file, source *os.File) {
	began := time.Now()
	loaded, memory, err := s.load(ctx, source)
	if err == nil && loaded.Bytes != id.Bytes {
		memory.Close()
		err = fmt.Errorf("the file changed from %d to %d bytes", id.Bytes, loaded.Bytes)
	}
	s.mu.Lock()
	if f.err = err; err == nil {
		f.loaded, f.memory = loaded, memory
	} else {
		delete(s.held, id)
	}
	s.mu.Unlock()
	close(f.ready)
	if err == nil {
		s.o.Log.Info().Int64("bytes", loaded.Bytes).Dur("took", time.Since(began)).Msg("weights loaded onto the GPU")
		s.report()
	}
}

// load runs a loader. If the GPU has no memory, load frees the unused files and tries again.
func (s *server) load(ctx context.Context, source *os.File) (Loaded, *os.File, error) {
	select {
	case s.loads <- struct{}{}:
		defer func() { <-s.loads }()
	case <-ctx.Done():
		return Loaded{}, nil, ctx.Err()
	}
	loaded, memory, err := s.loader.load(ctx, source)
	if err != nil && strings.HasPrefix(err.Error(), outOfMemory) && s.free(0) > 0 {
		loaded, memory, err = s.loader.load(ctx, source)
	}
	return loaded, memory, err
}

// sweep frees files that were unused for Options.Linger.
func (s *server) sweep(ctx context.Context) {
	every := time.NewTicker(max(s.o.Linger/4, 10*time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			s.free(s.o.Linger)
		}
	}
}

// free frees the files that were unused for at least that long, and returns their number.
func (s *server) free(unused time.Duration) (n int) {
	s.mu.Lock()
	for id, f := range s.held {
		if f.memory == nil || f.users > 0 || time.Since(f.since) < unused {
			continue
		}
		f.memory.Close()
		delete(s.held, id)
		n++
		s.o.Log.Info().Int64("bytes", f.loaded.Bytes).Msg("freed unused weights")
	}
	s.mu.Unlock()
	if n > 0 {
		s.report()
	}
	return n
}

// report calls Options.Report with the files that are held now.
func (s *server) report() {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	var now control.WeightsHeld
	s.mu.Lock()
	for _, f := range s.held {
		if f.memory != nil {
			now.Files++
			now.Bytes += f.loaded.MemoryBytes
		}
	}
	s.mu.Unlock()
	s.o.Report(now)
}
