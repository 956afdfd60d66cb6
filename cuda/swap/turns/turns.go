// Package turns decides which guest of a GPU may run when their memory does not fit together.
// The problem is that of "nvshare: Practical GPU Sharing without Memory Size Constraints"
// (Alexopoulos and Mitropoulos, ICSE 2024). The package is pure: events and the time come in,
// commands go out.
//
// While the memory of all guests fits, all run. Otherwise one runs at a time:
//
//	Stopped --Go--> Entering --in--> Running --Stop--> Stopping --stopped--> Stopped
//	Stopped --Out--> Leaving --gone--> Out --Go--> Entering
//
// A stopped guest keeps its memory on the GPU until the guest whose turn it is needs the room.
// It then leaves whole. A paused guest leaves at once, and gets no turn.
//
// A guest that does not obey a command within the time Grace, while another waits, must be ended. It may
// run a kernel that never ends, or be a stopped process.
//
// The capacity of all guests together is measured: the GPU's free memory and what guests have on it.
// Guests report the free memory when they come, ask for memory, or begin a turn. The capacity therefore
// follows the memory that other programs take and give back.
package turns

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// Idle is how long a guest has no work before it gives up its turn.
	Idle = 5 * time.Millisecond
	// span is the length of the first part of a turn, in swaps. There a guest gives up its turn
	// only after it was idle for as long as a swap takes. To swap in a shorter pause would take
	// more time than the pause gives to others.
	span = 10
	// A turn lasts quantum swaps, if the guest is never idle and others wait: swaps take 1 % of the time.
	quantum = 100
	// minQuantum holds before the first swap and for small guests.
	minQuantum = time.Second
	// maxQuantum limits the wait of others, unless swaps would then take more than 1/span of the time. It is
	// the shortest turn that nvshare's authors evaluate (table 2).
	maxQuantum = 30 * time.Second
	// ReturnTime is how long the driver may take to free what a guest had that ended.
	ReturnTime = 5 * time.Second
	// Grace is how long a guest may take to obey Go, Stop or Evict while others wait. To copy 100 GiB
	// takes 2 s, and to pin the host memory for it another 2 s; times 15, because a guest has only idle CPU
	// time. Stop waits for queued work: 1,024 kernels of 50 ms take 51 s.
	Grace = time.Minute
	// messageTime is how long a guest's message may take.
	messageTime = 100 * time.Millisecond
)

// Phase says whether a guest runs, and whether its memory is on the GPU.
type Phase int

const (
	Out Phase = iota // its memory is on the host
	Stopped
	Running
	Entering // after Go
	Stopping // after Stop
	Leaving  // after Evict
)

func (p Phase) String() string {
	return []string{"out", "stopped", "running", "entering", "stopping", "leaving"}[p]
}

// Verb is what a guest must do.
type Verb string

const (
	Go   Verb = "go"   // bring your memory back and run
	Stop Verb = "stop" // finish your work; start none
	// Evict moves the guest's memory to the host.
	Evict Verb = "out"
	// Wanted says that others wait: give up the turn when idle.
	Wanted Verb = "wanted"
	// Empty answers a guest that is short of memory: no other guest can leave.
	Empty Verb = "empty"
	// End is for the server: the guest did not obey in time. Another process must end it, and Leave
	// follows.
	End Verb = "end"
)

// Command is for one guest.
type Command struct {
	Guest int
	Verb  Verb
	// Of Wanted: give up the turn after Early without work within the first Span of the turn,
	// after Idle later.
	Early, Span time.Duration
}

type guest struct {
	id       int
	bytes    int64 // that it may have
	made     int64 // that it has
	phase    Phase
	waiting  bool
	stuck    bool // its memory cannot leave
	short    bool // it found no memory after Stop
	reported bool // it knows that others wait
	paused   bool
	ended    bool // after End
	began    time.Duration
	asked    time.Duration // when it began to wait
	needed   time.Duration // when it was to have more than it has made
	ordered  time.Duration // when it got the command that it obeys in its phase
}

func (g *guest) resident() bool { return g.phase != Out }

func (g *guest) active() bool {
	return g.phase == Running || g.phase == Entering || g.phase == Stopping
}

// obeys reports whether the guest carries out a command.
func (g *guest) obeys() bool {
	return g.phase == Entering || g.phase == Stopping || g.phase == Leaving
}

// captures reports whether a guest cannot stop before it has made memory, because it records a graph. Other
// guests wait for their turn after Stop: if they find no memory, they report that once at most.
func (g *guest) captures() bool { return g.phase == Stopping && g.short && g.made < g.bytes }

// waits reports since when a guest waits for its turn, or for room for the memory that it makes.
func (g *guest) waits() (since time.Duration, ok bool) {
	if g.waiting && !g.paused {
		return g.asked, true
	}
	return g.needed, g.active() && g.made < g.bytes
}

// order gives a guest a command, and the phase in which it obeys.
func (g *guest) order(now time.Duration, p Phase, v Verb) Command {
	g.phase, g.ordered, g.short = p, now, false
	return Command{Guest: g.id, Verb: v}
}

// copied returns how long copies took, as the guest reports it. It cannot be longer than the guest obeyed:
// a guest that waits for memory counts that, and a turn lasts a multiple.
func (g *guest) copied(now, reported time.Duration) time.Duration {
	return min(reported, now-g.ordered)
}

// Lock is the state of one GPU. Its methods are not for several goroutines at once. Times are
// those of any clock that does not go back.
type Lock struct {
	// Grace replaces the constant in tests.
	Grace time.Duration

	limit, margin, host int64
	reserved            int64         // in addition to the margin
	capacity            int64         // as last measured
	shortage            int64         // until the next measurement, guests must have less
	settled             time.Duration // until then, memory may be missing that guests have

	guests   []*guest // in the order they came
	queue    []*guest // those that wait, in the order they asked
	evicting time.Duration
	swap     time.Duration
}

// New returns the lock of a GPU on which guests may have limit bytes together. They leave margin bytes of
// it free. The host can hold host bytes of them.
func New(limit, margin, host int64) *Lock {
	return &Lock{Grace: Grace, limit: limit, margin: margin, host: host, shortage: math.MaxInt64}
}

// Capacity is what guests may have together, in bytes.
func (l *Lock) Capacity() int64 { return l.capacity }

// Reserve sets how many bytes guests leave free in addition to the margin, from the next measurement on.
func (l *Lock) Reserve(bytes int64) { l.reserved = bytes }

// measure takes the GPU's free memory; a negative figure is unknown. While memory moves or is made,
// it is not known how much of it guests have, and the capacity stays. It may be measured too high if a
// guest makes memory in the meantime; Short then corrects it.
func (l *Lock) measure(now time.Duration, g *guest, free int64) {
	for _, other := range l.guests {
		making := other != g && other.active() && other.made != other.bytes
		if making || other.phase == Entering || other.phase == Leaving {
			return
		}
	}
	if free < 0 {
		return
	}
	for _, other := range l.guests {
		if other.resident() {
			free += other.made
		}
	}
	measured := min(l.limit, max(0, free-l.margin-l.reserved))
	if now >= l.settled || measured > l.capacity {
		l.capacity, l.shortage = measured, math.MaxInt64
	}
}

// unsettle keeps the capacity from being measured lower until a time.
func (l *Lock) unsettle(until time.Duration) { l.settled = max(l.settled, until) }

// ResidentBytes is what guests have on the GPU.
func (l *Lock) ResidentBytes() (n int64) {
	for _, g := range l.guests {
		if g.resident() {
			n += g.bytes
		}
	}
	return n
}

// Swap is how long the last change of turns took, for guests that do not fit together.
func (l *Lock) Swap() time.Duration { return l.swap }

// Phase returns a guest's phase and memory.
func (l *Lock) Phase(id int) (p Phase, bytes int64, waiting bool) {
	if g := l.find(id); g != nil {
		return g.phase, g.bytes, g.waiting
	}
	return Out, 0, false
}

func (l *Lock) find(id int) *guest {
	for _, g := range l.guests {
		if g.id == id {
			return g
		}
	}
	return nil
}

// Attach adds a guest. It has no memory and is Stopped. free is the GPU's free memory.
func (l *Lock) Attach(now time.Duration, id int, free int64) []Command {
	g := &guest{id: id, phase: Stopped, began: now}
	l.guests = append(l.guests, g)
	l.measure(now, g, free)
	return l.settle(now)
}

// Leave removes a guest whose connection ended, and with it its turn and its memory.
func (l *Lock) Leave(now time.Duration, id int) []Command {
	is := func(g *guest) bool { return g.id == id }
	l.guests = slices.DeleteFunc(l.guests, is)
	l.queue = slices.DeleteFunc(l.queue, is)
	l.unsettle(now + ReturnTime)
	return l.settle(now)
}

// Need asks for memory: bytes is what the guest then has in all. The guest may create it when
// it runs next, and reports that by Have. free is the GPU's free memory.
func (l *Lock) Need(now time.Duration, id int, bytes, free int64) (ok bool, commands []Command) {
	g := l.find(id)
	if g == nil {
		return false, nil
	}
	l.measure(now, g, free)
	if bytes < 0 || bytes > l.capacity {
		return false, l.settle(now)
	}
	all, stuck := bytes, bytes
	for _, other := range l.guests {
		if other != g {
			all += other.bytes
			if other.stuck {
				stuck += other.bytes
			}
		}
	}
	if stuck > l.capacity || (all > l.capacity && all > l.host) {
		return false, l.settle(now)
	}
	if g.made == g.bytes {
		g.needed = now
	}
	g.bytes = bytes
	return true, l.settle(now)
}

// Have reports that the guest needs only this much memory, and has made that much of it.
func (l *Lock) Have(now time.Duration, id int, bytes, made int64) []Command {
	if g := l.find(id); g != nil && 0 <= made && made <= bytes {
		g.bytes = min(g.bytes, bytes)
		g.made = min(g.bytes, made)
	}
	return l.settle(now)
}

// Ask reports that the guest waits for its turn.
func (l *Lock) Ask(now time.Duration, id int) []Command {
	if g := l.find(id); g != nil && !g.waiting {
		g.waiting = true
		l.enqueue(now, g)
	}
	return l.settle(now)
}

func (l *Lock) enqueue(now time.Duration, g *guest) {
	if g.waiting && !g.paused {
		g.asked = now
		l.queue = append(l.queue, g)
	}
}

func (l *Lock) dequeue(g *guest) {
	l.queue = slices.DeleteFunc(l.queue, func(q *guest) bool { return q == g })
}

// Pause makes a guest give up its turn, and its memory if the host can hold it. It then gets no turn
// until Resume.
func (l *Lock) Pause(now time.Duration, id int) []Command {
	if g := l.find(id); g != nil {
		g.paused = true
		l.dequeue(g)
	}
	return l.settle(now)
}

// Resume ends a pause.
func (l *Lock) Resume(now time.Duration, id int) []Command {
	if g := l.find(id); g != nil && g.paused {
		g.paused, g.stuck = false, false // memory that could not leave may be able to later
		l.enqueue(now, g)
	}
	return l.settle(now)
}

// Yielded reports whether a guest does nothing on the GPU after Pause. Its memory is on the host, or
// cannot leave.
func (l *Lock) Yielded(id int) bool {
	g := l.find(id)
	return g == nil || g.paused && (g.phase == Out || g.phase == Stopped && g.stuck)
}

// In reports that the guest runs; copies took that long. free is the GPU's free memory.
func (l *Lock) In(now time.Duration, id int, copies time.Duration, free int64) []Command {
	if g := l.find(id); g != nil && g.phase == Entering {
		g.phase, g.began, g.reported = Running, now, false
		if swap := l.evicting + g.copied(now, copies); swap > 0 {
			l.swap, l.evicting = swap, 0
		}
		l.measure(now, g, free)
	}
	return l.settle(now)
}

// Stopped reports that the guest's turn ended, on a command or after idleness.
func (l *Lock) Stopped(now time.Duration, id int) []Command {
	if g := l.find(id); g != nil && (g.phase == Running || g.phase == Stopping) {
		g.phase = Stopped
	}
	return l.settle(now)
}

// Gone reports that the guest's memory is on the host; copies took that long.
func (l *Lock) Gone(now time.Duration, id int, copies time.Duration) []Command {
	if g := l.find(id); g != nil && g.phase == Leaving {
		g.phase = Out
		l.evicting += g.copied(now, copies)
		l.unsettle(now + messageTime) // another guest may have read the free memory before
	}
	return l.settle(now)
}

// Stuck reports that the guest's memory cannot leave the GPU.
func (l *Lock) Stuck(now time.Duration, id int) []Command {
	if g := l.find(id); g != nil && g.phase == Leaving {
		g.phase, g.stuck = Stopped, true
	}
	return l.settle(now)
}

// Short reports that the GPU had less memory for the guest than the capacity says. Until the next
// measurement guests may have what did not fit, less one byte.
func (l *Lock) Short(now time.Duration, id int) []Command {
	g := l.find(id)
	if g == nil {
		return nil
	}
	evictable := slices.ContainsFunc(l.guests, func(other *guest) bool {
		return other != g && other.bytes > 0 && other.resident() && !other.stuck
	})
	if g.phase == Entering {
		g.ordered = now // it waits for memory that others have, and would go on with it
	}
	// Of two guests that cannot stop, only the first can get the room.
	blocked := slices.ContainsFunc(l.guests, func(other *guest) bool { return other != g && other.captures() })
	if !evictable || blocked {
		return []Command{{Guest: id, Verb: Empty}}
	}
	g.short = true
	total := l.ResidentBytes()
	if !g.resident() {
		total += g.bytes
	}
	l.shortage = min(l.shortage, total-1)
	return l.settle(now)
}

// Tick does what is due.
func (l *Lock) Tick(now time.Duration) []Command { return l.settle(now) }

// Deadline is when Tick is due.
func (l *Lock) Deadline() (at time.Duration, ok bool) {
	at = math.MaxInt64
	for _, g := range l.guests {
		if overdue, waited := l.overdue(g); waited {
			at = min(at, overdue)
		}
	}
	if holder := l.holder(); !l.fits() && holder != nil && holder.phase == Running && len(l.queue) > 0 {
		at = min(at, holder.began+l.turn())
	}
	return at, at < math.MaxInt64
}

// overdue is when a guest has obeyed a command for too long, if another waits.
func (l *Lock) overdue(g *guest) (at time.Duration, ok bool) {
	if !g.obeys() || g.ended {
		return 0, false
	}
	at = math.MaxInt64
	for _, other := range l.guests {
		if since, waits := other.waits(); waits && other != g {
			at = min(at, max(g.ordered, since)+l.Grace)
		}
	}
	return at, at < math.MaxInt64
}

// turn is how long a guest that is never idle keeps its turn while others wait.
func (l *Lock) turn() time.Duration {
	return max(minQuantum, min(quantum*l.swap, maxQuantum), span*l.swap)
}

func (l *Lock) fits() bool {
	var n int64
	for _, g := range l.guests {
		if !g.paused || g.resident() {
			n += g.bytes
		}
	}
	return n <= l.room()
}

// hostHolds reports whether the host can hold the memory of all guests.
func (l *Lock) hostHolds() bool {
	var n int64
	for _, g := range l.guests {
		n += g.bytes
	}
	return n <= l.host
}

func (l *Lock) room() int64 { return min(l.capacity, l.shortage) }

// holder is the guest whose turn it is. When guests no longer fit, several may be active. Guests that cannot be
// stopped now come first.
func (l *Lock) holder() *guest {
	for _, holds := range []func(*guest) bool{
		func(g *guest) bool { return g.phase == Entering },
		(*guest).captures,
		func(g *guest) bool { return g.phase == Running },
		func(g *guest) bool { return g.phase == Stopping },
	} {
		if i := slices.IndexFunc(l.guests, holds); i >= 0 {
			return l.guests[i]
		}
	}
	return nil
}

// moving reports whether the memory of a guest may be on its way.
func (l *Lock) moving() bool {
	return slices.ContainsFunc(l.guests, func(g *guest) bool { return g.phase == Entering || g.phase == Leaving })
}

func (l *Lock) start(now time.Duration, g *guest) Command {
	g.waiting = false
	l.dequeue(g)
	return g.order(now, Entering, Go)
}

// settle compares what is with what should be:
//
//  1. Guests that have not obeyed in time must end. Paused guests leave the GPU.
//  2. If all others fit, they run.
//  3. Otherwise one holds the GPU, and all others stop. Its turn ends if others wait.
//  4. If none holds it, the next one in the queue begins when there is room.
func (l *Lock) settle(now time.Duration) (commands []Command) {
	for _, g := range l.guests {
		if at, ok := l.overdue(g); ok && now >= at {
			g.ended = true
			commands = append(commands, Command{Guest: g.id, Verb: End})
		}
		if g.paused {
			commands = append(commands, l.yield(now, g)...)
		}
	}
	if l.fits() {
		return append(commands, l.startAll(now)...)
	}

	holder := l.holder()
	for _, g := range l.guests {
		if g != holder && g.phase == Running {
			commands = append(commands, g.order(now, Stopping, Stop))
		}
	}
	if holder != nil {
		return append(commands, l.continueTurn(now, holder)...)
	}
	return append(commands, l.startNext(now)...)
}

// yield makes a paused guest leave the GPU.
func (l *Lock) yield(now time.Duration, g *guest) []Command {
	switch {
	case g.phase == Running:
		return []Command{g.order(now, Stopping, Stop)}
	case g.phase == Stopped && !l.hostHolds():
		g.stuck = true
	case g.phase == Stopped && !g.stuck:
		return []Command{g.order(now, Leaving, Evict)}
	}
	return nil
}

// startAll starts the guests that wait, when all guests fit. One comes back at a time: two could each
// wait for the memory that the other has.
func (l *Lock) startAll(now time.Duration) (commands []Command) {
	for _, g := range slices.Clone(l.queue) {
		if g.phase == Stopped || g.phase == Out && !l.moving() {
			commands = append(commands, l.start(now, g))
		}
	}
	return commands
}

// continueTurn makes room for the guest whose turn it is. If others wait, it ends the turn when its time is
// over, and before that tells the guest that they do.
func (l *Lock) continueTurn(now time.Duration, holder *guest) (commands []Command) {
	if !slices.ContainsFunc(l.guests, func(g *guest) bool { return g != holder && g.active() }) {
		commands, _ = l.evict(now, holder)
	}
	switch {
	case holder.phase != Running || len(l.queue) == 0:
	case now >= holder.began+l.turn():
		commands = append(commands, holder.order(now, Stopping, Stop))
	case !holder.reported:
		holder.reported = true
		commands = append(commands, Command{Guest: holder.id, Verb: Wanted, Early: max(Idle, l.swap), Span: span * l.swap})
	}
	return commands
}

// startNext begins the next turn, or makes room for it.
func (l *Lock) startNext(now time.Duration) (commands []Command) {
	for _, g := range l.queue {
		if g.phase != Stopped && g.phase != Out {
			return commands // it leaves; its turn comes after that
		}
		evictions, fits := l.evict(now, g)
		commands = append(commands, evictions...)
		if fits {
			return append(commands, l.start(now, g))
		}
		if slices.ContainsFunc(l.guests, func(other *guest) bool { return other.phase == Leaving }) {
			return commands
		}
		// Memory that cannot leave is in the way: try the next.
	}
	return commands
}

// evict makes room for a guest: others leave, those that ran longest ago first. It reports
// whether there is room now.
func (l *Lock) evict(now time.Duration, g *guest) (commands []Command, fits bool) {
	var resident, leaving int64
	var idle []*guest
	for _, other := range l.guests {
		if other == g || !other.resident() {
			continue
		}
		resident += other.bytes
		if other.phase == Leaving {
			leaving += other.bytes
		} else if other.phase == Stopped && !other.stuck && other.bytes > 0 {
			idle = append(idle, other)
		}
	}
	slices.SortStableFunc(idle, func(a, b *guest) int { return cmp.Compare(a.began, b.began) })
	for _, other := range idle {
		if resident-leaving+g.bytes <= l.room() {
			break
		}
		leaving += other.bytes
		commands = append(commands, other.order(now, Leaving, Evict))
	}
	// With every other guest gone it runs, whatever the capacity says: the GPU decides.
	return commands, resident+g.bytes <= l.room() || resident == 0
}
