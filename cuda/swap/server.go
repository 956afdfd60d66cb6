package swap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda/swap/turns"
	"github.com/penstock/penstock/internal/unixsock"
)

const (
	version      = 3
	maxMessage   = 128
	maxPerSecond = 20000   // messages of a guest that the server reads; an allocation is two or three
	maxUnknown   = 64      // names that a guest can report
	maxBytes     = 1 << 48 // more than any GPU has; sums do not overflow
	maxSwap      = 10 * time.Minute
	helloTimeout = 5 * time.Second
	sendTimeout  = 100 * time.Millisecond
	// marginBytes of the GPU's free memory are left for what guests allocate beyond their
	// blocks: contexts of later guests, kernels, local memory.
	marginBytes = 512 << 20
)

// Config is what a server needs.
type Config struct {
	// LimitBytes is what guests of a GPU may have together. 0 means all free memory of the
	// GPU, less a margin.
	LimitBytes int64
	// HostBytes is how much of the guests' memory the host can hold. 0 means four fifths of
	// the memory that is available when the first guest comes.
	HostBytes int64
	// UID is the user whose programs may connect, besides root's.
	UID int
	// Clock is a monotonic clock that stands still while this process is stopped: guests may have been, too.
	// nil means one that goes on.
	Clock func() time.Duration
	// End ends the program of a process that keeps others from the GPU, and returns when it has ended. If it is
	// nil or fails, the process loses its connection.
	End func(pid int, why string) error
	// Grace is how long a guest may take to obey while others wait. 0 means turns.Grace.
	Grace time.Duration
	Log   zerolog.Logger
}

// Guest is a process that is connected to a server.
type Guest struct {
	PID          int
	GPU          string // UUID
	MemoryBytes  int64
	Phase        turns.Phase
	Waiting      bool
	Swaps        int
	UnknownCalls []string // functions of the driver that the library passes without knowing them
}

// Server gives the guests of each GPU their turns. Any goroutine may call its methods.
type Server struct {
	config Config
	served sync.WaitGroup // goroutines of guests

	mu     sync.Mutex
	kept   int64 // of Reserve
	gpus   map[string]*gpu
	guests map[int]*guest
	last   int
	closed bool

	logged  time.Time // when the server last logged why it ended a connection
	skipped int       // ends of connections since then
}

type gpu struct {
	uuid  string
	lock  *turns.Lock
	timer *time.Timer
}

type guest struct {
	Guest
	id   int
	gpu  *gpu
	conn *net.UnixConn
}

// New returns a server without guests.
func New(config Config) *Server {
	if config.Clock == nil {
		began := time.Now()
		config.Clock = func() time.Duration { return time.Since(began) }
	}
	config.Grace = cmp.Or(config.Grace, turns.Grace)
	return &Server{config: config, gpus: map[string]*gpu{}, guests: map[int]*guest{}}
}

// Listen opens a server's socket: a Unix socket of packets. A name that begins with @ is not a file (unix(7), abstract).
func Listen(path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("listen for guests: %w", err)
	}
	return l, nil
}

// maxConnections keeps guests from exhausting the descriptors of the server's process.
const maxConnections = 128

// Serve serves guests until ctx ends. It closes the listener and all connections. A guest whose turn it is then
// keeps it, and others get none.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	defer s.served.Wait()
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() {
		s.close() // first, so that no guest gets the turn of one that leaves now
		end()
	})()
	failed := func(err error) { s.config.Log.Warn().Err(err).Msg("swap server cannot accept guest") }
	unixsock.Serve(serving, l, maxConnections, failed, func(conn *net.UnixConn) {
		defer conn.Close()
		if err := s.serve(conn); err != nil {
			s.logEnd(err)
		}
	})
	return nil
}

// logEnd logs why the server ended a connection, once per second at most: a guest can connect at any rate.
func (s *Server) logEnd(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.logged) < time.Second {
		s.skipped++
		return
	}
	s.config.Log.Warn().Err(err).Int("others_since_last_line", s.skipped).Msg("swap server disconnected guest")
	s.logged, s.skipped = time.Now(), 0
}

func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, g := range s.guests {
		g.conn.Close()
	}
	for _, u := range s.gpus {
		u.timer.Stop()
	}
}

// Guests returns the connected guests in the order they came.
func (s *Server) Guests() []Guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Guest
	for id := 1; id <= s.last; id++ {
		if g := s.guests[id]; g != nil {
			state := g.Guest
			state.Phase, state.MemoryBytes, state.Waiting = g.gpu.lock.Phase(id)
			state.UnknownCalls = slices.Clone(g.UnknownCalls)
			all = append(all, state)
		}
	}
	return all
}

// Reserve sets what the guests of a GPU leave free together, in addition to a margin.
func (s *Server) Reserve(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = bytes
	for _, u := range s.gpus {
		u.lock.Reserve(bytes)
	}
}

// pauseCheck is how often Pause looks whether processes have obeyed.
const pauseCheck = 5 * time.Millisecond

// Pause makes processes give up their turns, and their memory if the host can hold it. It returns when they have,
// or with an error after the time that they may take. They get no turn until Resume.
func (s *Server) Pause(pids []int) error {
	s.change(pids, (*turns.Lock).Pause)
	for began := s.now(); ; time.Sleep(pauseCheck) {
		pid := s.unyielded(pids)
		if pid == 0 {
			return nil
		}
		if s.now()-began > s.config.Grace {
			s.Resume(pids)
			return fmt.Errorf("take turn of process %d: it did not give up the GPU within %v", pid, s.config.Grace)
		}
	}
}

// Resume ends Pause.
func (s *Server) Resume(pids []int) { s.change(pids, (*turns.Lock).Resume) }

// change changes the guests that the processes are.
func (s *Server) change(pids []int, change func(*turns.Lock, time.Duration, int) []turns.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.guests {
		if slices.Contains(pids, g.PID) {
			s.do(g.gpu, change(g.gpu.lock, s.now(), g.id))
		}
	}
}

// unyielded returns one of the processes that has not given up the GPU, or 0.
func (s *Server) unyielded(pids []int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.guests {
		if slices.Contains(pids, g.PID) && !g.gpu.lock.Yielded(g.id) {
			return g.PID
		}
	}
	return 0
}

// serve reads a guest's messages until its connection ends.
func (s *Server) serve(conn *net.UnixConn) error {
	credentials, err := unixsock.Peer(conn, s.config.UID)
	if err != nil {
		return fmt.Errorf("refuse guest: %w", err)
	}
	pid := int(credentials.Pid)
	buffer := make([]byte, maxMessage+1)
	conn.SetReadDeadline(time.Now().Add(helloTimeout))
	n, err := conn.Read(buffer)
	if err != nil || n == 0 {
		return nil // it went before it said anything
	}
	conn.SetReadDeadline(time.Time{})
	g, err := s.attach(conn, pid, string(buffer[:n]))
	if err != nil {
		fmt.Fprintf(conn, "no %v", err)
		return fmt.Errorf("refuse guest %d: %w", pid, err)
	}
	defer s.leave(g)

	window, count := time.Now(), 0
	for {
		n, err := conn.Read(buffer)
		if err != nil || n == 0 {
			return nil
		}
		if n > maxMessage {
			return fmt.Errorf("read from guest %d: message longer than %d bytes", pid, maxMessage)
		}
		if count++; count > maxPerSecond {
			time.Sleep(time.Second - time.Since(window)) // so that others have their share of the server
			window, count = time.Now(), 0
		}
		if err := s.handle(g, string(buffer[:n])); err != nil {
			return fmt.Errorf("read from guest %d: %w", pid, err)
		}
	}
}

// attach reads hello VERSION UUID TOTAL FREE.
func (s *Server) attach(conn *net.UnixConn, pid int, message string) (*guest, error) {
	var v int
	var uuid string
	var total, free int64
	if _, err := fmt.Sscanf(message, "hello %d %32s %d %d", &v, &uuid, &total, &free); err != nil {
		return nil, fmt.Errorf("read greeting: %w", err)
	}
	if v != version {
		return nil, fmt.Errorf("the library has version %d, the server %d", v, version)
	}
	if free < 0 || free > total || total == 0 {
		return nil, errors.New("read greeting: value out of range")
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the server ends")
	}
	if s.config.HostBytes == 0 {
		available, err := availableBytes()
		if err != nil {
			return nil, err
		}
		s.config.HostBytes = available / 5 * 4
	}
	u := s.gpus[uuid]
	if u == nil {
		limit := total
		if s.config.LimitBytes > 0 {
			limit = s.config.LimitBytes
		}
		u = &gpu{uuid: uuid, lock: turns.New(limit, min(marginBytes, total/8), s.config.HostBytes)}
		u.lock.Grace = s.config.Grace
		u.lock.Reserve(s.kept)
		u.timer = time.AfterFunc(time.Hour, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case s.closed:
			case s.gpus[u.uuid] != u: // deleted since the timer ran out
			case s.unused(u):
				delete(s.gpus, u.uuid)
			default:
				s.do(u, u.lock.Tick(s.now()))
			}
		})
		s.gpus[uuid] = u
	}

	s.last++
	g := &guest{Guest: Guest{PID: pid, GPU: uuid}, id: s.last, gpu: u, conn: conn}
	s.guests[g.id] = g
	commands := u.lock.Attach(s.now(), g.id, free)
	s.send(g, fmt.Sprintf("ok %d", u.lock.Capacity()))
	s.do(u, commands)
	return g, nil
}

func (s *Server) leave(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.guests, g.id)
	if s.closed {
		return
	}
	s.do(g.gpu, g.gpu.lock.Leave(s.now(), g.id))
	if s.unused(g.gpu) {
		g.gpu.timer.Reset(turns.ReturnTime) // until then its memory may not be free yet
	}
}

// unused reports whether a GPU has no guests. s.mu is held.
func (s *Server) unused(u *gpu) bool {
	for _, g := range s.guests {
		if g.gpu == u {
			return false
		}
	}
	return true
}

func (s *Server) now() time.Duration { return s.config.Clock() }

func (s *Server) handle(g *guest, message string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	word, rest, _ := strings.Cut(message, " ")
	lock, now := g.gpu.lock, s.now()
	var value, second int64
	var err error
	limit := int64(maxBytes)
	switch word {
	case "need", "have":
		_, err = fmt.Sscan(rest, &value, &second)
	case "in":
		limit = maxSwap.Microseconds() // a turn lasts a multiple of it
		_, err = fmt.Sscan(rest, &value, &second)
	case "gone":
		limit = maxSwap.Microseconds()
		_, err = fmt.Sscan(rest, &value)
	}
	if err != nil || value < 0 || value > limit || second < -1 || second > maxBytes {
		return fmt.Errorf("bad message %q", message)
	}
	switch word {
	case "need":
		ok, commands := lock.Need(now, g.id, value, second)
		// A guest that is to stop must do so before it uses the memory.
		s.do(g.gpu, commands)
		answer := "no"
		if ok {
			answer = "ok"
		}
		s.send(g, fmt.Sprintf("%s %d", answer, lock.Capacity()))
	case "have":
		s.do(g.gpu, lock.Have(now, g.id, value, second))
	case "ask":
		s.do(g.gpu, lock.Ask(now, g.id))
	case "in":
		s.do(g.gpu, lock.In(now, g.id, time.Duration(value)*time.Microsecond, second))
	case "stopped":
		s.do(g.gpu, lock.Stopped(now, g.id))
	case "gone":
		g.Swaps++
		s.do(g.gpu, lock.Gone(now, g.id, time.Duration(value)*time.Microsecond))
	case "stuck":
		s.config.Log.Warn().Int("pid", g.PID).Msg("memory of guest cannot leave the GPU")
		s.do(g.gpu, lock.Stuck(now, g.id))
	case "short":
		s.do(g.gpu, lock.Short(now, g.id))
	case "unknown":
		if len(g.UnknownCalls) < maxUnknown && !slices.Contains(g.UnknownCalls, rest) {
			g.UnknownCalls = append(g.UnknownCalls, rest)
			s.config.Log.Info().Int("pid", g.PID).Str("function", rest).Msg("swap library passes a function that it does not know")
		}
	default:
		return fmt.Errorf("bad message %q", message)
	}
	return nil
}

// do sends commands and sets the timer. s.mu is held.
func (s *Server) do(u *gpu, commands []turns.Command) {
	for _, c := range commands {
		g := s.guests[c.Guest]
		switch {
		case g == nil:
		case c.Verb == turns.End:
			s.end(g)
		case c.Verb == turns.Wanted:
			s.send(g, fmt.Sprintf("wanted %d %d %d", c.Early.Microseconds(), c.Span.Microseconds(), turns.Idle.Microseconds()))
		default:
			s.send(g, string(c.Verb))
		}
	}
	if at, ok := u.lock.Deadline(); ok {
		u.timer.Reset(max(at-s.now(), 0))
	} else {
		u.timer.Stop()
	}
}

// end ends a guest that did not obey. Its connection then ends, and with it its turn. s.mu is held.
func (s *Server) end(g *guest) {
	phase, _, _ := g.gpu.lock.Phase(g.id)
	undone := map[turns.Phase]string{
		turns.Entering: "bring its memory back", turns.Stopping: "finish its work on the GPU", turns.Leaving: "move its memory to the host",
	}[phase]
	why := fmt.Sprintf("the guest kept others from the GPU: it did not %s within %v; let it synchronize more often, and use `penstock guest pause` instead of Ctrl-Z",
		undone, s.config.Grace)
	s.config.Log.Warn().Int("pid", g.PID).Stringer("phase", phase).Msg("swap server ends a guest that keeps others from the GPU")
	s.served.Go(func() {
		err := errors.New("no program is known")
		if s.config.End != nil {
			err = s.config.End(g.PID, why)
		}
		if err != nil {
			s.config.Log.Warn().Err(err).Int("pid", g.PID).Msg("swap server cannot end a guest, and disconnects it")
			g.conn.Close()
		}
	})
}

// send disconnects a guest that does not read its socket.
func (s *Server) send(g *guest, text string) {
	g.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
	if _, err := g.conn.Write([]byte(text)); err != nil {
		g.conn.Close()
	}
}
