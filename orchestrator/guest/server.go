// Package guest lets other programs use what the functions of a node leave: `penstock run` and
// `penstock guest`. A guest is an unmodified program below all functions. Its control group gets
// only idle CPU time. On a GPU with MPS it is a client of low priority.
//
//	penstock run (Run)                          orchestrator (Server)
//	1 Run: command, memory, own ──────────────> hold back? make group
//	2              <── Place: environment, user
//	  start launcher, which waits
//	3 Started: process id ────────────────────> move the launcher into the group
//	4              <── Go
//	  launcher becomes the program
//	5              <── Ended: why, at any time ─ SIGTERM, after 5 s SIGKILL
//	  Ending, before a signal that ends it ───> end its work on the GPU
//	               <── Done
//	6 program ended: close ───────────────────> kill the rest, remove the group
//	7              <── close
//
// `penstock run` is the program's parent, so terminal, signals and exit status need no copying. The
// connection is the guest's life: if either side ends, the other ends the guest.
package guest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda/swap"
	"github.com/penstock/penstock/cuda/yield"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/unixsock"
	"github.com/penstock/penstock/orchestrator/cgroup"
)

// Values of control.GuestStatus.Device.
const (
	OnCPU  = "cpu"
	InMPS  = "mps"
	Beside = "own" // on the GPU, outside MPS
)

// Limits. A node's user cannot exhaust the orchestrator with guests.
const (
	maxGuests      = 64
	maxConnections = 128
	orderTimeout   = 2 * time.Second  // from the connection to the order
	startTimeout   = 30 * time.Second // from the place to the launcher
	sendTimeout    = time.Second
	maxEndings     = 16 // signals that a guest does not survive; each costs two commands of MPS
)

// suspectFor is how long after its end a guest is suspected of a fault of the GPU. Functions see a fault
// with their next batch.
const suspectFor = 10 * time.Second

// Options say how to run guests. Durations of zero get their defaults.
type Options struct {
	Dir string // the runtime folder
	Log zerolog.Logger
	// Groups makes control groups. If it is nil or fails, guests are found by their environment.
	Groups Groups
	// User is the user that MPS serves, and that guests of root run as.
	User control.GuestUser
	// CPUs are those of guests; empty: all.
	CPUs []int

	StopTimeout time.Duration // SIGTERM to SIGKILL; default 5 s
	HoldTimeout time.Duration // how long a command is held back the first time; default 10 min
	Grace       time.Duration // how long a guest may keep others from the GPU; default turns.Grace
}

// Device is what guests may use of one device.
type Device struct {
	// Name is the device's, and UUID the GPU's.
	Name, UUID string
	Kind       string // OnCPU; InMPS, if guests can be clients; Beside, if the GPU has no MPS
	// Client and Own are the environments of guests inside MPS and outside.
	Client, Own map[string]string
	// Why is why there is no MPS.
	Why string
	// Wait is why no guest can start now; empty if it can.
	Wait string
	// FreeBytes is the GPU's free memory a moment ago, -1 if it is unknown.
	FreeBytes int64
	// Memory returns the GPU's memory; it is nil, or ok is false, if that is unknown. It may wait for the driver.
	Memory func() (u Usage, ok bool)
	// EndWork ends the work on the GPU of those of the processes that are clients of MPS; nil: there are none.
	EndWork func(pids []int)
	// ContextBytes is what a process has on the GPU in addition to its allocations, and RestartBytes what
	// one more process of the largest function needs. WorkerBytes is how much memory each worker may have for
	// models, by process id.
	ContextBytes, RestartBytes int64
	WorkerBytes                map[int]int64
}

// Server is the orchestrator's side. Any goroutine may call its methods.
type Server struct {
	o        Options
	listener *control.Listener
	ended    chan string
	closes   chan struct{} // closed when Close begins
	closed   chan struct{}
	handlers sync.WaitGroup

	// mu is held for moments only, because the supervisor waits for it: no I/O, and no call of a Group.
	mu      sync.Mutex
	parts   []*part
	guests  []*guest
	left    []departure
	holds   map[string]*hold // by key
	closing bool
}

// part is what concerns one device. It stays if the node gives the device up. Server.mu guards Device and measuring.
type part struct {
	Device
	measuring bool
	swap      turnsServer
}

// guest is a program, from its place to its end. The fields below mu are guarded by Server.mu.
type guest struct {
	request control.GuestRun
	name    string
	on      *part
	device  string
	since   time.Time
	uid     int // of the program
	link    *control.GuestLink
	over    chan struct{} // closed when no process is left
	changes sync.Mutex    // one pause or resume at a time; taken before Server.mu

	group  Group
	pid    int
	state  string
	killed bool
	// limitBytes is its max memory, 0 if there is none. usedBytes is what it has on a GPU, -1 if unknown.
	limitBytes, usedBytes int64
	contexts              int  // how many of its processes have memory of a GPU
	counted               bool // the memory of all of them is known
	leaves                bool // its processes can leave its group
	judged                bool // a fault of the GPU ended it
}

// departure is a client of MPS that ended.
type departure struct {
	key string
	on  *part
	at  time.Time
}

// hold keeps a command out of MPS.
type hold struct {
	since, until time.Time
	times        int
}

// Listen starts a server. The caller closes it.
func Listen(o Options) (*Server, error) {
	o.StopTimeout = cmp.Or(o.StopTimeout, 5*time.Second)
	o.HoldTimeout = cmp.Or(o.HoldTimeout, 10*time.Minute)
	l, err := control.ListenGuests(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{
		o: o, listener: l, ended: make(chan string, maxGuests), closes: make(chan struct{}), closed: make(chan struct{}),
		holds: map[string]*hold{},
	}
	s.handlers.Go(s.accept)
	s.handlers.Go(s.watch)
	return s, nil
}

// SetDevices sets what guests that start from now on may use.
func (s *Server) SetDevices(list []Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		p.Kind, p.Wait = "", "the node no longer uses device "+p.Name
	}
	for _, d := range list {
		i := slices.IndexFunc(s.parts, func(p *part) bool { return p.Name == d.Name })
		if i < 0 {
			i = len(s.parts)
			s.parts = append(s.parts, &part{})
		}
		s.parts[i].Device = d
	}
}

// choose returns the part for a guest: the device that it names, or the GPU that has most memory left.
func (s *Server) choose(request *control.GuestRun) (*part, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parts) == 0 {
		return nil, errors.New("run guest: the node is starting; try again")
	}
	if name := request.Device; name != "" {
		var names []string
		for _, p := range s.parts {
			if name == p.Name || name == p.UUID {
				return p, nil
			}
			names = append(names, p.Name)
		}
		return nil, fmt.Errorf("run guest: --device is %q, and the node has %s", name, strings.Join(names, ", "))
	}
	rank := func(p *part) int {
		switch {
		case !p.takesLocked(request):
			return 0
		case p.Kind == OnCPU:
			return 1
		}
		return 2
	}
	return slices.MaxFunc(s.parts, func(a, b *part) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			cmp.Compare(s.termsLocked(a, Usage{FreeBytes: a.FreeBytes}).limitBytes(), s.termsLocked(b, Usage{FreeBytes: b.FreeBytes}).limitBytes()),
			s.countLocked(b)-s.countLocked(a),
		)
	}), nil
}

// takesLocked reports whether a guest can start now. A guest outside MPS does not wait for it.
func (p *part) takesLocked(request *control.GuestRun) bool {
	return p.Wait == "" || p.Kind != "" && request.Own
}

func (s *Server) countLocked(p *part) (n int) {
	for _, g := range s.guests {
		if g.on == p {
			n++
		}
	}
	return n
}

// Ended has the name of a device after one of its clients of MPS has ended. It may have ended because it failed the GPU.
func (s *Server) Ended() <-chan string { return s.ended }

// Restore makes the socket file again if it is gone.
func (s *Server) Restore() error {
	_, err := s.listener.Restore()
	return err
}

// Close ends all guests, and returns when none is left.
func (s *Server) Close() error {
	s.mu.Lock()
	already := s.closing
	s.closing = true
	guests := slices.Clone(s.guests)
	s.mu.Unlock()
	if already {
		<-s.closed
		return nil
	}

	close(s.closes)
	err := s.listener.Close()
	var stops sync.WaitGroup
	for _, g := range guests {
		stops.Go(func() { s.stop(g, "the node is stopping") })
	}
	stops.Wait()
	s.handlers.Wait()
	for _, p := range s.parts {
		err = errors.Join(err, p.swap.close())
	}
	close(s.closed)
	return err
}

// Lose ends all guests on a device that is lost.
func (s *Server) Lose(device, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.guests {
		if g.on.Name == device {
			g.judged = true
			s.handlers.Go(func() { s.kill(g, why) })
		}
	}
}

// Fault ends all clients of MPS on a device, because their contexts are lost and MPS serves no new client before. With
// blame it also holds back their commands, and those of clients that have just ended. It reports whether
// there were any.
func (s *Server) Fault(device, why string, blame bool) (suspects bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	keys := map[string]bool{}
	for _, g := range s.guests {
		if g.device == InMPS && g.on.Name == device {
			keys[g.request.Key], g.judged = true, true
			s.handlers.Go(func() { s.kill(g, why) })
		}
	}
	if !blame {
		return false
	}

	s.left = slices.DeleteFunc(s.left, func(d departure) bool {
		if d.on.Name == device && now.Sub(d.at) < suspectFor {
			keys[d.key] = true
		}
		return d.on.Name == device
	})
	for key := range keys {
		h := s.holds[key]
		if h == nil {
			h = &hold{}
			s.holds[key] = h
		}
		h.since, h.until = now, now.Add(s.o.HoldTimeout<<min(h.times, 4))
		h.times++
	}
	return len(keys) > 0
}

// heldLocked says why a command may not be a client of MPS; empty if it may. It forgets old holds.
func (s *Server) heldLocked(key string) string {
	now := time.Now()
	for k, h := range s.holds {
		if now.Sub(h.until) > s.o.HoldTimeout<<4 {
			delete(s.holds, k)
		}
	}
	h := s.holds[key]
	if h == nil || now.After(h.until) {
		return ""
	}
	return fmt.Sprintf("the GPU failed %v ago while this command ran, and all functions had to restart; it may run again in %v, or at once with --own",
		now.Sub(h.since).Round(time.Second), h.until.Sub(now).Round(time.Second))
}

// accept serves connections until the listener is closed.
func (s *Server) accept() {
	unixsock.Serve(context.Background(), s.listener, maxConnections, func(error) {}, func(c *net.UnixConn) {
		link := control.NewGuestLink(c)
		defer link.Close()
		if err := s.serve(link); err != nil {
			send(link, control.GuestAnswer{Error: err.Error()})
		}
	})
}

// send sends an answer to a client that may not read it.
func send(link *control.GuestLink, a control.GuestAnswer) {
	link.SetWriteDeadline(time.Now().Add(sendTimeout))
	_ = link.Send(a) // the client has gone
}

// serve carries out a connection's order.
func (s *Server) serve(link *control.GuestLink) error {
	peer, err := unixsock.Peer(link.UnixConn, os.Getuid())
	if err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	var order control.GuestOrder
	link.SetReadDeadline(time.Now().Add(orderTimeout))
	if err := link.Receive(&order); err != nil {
		return err
	}
	switch {
	case order.Run != nil:
		return s.run(link, int(peer.Pid), int(peer.Uid), *order.Run)
	case order.List:
		send(link, control.GuestAnswer{Guests: s.list()})
		return nil
	}
	done, err := s.change(order)
	if err == nil {
		send(link, control.GuestAnswer{Done: done})
	}
	return err
}

// change carries out pause, resume or stop.
func (s *Server) change(order control.GuestOrder) (done string, err error) {
	name := cmp.Or(order.Pause, order.Resume, order.Stop)
	g, err := s.find(name)
	if err != nil {
		return "", err
	}
	switch {
	case order.Pause != "":
		return g.name + " is paused", s.freeze(g, true)
	case order.Resume != "":
		return g.name + " runs", s.freeze(g, false)
	}
	s.stop(g, "stopped by `penstock guest stop`")
	return g.name + " has ended", nil
}

// find returns the guest with a name or process id.
func (s *Server) find(name string) (*guest, error) {
	if name == "" {
		return nil, fmt.Errorf("%w: no order", control.ErrBadMessage)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, g := range s.guests {
		if g.name == name || g.pid != 0 && strconv.Itoa(g.pid) == name {
			return g, nil
		}
		names = append(names, g.name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("find guest %q: no guest runs", name)
	}
	return nil, fmt.Errorf("find guest %q: want %s", name, strings.Join(names, ", "))
}

// run is the life of a guest.
func (s *Server) run(link *control.GuestLink, parent, uid int, request control.GuestRun) error {
	on, err := s.choose(&request)
	if err != nil {
		return err
	}
	usage, known := s.measure(on)
	g, place, missing, err := s.admit(link, uid, request, on, usage, known)
	if err != nil {
		return err
	}
	log := s.o.Log.With().Str("guest", g.name).Logger()
	defer s.end(g, log)

	more, err := s.prepare(g, place)
	if err != nil {
		return err
	}
	missing = append(missing, more...)
	send(link, control.GuestAnswer{Place: place})
	var order control.GuestOrder
	if err := link.Receive(&order); err != nil || order.Started <= 0 {
		return errors.Join(errors.New("start guest: the launcher did not start"), err)
	}
	more, err = s.start(g, parent, order.Started, place.Token)
	if err != nil {
		return err
	}
	send(link, control.GuestAnswer{Go: &control.GuestGo{Missing: append(missing, more...)}})
	log.Info().Int("pid", order.Started).Str("command", request.Command).Str("device", g.device).Msg("guest started")

	for endings := 0; ; endings++ {
		order = control.GuestOrder{}
		switch err := link.Receive(&order); {
		case err == nil && order == control.GuestOrder{Ending: true} && endings < maxEndings:
			s.endWork(g, func() []int { return []int{g.pid} })
			send(link, control.GuestAnswer{Done: "its work on the GPU has ended"})
			continue
		case err == nil || errors.Is(err, control.ErrBadMessage) || errors.Is(err, control.ErrTooLong):
			s.kill(g, "it wrote to the socket of `penstock run`")
		}
		return nil
	}
}

// admit registers a guest that may run. The caller calls prepare, and end.
func (s *Server) admit(link *control.GuestLink, uid int, request control.GuestRun, on *part, usage Usage, known bool) (*guest, *control.GuestPlace, []string, error) {
	refuse := func(format string, args ...any) (*guest, *control.GuestPlace, []string, error) {
		return nil, nil, nil, fmt.Errorf("run guest: "+format, args...)
	}
	if request.Command == "" || len(request.Command) > control.MaxGuestCommand || len(request.Key) > 128 || request.MemoryBytes < 0 {
		return refuse("%w", control.ErrBadMessage)
	}
	if err := control.CheckName(request.Name); err != nil {
		return refuse("%w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := on.Device
	switch {
	case s.closing:
		return refuse("the node is stopping")
	case len(s.guests) >= maxGuests:
		return refuse("%d guests run already", maxGuests)
	case !on.takesLocked(&request):
		return refuse("%s; try again", d.Wait)
	case request.Swap && d.Kind == OnCPU:
		return refuse("--swap moves GPU memory, and device %s is no GPU; leave it out", d.Name)
	case request.Swap && request.MemoryBytes > 0:
		return refuse("--memory limits one guest, and guests with --swap share their limit; leave it out")
	}
	user := control.GuestUser{UID: uid}
	switch {
	case request.User != nil && uid != 0 && request.User.UID != uid:
		return refuse("only root can choose the program's user; leave --user out")
	case request.User != nil:
		user = *request.User
	case uid == 0: // a program of root could leave its control group
		user = s.o.User
	}
	place := &control.GuestPlace{Name: s.freeNameLocked(request.Name), Token: token(), CPUs: s.o.CPUs}
	if user.UID != uid {
		place.User = &user
	}
	g := &guest{
		request: request, name: place.Name, on: on, device: d.Kind, since: time.Now(), uid: user.UID, link: link,
		over: make(chan struct{}), group: Marked{place.Token}, state: control.GuestStarting, limitBytes: request.MemoryBytes, usedBytes: -1,
	}
	var missing []string
	switch {
	case d.Kind == OnCPU:
	case request.Own || d.Kind == Beside:
		if g.device, place.Environment = Beside, d.Own; request.MemoryBytes > 0 {
			return refuse("--memory limits GPU memory only inside MPS; leave it out")
		}
		if !request.Own {
			missing = append(missing, "the GPU has no MPS, so guest and functions take turns: "+d.Why)
		}
	default:
		if why := s.heldLocked(request.Key); why != "" {
			return refuse("%s", why)
		}
		switch {
		case user.UID == s.o.User.UID:
		case uid == 0:
			return refuse("MPS serves only user %s; leave --user out, or use --own", s.o.User.Name)
		default:
			return refuse("MPS serves only user %s; run it as root, or use --own", s.o.User.Name)
		}
		switch {
		case request.Swap: // the swap server has the limit
			missing = append(missing, "not enforced: the limit of guests with --swap: a program can run without the library")
		case known:
			limit, err := s.termsLocked(on, usage).limit(request.MemoryBytes)
			if err != nil {
				return refuse("%w", err)
			}
			g.limitBytes = limit
		case request.MemoryBytes > 0:
			missing = append(missing, "not enforced: --memory: the GPU's used memory is unknown, and a program can remove its limit")
		default:
			missing = append(missing, "the GPU's free memory is unknown, so the guest's memory has no limit; set one with --memory")
		}
		place.Environment = client(d.Client, g.limitBytes, d.ContextBytes)
	}
	s.guests = append(s.guests, g)
	return g, place, missing, nil
}

// prepare makes a guest's group, and lets its launcher start. It returns what the group cannot do.
func (s *Server) prepare(g *guest, place *control.GuestPlace) (missing []string, err error) {
	place.Environment = maps.Clone(place.Environment)
	if place.Environment == nil {
		place.Environment = map[string]string{}
	}
	if g.device != OnCPU {
		path, err := control.FindBusyFile(s.o.Dir)
		if err != nil {
			missing = append(missing, fmt.Sprintf("the program does not wait for functions: %v", err))
		} else {
			place.Environment[yield.FileVariable] = path
		}
	}
	if g.request.Swap {
		socket, err := g.on.swap.open(swap.Config{UID: s.o.User.UID, Clock: runclock.Now, End: s.endBlocking, Grace: s.o.Grace, Log: s.o.Log})
		if err != nil {
			return nil, fmt.Errorf("run guest: %w", err)
		}
		place.Environment[swap.SocketVariable] = socket
		if u, ok := s.measure(g.on); ok {
			s.reserve(g.on, u)
		}
	}
	group, more := s.makeGroup(g, place.Token)
	missing = append(missing, more...)

	s.mu.Lock()
	defer s.mu.Unlock()
	if group != nil {
		g.group = group
	}
	if err := g.stoppedLocked(); err != nil {
		return nil, err
	}
	g.link.SetReadDeadline(time.Now().Add(startTimeout)) // under the lock: kill sets another
	return missing, nil
}

// stoppedLocked returns an error if a guest that has not started may no longer start.
func (g *guest) stoppedLocked() error {
	if g.killed || g.state == control.GuestStopping {
		return errors.New("start guest: it was stopped before it started")
	}
	return nil
}

// client returns the environment of a client of MPS. MPS counts the context as part of a limit.
func client(environment map[string]string, memoryBytes, contextBytes int64) map[string]string {
	e := map[string]string{"CUDA_MPS_CLIENT_PRIORITY": "1"} // below the normal 0
	for name, value := range environment {
		e[name] = value
	}
	// The program can remove its limit, which each of its processes has. enforce holds it for all of them.
	if memoryBytes > 0 {
		e["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = fmt.Sprintf("0=%dM", max(1, (memoryBytes+contextBytes)/mib))
	}
	return e
}

func token() string {
	b := make([]byte, 16)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// freeNameLocked returns name, with a number if another guest has it.
func (s *Server) freeNameLocked(name string) string {
	for n := 1; ; n++ {
		candidate := name
		if n > 1 {
			candidate = fmt.Sprintf("%s-%d", name, n)
		}
		if !slices.ContainsFunc(s.guests, func(g *guest) bool { return g.name == candidate }) {
			return candidate
		}
	}
}

// makeGroup returns a group for a guest, or nil, and what cannot be limited. The token makes the group's name
// unique, because a group that could not be removed keeps its name.
func (s *Server) makeGroup(g *guest, token string) (group Group, missing []string) {
	if s.o.Groups == nil {
		return nil, []string{s.ungroup(g, errors.New("switched off"))}
	}
	var memoryBytes int64
	if g.device == OnCPU {
		memoryBytes = g.request.MemoryBytes
	}
	group, reasons, err := s.o.Groups.Make(g.name+"-"+token, memoryBytes, g.uid)
	if err != nil {
		return nil, []string{s.ungroup(g, err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, why := range reasons {
		if errors.Is(why, cgroup.ErrNoMemoryLimit) {
			g.limitBytes = 0
		}
		g.leaves = g.leaves || errors.Is(why, cgroup.ErrCanLeave)
		missing = append(missing, why.Error())
	}
	return group, missing
}

// ungroup notes that a guest has no control group, and returns what it lacks.
func (s *Server) ungroup(g *guest, err error) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.leaves = true
	what := "it starts with the lowest priority, but the program can raise it, and its processes can outlive it"
	if g.request.MemoryBytes > 0 && g.device == OnCPU {
		what += ", and its memory has no limit"
		g.limitBytes = 0
	}
	return fmt.Sprintf("no control group for the guest: %s: %v", what, err)
}

// start moves the launcher into the guest's group.
func (s *Server) start(g *guest, parent, pid int, token string) (missing []string, err error) {
	// The launcher waits, so its process id cannot be another's. A foreign process must not be moved.
	if stat, err := procstat.Read(pid); err != nil || int(stat.Number(procstat.Parent)) != parent {
		return nil, fmt.Errorf("start guest: process %d is no child of `penstock run` (process %d); run it where the node runs, not in another container", pid, parent)
	}
	group := s.groupOf(g)
	if err := group.Add(pid); err != nil {
		if failed := group.Remove(); failed != nil {
			s.o.Log.Warn().Err(failed).Str("guest", g.name).Msg("cannot remove the group of a guest")
		}
		group, missing = Marked{token}, []string{s.ungroup(g, err)}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	g.group = group
	if err := g.stoppedLocked(); err != nil {
		return nil, err
	}
	g.pid, g.state = pid, control.GuestRunning
	g.link.SetReadDeadline(time.Time{})
	return missing, nil
}

// killGroup kills all processes of a guest. Clients of MPS that are killed while their kernels run can cause a
// GPU fault for all clients, so their work ends first, unless the GPU has failed already.
func (s *Server) killGroup(g *guest) error {
	s.mu.Lock()
	group, judged := g.group, g.judged
	s.mu.Unlock()
	if !judged {
		s.endWork(g, group.PIDs)
	}
	return group.Kill()
}

// endWork ends the work on the GPU of processes of a guest, which list returns. Only clients of MPS have such work.
func (s *Server) endWork(g *guest, list func() []int) {
	s.mu.Lock()
	end := g.on.EndWork
	s.mu.Unlock()
	if g.device != InMPS || end == nil {
		return
	}
	if pids := list(); len(pids) > 0 {
		end(pids)
	}
}

// end ends what is left of a guest, and forgets it.
func (s *Server) end(g *guest, log zerolog.Logger) {
	group := s.groupOf(g)
	if err := s.killGroup(g); err != nil {
		log.Error().Err(err).Msg("cannot kill all processes of a guest")
	}
	if err := group.Remove(); err != nil {
		log.Warn().Err(err).Msg("cannot remove the group of a guest")
	}
	s.mu.Lock()
	s.guests = slices.DeleteFunc(s.guests, func(other *guest) bool { return other == g })
	if g.device == InMPS && g.pid != 0 && !g.judged {
		const enough = maxGuests
		s.left = append(s.left, departure{key: g.request.Key, on: g.on, at: time.Now()})
		s.left = s.left[max(0, len(s.left)-enough):]
		select {
		case s.ended <- g.on.Name:
		default: // as many are already waiting
		}
	}
	select {
	case <-g.over:
	default:
		close(g.over)
	}
	s.mu.Unlock()
	log.Info().Dur("lived_ms", time.Since(g.since)).Msg("guest ended")
}

func (s *Server) groupOf(g *guest) Group {
	s.mu.Lock()
	defer s.mu.Unlock()
	return g.group
}

// freeze pauses a guest, or lets it run again. A frozen guest cannot give up the GPU, so a swapping guest
// does so before.
func (s *Server) freeze(g *guest, frozen bool) error {
	if !g.request.Swap {
		return s.freezeGroup(g, frozen)
	}
	g.changes.Lock()
	defer g.changes.Unlock()
	pids := s.groupOf(g).PIDs()
	if frozen {
		if err := g.on.swap.pause(pids); err != nil {
			return fmt.Errorf("pause guest %s: %w; stop it, or try again", g.name, err)
		}
	}
	err := s.freezeGroup(g, frozen)
	if !frozen || err != nil {
		g.on.swap.resume(pids)
	}
	return err
}

func (s *Server) freezeGroup(g *guest, frozen bool) error {
	s.mu.Lock()
	state, group := g.state, g.group
	s.mu.Unlock()
	if state != control.GuestRunning && state != control.GuestPaused {
		return fmt.Errorf("change guest %s: it is %s", g.name, state)
	}
	if err := group.Freeze(frozen); err != nil {
		return fmt.Errorf("change guest %s: %w", g.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.state == state {
		g.state = control.GuestRunning
		if frozen {
			g.state = control.GuestPaused
		}
	}
	return nil
}

// stop ends a guest: SIGTERM, after StopTimeout SIGKILL. It returns when no process is left.
func (s *Server) stop(g *guest, why string) {
	s.mu.Lock()
	first := g.state != control.GuestStopping
	g.state = control.GuestStopping
	group := g.group
	s.mu.Unlock()
	if first {
		send(g.link, control.GuestAnswer{Ended: why})
		if g.request.Swap {
			g.on.swap.resume(group.PIDs()) // a paused program may need a turn to save its state
		}
		s.endWork(g, func() []int {
			return slices.DeleteFunc(group.PIDs(), func(pid int) bool { return survives(pid, syscall.SIGTERM) })
		})
		terminate(group)
	}
	select {
	case <-g.over:
		return
	case <-time.After(s.o.StopTimeout):
	}
	s.kill(g, "")
	<-g.over
}

// terminate lets all processes of a guest end. Stopped and frozen ones do not see the signal before they run.
func terminate(g Group) {
	g.Signal(syscall.SIGTERM)
	g.Signal(syscall.SIGCONT)
	_ = g.Freeze(false) // if this fails, SIGKILL follows
}

// kill ends a guest at once. Its connection may stay open, so kill marks its end itself.
func (s *Server) kill(g *guest, why string) {
	s.mu.Lock()
	first := !g.killed
	g.killed, g.state = true, control.GuestStopping
	s.mu.Unlock()
	if !first {
		return
	}
	if why != "" {
		send(g.link, control.GuestAnswer{Ended: why})
	}
	if err := s.killGroup(g); err != nil {
		s.o.Log.Error().Err(err).Str("guest", g.name).Msg("cannot kill all processes of a guest")
	}
	// `penstock run` closes the connection when its child has ended. If it is stopped, or has no child
	// yet, this makes the guest's goroutine go on.
	g.link.SetReadDeadline(time.Now().Add(sendTimeout))
}

// list describes the guests.
func (s *Server) list() []control.GuestStatus {
	s.measureAll().Wait()
	s.mu.Lock()
	list := make([]control.GuestStatus, len(s.guests))
	groups := make([]Group, len(s.guests))
	for i, g := range s.guests {
		groups[i] = g.group
		list[i] = control.GuestStatus{
			Name: g.name, PID: g.pid, State: g.state, Command: g.request.Command, Device: g.device, MemoryBytes: g.usedBytes,
			LimitBytes: g.limitBytes, NotEnforced: g.notEnforcedLocked(), Since: g.since,
		}
		if len(s.parts) > 1 {
			list[i].On = g.on.Name
		}
	}
	s.mu.Unlock()

	for i := range list {
		list[i].CPUMillis = groups[i].CPUTime().Milliseconds()
		if list[i].Device == OnCPU {
			list[i].MemoryBytes = residentBytes(groups[i].PIDs())
		}
	}
	return list
}

// NameOf returns the name of a guest for a command.
func NameOf(command string) string {
	name := []byte(path.Base(command))
	for i, c := range name {
		if control.CheckName(string(c)) != nil {
			name[i] = '-'
		}
	}
	if name = name[:min(len(name), 32)]; len(name) == 0 {
		return "guest"
	}
	return string(name)
}
