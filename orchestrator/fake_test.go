package orchestrator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/cpushare"
	"github.com/penstock/penstock/orchestrator/gpu"
)

// life says what a fake process does. The zero value behaves well and takes no time.
type life struct {
	refuse error // it cannot be started

	handshake, load, link time.Duration // how long each takes
	muteAt                control.State // it hangs instead of reporting this state, and reports none after it
	wrong                 control.State // it reports this state instead of loaded
	nonsense              bool          // it sends something other than a notice instead of loaded
	failsToLoad           string        // it gives this reason and exits

	dies         time.Duration // how long after its start it exits; 0: it does not exit unasked
	how          exit
	drains       time.Duration // how long it takes to end after a drain order
	ignoreDrain  bool
	ignoreTerm   bool
	ignoreOrders bool // it does not read its orders
	hungUp       bool // its end of the link is closed

	lingers time.Duration // how long it takes to end after SIGKILL

	// On a GPU.
	sms        func(control.Order) int // how many multiprocessors it counts after an order; nil: as many as it should
	moves      time.Duration           // how long a move takes
	warmUp     time.Duration           // how long it takes to get the rest of its batch sizes after a partial warm-up
	stuck      bool                    // a move never ends
	staysPut   string                  // it does not move, and gives this reason
	minGroups  int                     // the min number of groups that its model runs on
	blameless  bool                    // it loses the device because of the MPS server
	misanswers bool                    // its model answers wrongly
	losesFirst bool                    // it loses the device while it links, before it has used it
}

// maxTooFew is the reason of a process that cannot run on fewer groups than life.minGroups.
const tooFew = "a cluster does not fit"

// fakeSpawner makes processes that behave as lives says. It runs in a synctest bubble,
// on the bubble's time.
type fakeSpawner struct {
	lives func(spec) life // nil: all behave well

	mu      sync.Mutex
	started []*fakeProcess
}

var errNoProgram = errors.New("no such program")

func (s *fakeSpawner) spawn(sp spec) (process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &fakeProcess{
		spec: sp, id: 100 + len(s.started), born: time.Now(), living: true,
		out: make(chan event), woken: make(chan struct{}), asked: make(chan struct{}),
		reported: make(chan struct{}), killed: make(chan struct{}),
		moved: make(chan control.Order, 100), faulted: make(chan string, 1),
	}
	if s.lives != nil {
		p.life = s.lives(sp)
	}
	s.started = append(s.started, p)
	if p.life.refuse != nil {
		p.living = false
		return nil, p.life.refuse
	}
	go p.run()
	return p, nil
}

func (s *fakeSpawner) held() []heldProcess { return nil }

func (s *fakeSpawner) resume(heldProcess, key, cgroup.Counters) (process, error) {
	return nil, errors.New("not held")
}

func (s *fakeSpawner) drop(heldProcess, time.Duration) {}

func (s *fakeSpawner) close() error {
	if n := len(s.living()); n > 0 {
		return fmt.Errorf("%d fake processes are left", n)
	}
	return nil
}

func (s *fakeSpawner) living() []*fakeProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.started), func(p *fakeProcess) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.living
	})
}

// generation returns the process of a generation; nil if none was started.
func (s *fakeSpawner) generation(g uint32) *fakeProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.started {
		if p.spec.key.generation == g {
			return p
		}
	}
	return nil
}

type fakeProcess struct {
	spec spec
	life life
	id   int
	born time.Time
	out  chan event

	woken, asked, reported, killed chan struct{}
	moved                          chan control.Order
	faulted                        chan string

	mu        sync.Mutex
	living    bool
	orders    []control.Order
	signals   []syscall.Signal
	noted     json.RawMessage
	forgotten bool
}

func (p *fakeProcess) pid() int                  { return p.id }
func (p *fakeProcess) events() <-chan event      { return p.out }
func (p *fakeProcess) counters() cgroup.Counters { return cgroup.Counters{} }

func (p *fakeProcess) note(note json.RawMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noted = note
}

func (p *fakeProcess) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgotten = true
}

func (p *fakeProcess) order(o control.Order) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.ignoreOrders {
		return control.ErrPeerTimeout
	}
	if p.life.hungUp {
		return fmt.Errorf("write line: %w", control.ErrHungUp)
	}
	p.orders = append(p.orders, o)
	switch o.Do {
	case control.DoWake:
		close(p.woken) // closing it twice would panic: a process must be woken once
	case control.DoShare:
		p.moved <- o
	case control.DoDrain:
		close(p.asked)
	}
	return nil
}

// fault makes the process, if it serves, report that it lost its device, and end.
func (p *fakeProcess) fault(why string) { p.faulted <- why }

// counts returns how many multiprocessors the process finds after an order.
func (p *fakeProcess) counts(o control.Order) int {
	if p.life.sms != nil {
		return p.life.sms(o)
	}
	least, _ := gpu.PromisedSMs(fakeGPU, o.SMGroups, o.SharePercent)
	return least
}

// wake returns the order that woke the process.
func (p *fakeProcess) wake() control.Order {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.orders {
		if o.Do == control.DoWake {
			return o
		}
	}
	return control.Order{}
}

// signal panics if the process's note does not say yet why it is to end: an orchestrator that takes
// over now would call the end a failure.
func (p *fakeProcess) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, err := readSaved(p.noted); err != nil || n.Asked == "" && n.Fault == "" {
		panic(fmt.Sprintf("%s before the note has a reason: %s", sig, p.noted))
	}
	p.signals = append(p.signals, sig)
	switch sig {
	case syscall.SIGTERM:
		close(p.reported)
	case syscall.SIGKILL:
		close(p.killed)
	}
}

func (p *fakeProcess) got() (orders []control.OrderKind, signals []syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.orders {
		orders = append(orders, o.Do)
	}
	return orders, slices.Clone(p.signals)
}

// run plays the life, and at its end reports how it ended.
func (p *fakeProcess) run() {
	end := p.live()
	p.mu.Lock()
	p.living = false
	p.mu.Unlock()
	p.out <- event{exit: &end}
	close(p.out)
}

func (p *fakeProcess) live() exit {
	end := make(chan exit, 8)
	stop := make(chan struct{})
	var death sync.WaitGroup
	defer death.Wait()
	defer close(stop)
	after := func(trigger <-chan struct{}, delay time.Duration, e exit) {
		death.Go(func() {
			select {
			case <-trigger:
			case <-stop:
				return
			}
			select {
			case <-time.After(delay):
				end <- e
			case <-stop:
			}
		})
	}
	after(p.killed, p.life.lingers, exit{code: -1, signal: syscall.SIGKILL, ours: true})
	if !p.life.ignoreTerm {
		after(p.reported, 0, exit{code: -1, signal: syscall.SIGTERM, ours: true})
	}
	if p.life.dies > 0 {
		now := make(chan struct{})
		close(now)
		after(now, p.life.dies, p.life.how)
	}
	var life sync.WaitGroup
	defer life.Wait()
	ended := make(chan struct{})
	defer close(ended)
	life.Go(func() { p.report(end, ended) })
	return <-end
}

// report reports how far the process has come.
func (p *fakeProcess) report(end chan<- exit, ended <-chan struct{}) {
	wait := func(d time.Duration, c <-chan struct{}) bool {
		if c == nil {
			closed := make(chan struct{})
			close(closed)
			c = closed
		}
		select {
		case <-c:
		case <-ended:
			return false
		}
		select {
		case <-time.After(d):
			return true
		case <-ended:
			return false
		}
	}
	mute := false
	say := func(n control.Notice) {
		mute = mute || n.State == p.life.muteAt
		if !mute {
			select {
			case p.out <- event{notice: &n}:
			case <-ended:
			}
		}
	}
	if !wait(p.life.handshake, nil) {
		return
	}
	say(control.Notice{Version: control.Version, PID: p.id, State: control.Starting})
	if !wait(p.life.load, nil) {
		return
	}
	switch {
	case p.life.failsToLoad != "":
		say(control.Notice{State: control.Failed, Reason: p.life.failsToLoad})
		end <- exit{code: 1}
		return
	case p.life.nonsense:
		select {
		case p.out <- event{broken: fmt.Errorf("read notice: %w", control.ErrBadMessage)}:
		case <-ended:
		}
		return
	case p.life.wrong != "":
		say(control.Notice{State: control.Active})
		say(control.Notice{State: p.life.wrong})
		return
	}
	say(control.Notice{State: control.Loaded})
	drain := func() {
		say(control.Notice{State: control.Draining})
		if wait(p.life.drains, nil) {
			end <- exit{}
		}
	}
	asked := p.asked
	if p.life.ignoreDrain {
		asked = nil
	}
	select {
	case <-p.woken:
	case <-asked:
		drain()
		return
	case <-ended:
		return
	}
	say(control.Notice{State: control.Linking})
	if !wait(p.life.link, nil) {
		return
	}
	gpu := p.spec.start.Device != control.DeviceCPU
	ready := control.Notice{State: control.Ready, PersistentBytes: 1000, EphemeralBytes: 200, WarmupMillis: 7}
	at := p.wake()
	lose := func(why string) {
		say(control.Notice{State: control.Failed, Reason: why, DeviceLost: true, Blameless: p.life.blameless})
		end <- exit{code: 1}
	}
	if gpu {
		if p.life.losesFirst {
			lose("no context")
			return
		}
		if p.life.misanswers {
			say(control.Notice{State: control.Failed, Reason: "wrong", WrongAnswers: true})
			end <- exit{code: 1}
			return
		}
		if len(at.SMGroups) < p.life.minGroups {
			say(control.Notice{State: control.Failed, Reason: tooFew, InfeasibleGroups: at.SMGroups})
			end <- exit{code: 1}
			return
		}
		ready.SMs, ready.SMGroups = p.counts(at), at.SMGroups
		ready.Batches, ready.WarmingUp = []int{1}, at.PartialWarmUp
	}
	say(ready)
	say(control.Notice{State: control.Active})
	if gpu && at.PartialWarmUp {
		if !wait(p.life.warmUp, nil) {
			return
		}
		say(control.Notice{State: control.Active, Batches: []int{1, 2}, EphemeralBytes: 400})
	}
	moved := p.moved
	if !gpu || p.life.stuck {
		moved = nil
	}
	for {
		select {
		case <-asked:
			drain()
			return
		case why := <-p.faulted:
			lose(why)
			return
		case o := <-moved:
			if !wait(p.life.moves, nil) {
				return
			}
			n := control.Notice{State: control.Active, Reason: p.life.staysPut}
			switch {
			case p.life.staysPut != "":
			case len(o.SMGroups) < p.life.minGroups:
				n.Reason, n.InfeasibleGroups = tooFew, o.SMGroups
			default:
				at = o
			}
			n.SMs, n.SMGroups = p.counts(at), at.SMGroups
			say(n)
		case <-ended:
			return
		}
	}
}

// fakeLink is the supervisor's end of a link. The test sends desired states, some of
// which are lost. The link keeps the last published state.
type fakeLink struct {
	desired chan control.Desired
	exists  atomic.Bool

	mu   sync.Mutex
	last control.Observed
}

func newFakeLink() *fakeLink {
	l := &fakeLink{desired: make(chan control.Desired, 1)}
	l.exists.Store(true)
	return l
}

func (l *fakeLink) PeerExists() bool { return l.exists.Load() }

func (l *fakeLink) Desired() <-chan control.Desired { return l.desired }

func (l *fakeLink) Publish(o control.Observed) error {
	o.Version = control.Version
	if err := o.Check(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = o
	return nil
}

func (l *fakeLink) observed() control.Observed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// fakeShares records what was applied, and refuses processes for which refuse returns
// true. It notes in wrong each share that is applied to a removed process, removed twice,
// or left behind.
type fakeShares struct {
	cpushare.Shares
	refuse func(name string) bool

	mu      sync.Mutex
	percent map[string]float64
	pids    map[string]int
	removed map[int]bool
	wrong   []string
}

var errNoQuota = errors.New("no quota")

func newFakeShares() *fakeShares {
	return &fakeShares{percent: map[string]float64{}, pids: map[string]int{}, removed: map[int]bool{}}
}

const fakeMechanism = "cgroup-v1"

func (s *fakeShares) Mechanism() string { return fakeMechanism }

func (s *fakeShares) Apply(name string, pid int, t control.Terms) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[name] = pid
	if s.removed[pid] {
		s.wrong = append(s.wrong, fmt.Sprintf("applied to %v after its end", name))
	}
	if s.refuse != nil && s.refuse(name) {
		return false, errNoQuota
	}
	s.percent[name] = t.SharePercent
	return true, nil
}

func (s *fakeShares) Spent(string) (total, demoted time.Duration) { return 0, 0 }

func (s *fakeShares) Yields() <-chan struct{} { return nil }
func (s *fakeShares) Yielding(string) bool    { return false }

func (s *fakeShares) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, applied := s.pids[name]
	if !applied {
		return nil // without a share it has no quota
	}
	if s.removed[pid] {
		s.wrong = append(s.wrong, fmt.Sprintf("removed %v twice", name))
	}
	s.removed[pid] = true
	delete(s.percent, name)
	return nil
}

func (s *fakeShares) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.percent {
		s.wrong = append(s.wrong, fmt.Sprintf("%v is left", name))
	}
	return nil
}

func (s *fakeShares) of(k key) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.percent[k.id()]
}

// applied reports whether a process was given any quota.
func (s *fakeShares) applied(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.percent[k.id()]
	return ok
}

var _ io.Writer = (*journal)(nil)

// journal keeps the log, to print it if the test fails.
type journal struct {
	mu   sync.Mutex
	text []byte
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.text = append(j.text, p...)
	return len(p), nil
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return string(j.text)
}
