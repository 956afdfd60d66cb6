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

// Options of a holder.
type Options struct {
	// Socket is where it is asked.
	Socket string
	// Loader is the command that puts a file on the GPU: a program that calls Load.
	Loader []string
	Log    zerolog.Logger
	// Linger is how long a file is kept that nobody has mapped; a minute where it is 0. A
	// function whose processes a fault has ended is back long before.
	Linger time.Duration
	// Tell is called with what is held, at first and when that changes; one call at a time.
	Tell func(control.WeightsHeld)
}

// Bounds of what peers can make a holder do.
const (
	maxPeers      = 4096             // connections: several for each process of a node
	askDeadline   = 2 * time.Second  // a peer says what it wants at once
	defaultLinger = time.Minute      //
	maxFileBytes  = int64(256) << 30 // more than a GPU has memory
	loadsAtOnce   = 2                // each loader has a context, some 500 MB
)

type holder struct {
	o      Options
	loader interface {
		load(context.Context, *os.File) (Loaded, *os.File, error)
	}
	loads chan struct{} // room for a loader

	mu    sync.Mutex
	held  map[identity]*file
	peers map[*net.UnixConn]struct{}
	tell  sync.Mutex
}

// file is one that is held, or is about to be.
type file struct {
	ready  chan struct{} // closed when it is loaded, or was not: what follows is set then
	err    error         // why it was not; it is not in held any more
	loaded Loaded
	memory *os.File
	users  int       // connections that have it, or wait for it
	since  time.Time // when users became 0
}

// Hold listens until ctx ends. Nothing that a peer sends makes it end; the error is that
// it cannot listen. What processes have mapped they keep.
func Hold(ctx context.Context, o Options) error {
	if o.Linger <= 0 {
		o.Linger = defaultLinger
	}
	if o.Tell == nil {
		o.Tell = func(control.WeightsHeld) {}
	}
	h := &holder{o: o, loader: loader{o.Loader}}
	return h.run(ctx)
}

func (h *holder) run(ctx context.Context) error {
	h.loads = make(chan struct{}, loadsAtOnce)
	h.held, h.peers = make(map[identity]*file), make(map[*net.UnixConn]struct{})
	l, err := listen(h.o.Socket)
	if err != nil {
		return fmt.Errorf("hold weights: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer func() {
		cancel()
		l.Close()
		h.mu.Lock()
		for c := range h.peers {
			c.Close()
		}
		h.mu.Unlock()
		background.Wait()
		for id, f := range h.held {
			f.memory.Close()
			delete(h.held, id)
		}
	}()
	background.Go(func() {
		<-ctx.Done()
		l.Close()
	})
	background.Go(func() { h.sweep(ctx) })
	h.report()
	for {
		c, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if err != nil {
			h.o.Log.Error().Err(err).Msg("accept a process that asks for weights")
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		if !h.add(c) {
			c.Close()
			continue
		}
		background.Go(func() {
			defer h.remove(c)
			if err := h.serve(ctx, c); err != nil && ctx.Err() == nil {
				h.o.Log.Warn().Err(err).Msg("no weights for a process")
			}
		})
	}
}

// listen binds the socket, which only this user may connect to. What a holder before
// left behind is removed: the orchestrator starts one at a time.
func listen(path string) (*net.UnixListener, error) {
	if path == "" { // the kernel would make one up
		return nil, errors.New("no socket is named")
	}
	folder, err := private.MakeFolder(filepath.Dir(path), 0o700)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (h *holder) add(c *net.UnixConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.peers) >= maxPeers {
		return false
	}
	h.peers[c] = struct{}{}
	return true
}

func (h *holder) remove(c *net.UnixConn) {
	c.Close()
	h.mu.Lock()
	delete(h.peers, c)
	h.mu.Unlock()
}

// serve looks after one process until it hangs up.
func (h *holder) serve(ctx context.Context, c *net.UnixConn) error {
	source, err := h.asked(c)
	if errors.Is(err, io.EOF) {
		return nil // it only looked whether somebody listens
	}
	var id identity
	if err == nil {
		id, err = identify(source)
	}
	if err == nil && id.bytes > maxFileBytes {
		err = fmt.Errorf("the file has %d bytes, at most %d are held", id.bytes, maxFileBytes)
	}
	var f *file
	if err == nil {
		f, err = h.get(ctx, id, source)
	}
	if source != nil {
		source.Close()
	}
	if err != nil {
		_ = send(c, answer{Version: version, Refused: line(err)}, nil) // it may be gone
		return err
	}
	defer h.put(f)
	if err := send(c, answer{Version: version, Loaded: f.loaded}, f.memory); err != nil {
		return fmt.Errorf("hand weights over: %w", err)
	}
	// It says nothing more; it ends, and that is the end of its use. One that talks is
	// hung up on.
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	n, _, _, _, err := c.ReadMsgUnix(make([]byte, 1), nil)
	if err == nil && n > 0 {
		return fmt.Errorf("%w: a process talks after its question", errBadMessage)
	}
	return nil
}

// asked reads the question and the file that it is about. It reads it whoever asks: where a
// socket is closed over a question that nobody read, its peer is not told why.
func (h *holder) asked(c *net.UnixConn) (*os.File, error) {
	if err := c.SetReadDeadline(time.Now().Add(askDeadline)); err != nil {
		return nil, err
	}
	var a ask
	source, err := receive(c, &a)
	if err != nil {
		return nil, err
	}
	_, err = unixsock.Peer(c, os.Getuid()) // root may ask: it could open the files anyway
	switch {
	case err != nil:
	case a.Version != version:
		err = fmt.Errorf("it speaks version %d, this holder %d", a.Version, version)
	case source == nil:
		err = fmt.Errorf("%w: no file came with the question", errBadMessage)
	}
	if err != nil && source != nil {
		source.Close()
	}
	return source, err
}

// get returns a file that is held, and counts one user more. Who asks first has it
// loaded; others wait for that.
func (h *holder) get(ctx context.Context, id identity, source *os.File) (*file, error) {
	h.mu.Lock()
	f := h.held[id]
	first := f == nil
	if first {
		f = &file{ready: make(chan struct{})}
		h.held[id] = f
	}
	f.users++
	h.mu.Unlock()
	if first {
		h.fill(ctx, id, f, source)
	}
	select {
	case <-f.ready:
	case <-ctx.Done():
		h.put(f)
		return nil, ctx.Err()
	}
	if f.err != nil {
		h.put(f)
		return nil, f.err
	}
	return f, nil
}

// put counts one user fewer.
func (h *holder) put(f *file) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f.users--
	f.since = time.Now()
}

// fill has a file loaded. Where there is no memory, what nobody uses goes first.
func (h *holder) fill(ctx context.Context, id identity, f *file, source *os.File) {
	began := time.Now()
	loaded, memory, err := h.load(ctx, source)
	if err == nil && loaded.Bytes != id.bytes {
		memory.Close()
		err = fmt.Errorf("the file had %d bytes and has %d", id.bytes, loaded.Bytes)
	}
	h.mu.Lock()
	if f.err = err; err == nil {
		f.loaded, f.memory = loaded, memory
	} else {
		delete(h.held, id)
	}
	h.mu.Unlock()
	close(f.ready)
	if err == nil {
		h.o.Log.Info().Int64("bytes", loaded.Bytes).Dur("took", time.Since(began)).Msg("weights are on the GPU")
		h.report()
	}
}

func (h *holder) load(ctx context.Context, source *os.File) (Loaded, *os.File, error) {
	select {
	case h.loads <- struct{}{}:
		defer func() { <-h.loads }()
	case <-ctx.Done():
		return Loaded{}, nil, ctx.Err()
	}
	loaded, memory, err := h.loader.load(ctx, source)
	if err != nil && strings.HasPrefix(err.Error(), outOfMemory) && h.free(0) > 0 {
		loaded, memory, err = h.loader.load(ctx, source)
	}
	return loaded, memory, err
}

// sweep frees what nobody has used for a while.
func (h *holder) sweep(ctx context.Context) {
	every := time.NewTicker(max(h.o.Linger/4, 10*time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			h.free(h.o.Linger)
		}
	}
}

// free gives back what nobody has used for so long, and says how many files that were.
func (h *holder) free(unused time.Duration) (n int) {
	h.mu.Lock()
	for id, f := range h.held {
		if f.memory == nil || f.users > 0 || time.Since(f.since) < unused {
			continue
		}
		f.memory.Close()
		delete(h.held, id)
		n++
		h.o.Log.Info().Int64("bytes", f.loaded.Bytes).Msg("weights that nobody uses are freed")
	}
	h.mu.Unlock()
	if n > 0 {
		h.report()
	}
	return n
}

// report tells what is held now.
func (h *holder) report() {
	h.tell.Lock()
	defer h.tell.Unlock()
	var now control.WeightsHeld
	h.mu.Lock()
	for _, f := range h.held {
		if f.memory != nil {
			now.Files++
			now.Bytes += f.loaded.MemoryBytes
		}
	}
	h.mu.Unlock()
	h.o.Tell(now)
}
