package manager

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/aggregate"
	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/adaptive"
	"github.com/penstock/penstock/wire"
)

// function is one inference function: a model behind a UDP port. Its identity on
// the wire is the port; a request's identity inside is its slot, the same index
// in the aggregator, the request table and the rings.
type function struct {
	m          *Manager
	name       string
	log        zerolog.Logger
	config     configs.Function
	card       *models.Card   // the one wanted; control loop
	answers    *models.Card   // the one that a process served last, nil before the first; control loop
	older      []olderModel   // those before it, for rollbacks, the last one last; control loop
	configured configs.Change // how a share shall change, and how it does here
	change     configs.Change
	geometry   shm.Geometry
	replay     configs.Replay // fixed
	// setup is the one in force; the control loop writes it under mu. setups has that of each
	// card that a process runs or shall run; control loop.
	setup
	setups map[*models.Card]setup

	receivers []*receiver  // one a source, fixed; their sources have one port and one slab
	closeSlab func() error // when nobody uses the sources' slab any more
	table     *shm.Table
	threads   sync.WaitGroup // receive and reply
	closed    atomic.Bool    // the receive thread shall end
	version   atomic.Uint32  // of the model that serves, for requests that are not run
	played    atomic.Bool    // the capture that feeds it has ended

	// mu guards the flights and the instances' rings: receive threads publish, reply
	// threads end. It is held for what a burst made whole, and waits for nothing: the
	// one system call under it wakes a sleeping process.
	mu      adaptive.Mutex
	flights []flight // by slot
	ended   uint64   // requests that were whole and have been answered
	// owners are the receivers whose aggregators have the slots that are in flight.
	// Written under mu; read without by the reply thread that has the slot's answer.
	owners []atomic.Uint32

	instances []*instance // fixed once the threads run

	// Owned by the control loop.
	removing  bool
	removeBy  time.Time // when patience with what is unanswered ends
	replacing bool
	held      string // why the function is held back; empty where it is not
	trial     *trial // nil once it has served, and where the configuration has it
	leaving   uint16 // the port before its last change, which stays open until leavesAt
	leavesAt  time.Time
	byHand    float64 // what each instance was given by hand, in percent, where shares do not tune themselves; else 0

	// Counters for status and metrics.
	accepted, replied atomic.Uint64
	results           [wire.NumStatuses]atomic.Uint64
	swaps, hangs      atomic.Uint64
	unsent            atomic.Uint64 // datagrams
	persistentBytes   atomic.Int64
	ephemeralBytes    atomic.Int64
	idle              idleTimes
}

// olderModel is a model that a function ran before.
type olderModel struct {
	card *models.Card
	name string // by which it is found: a card's name or file
}

// maxOlder is how many models a function can be rolled back over.
const maxOlder = 16

// flight is a whole request on its way through an instance.
type flight struct {
	instance  *instance     // nil: the slot is not in flight
	published time.Duration // runclock.Now
	answered  bool          // at its deadline: the slot is awaited, the client is not
}

// leastResultBytes leaves room for a replacement that says more than the model
// that a function begins with.
const leastResultBytes = 4096

// newFunction opens the port and makes the memory; no thread runs yet.
func newFunction(m *Manager, c configs.Function, card *models.Card) (_ *function, err error) {
	f := &function{
		m: m, name: c.Name, config: c, card: card,
		log:        m.log.With().Str("if", c.Name).Logger(),
		configured: m.cfg.ChangeOf(c),
		replay:     c.Replay,
		setup:      m.setupOf(c, card),
	}
	f.setups = map[*models.Card]setup{card: f.setup}
	f.change = m.device.changeOn(f.configured)
	minimum := min(int(m.cfg.Aggregate.MinimumPiece), card.Input.WireBytes())
	// A piece that straddled two runs of free slab needs two descriptors.
	const descriptors = 2
	pieces := (card.Input.WireBytes() + minimum - 1) / minimum
	f.geometry = shm.Geometry{
		MaxPieces:   uint32(descriptors * pieces),
		ResultBytes: uint32(max(leastResultBytes, card.ResultBytes())),
	}
	f.version.Store(card.Version)

	defer func() {
		if err != nil {
			f.close()
		}
	}()
	sources, closeSlab, err := m.openSource(c)
	if err != nil {
		return nil, fmt.Errorf("open port of %s: %w", c.Name, err)
	}
	f.closeSlab = closeSlab
	slab := sources[0].Slab().Bytes()
	slots := cmp.Or(m.cfg.Aggregate.Slots, aggregate.AutoSlots(len(slab), card.Input.WireBytes()))
	f.geometry.Slots = uint32(slots)
	f.flights = make([]flight, slots)
	f.owners = make([]atomic.Uint32, slots)
	for i, src := range sources {
		f.receivers = append(f.receivers, &receiver{f: f, index: i, source: src})
	}
	if f.table, err = shm.NewTable("penstock-"+c.Name+"-requests", f.geometry); err != nil {
		return nil, fmt.Errorf("make request table of %s: %w", c.Name, err)
	}
	aggregators := aggregate.NewSeveral(len(sources), aggregate.Config{
		Slots:         slots,
		Follow:        m.cfg.Aggregate.Slots == 0,
		RequestBytes:  card.Input.WireBytes(),
		MaxPieces:     int(f.geometry.MaxPieces),
		MinPieceBytes: minimum,
		SLO:           f.slo,
		Transit:       m.cfg.Transit,
		Deadline:      f.gatherTimeout(),
		AnsweredFor:   m.cfg.Aggregate.AnsweredFor,
		Trusted:       m.cfg.Trusted,
	}, slab, f.table)
	for i, r := range f.receivers {
		r.aggregate = aggregators[i]
	}
	for i := range c.Instances {
		in, err := newInstance(f, i)
		if err != nil {
			return nil, err
		}
		f.instances = append(f.instances, in)
	}
	return f, nil
}

// within is the part of the objective that is the node's.
func (f *function) within() time.Duration { return aggregate.Within(f.slo, f.m.cfg.Transit) }

// whole reports whether the instances have no shares: each may use the whole device.
func (f *function) whole() bool { return f.change == configs.ChangeNone }

// served reports whether a process serves one of the function's instances.
func (f *function) served() bool {
	return slices.ContainsFunc(f.instances, func(in *instance) bool { return in.pair.Active() != nil })
}

// run starts the data path's threads.
func (f *function) run() {
	for _, r := range f.receivers {
		f.threads.Go(r.receive)
	}
	for _, in := range f.instances {
		f.threads.Go(in.reply)
	}
}

// oldest is when the oldest unanswered request of an instance was handed to it;
// 0 where it has none.
func (f *function) oldest(in *instance) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	oldest := time.Duration(0)
	for i := range f.flights {
		if fl := &f.flights[i]; fl.instance == in && (oldest == 0 || fl.published < oldest) {
			oldest = fl.published
		}
	}
	return oldest
}

// inFlight is how many requests are whole and not answered.
func (f *function) inFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, in := range f.instances {
		n += in.inFlight
	}
	return n
}

// refuse turns new requests away; those that have begun go on.
func (f *function) refuse() {
	for _, r := range f.receivers {
		r.mu.Lock()
		r.aggregate.Drain()
		r.mu.Unlock()
	}
}

// resume ends a refuse.
func (f *function) resume() {
	for _, r := range f.receivers {
		r.mu.Lock()
		r.aggregate.Resume()
		r.mu.Unlock()
	}
}

// pending is how many requests have begun and not ended.
func (f *function) pending() int {
	s := f.counts()
	return s.Gathering + s.InFlight
}

// unanswered reports whether there are requests that have begun and whose answers have not
// left: an answer is on its way for a moment after its request has ended.
func (f *function) unanswered() bool {
	return f.pending() > 0 || f.replied.Load() != f.accepted.Load()
}

// localAddr is where the function listens.
func (f *function) localAddr() netip.AddrPort { return f.receivers[0].source.LocalAddr() }

// sources are what feeds the function.
func (f *function) sources() (all []ingest.Source) {
	for _, r := range f.receivers {
		all = append(all, r.source)
	}
	return all
}

// slab is where its datagrams lie.
func (f *function) slab() shm.Memory { return f.receivers[0].source.Slab() }

// sourceStats are the counters of all its sources; Shedding is that of the one that sheds most.
func (f *function) sourceStats() ingest.Stats {
	sum := f.receivers[0].source.Stats()
	for _, r := range f.receivers[1:] {
		s := r.source.Stats()
		sum.Datagrams += s.Datagrams
		sum.Bytes += s.Bytes
		sum.KernelDrops += s.KernelDrops
		sum.Shedding = max(sum.Shedding, s.Shedding)
		sum.Truncated += s.Truncated
		sum.NoRoom += s.NoRoom
		sum.HeldBytes += s.HeldBytes
		if f.m.ports.parted() {
			sum.SlabBytes += s.SlabBytes
		}
	}
	return sum
}

// giveUp has everything that is whole answered `failed`: no process will.
func (f *function) giveUp() {
	f.mu.Lock()
	for _, in := range f.instances {
		in.expireBefore = math.MaxInt64
	}
	f.mu.Unlock()
	for _, in := range f.instances {
		in.channel.Wake()
	}
}

// wantedPercent is the sum of the shares that the instances shall have.
func (f *function) wantedPercent() float64 {
	total := 0.0
	for _, in := range f.instances {
		total += in.pair.Share()
	}
	return total
}

// counts are the counters of all its aggregators.
func (f *function) counts() (sum aggregate.Stats) {
	for _, r := range f.receivers {
		r.mu.Lock()
		s := r.aggregate.Stats()
		r.mu.Unlock()
		sum.Add(&s)
	}
	return sum
}

// serving reports whether every instance has a process that serves.
func (f *function) serving() bool {
	for _, in := range f.instances {
		if q := in.pair.Active(); q == nil || q.State != control.Active {
			return false
		}
	}
	return true
}

// failure is why the last process of an instance that has none serving failed,
// empty where none did.
func (f *function) failure() string {
	if f.held != "" {
		return f.held
	}
	for _, in := range f.instances {
		if in.failure != "" {
			return in.failure
		}
	}
	return ""
}

// processes is how many processes there are, or should be.
func (f *function) processes() int {
	n := 0
	for _, in := range f.instances {
		n += len(in.pair.Processes())
	}
	return n
}

// watch looks for processes that hang.
func (f *function) watch() {
	now := runclock.Now()
	if f.held != "" && f.pending() > 0 {
		f.giveUp()
	}
	for _, in := range f.instances {
		in.watch(now)
	}
}

// wholePercent is what an instance without a share may use.
const wholePercent = 100

// sharePercent is the sum over the instances; all may use the same where they have no
// shares.
func (f *function) sharePercent() float64 {
	if f.whole() {
		return wholePercent
	}
	total := 0.0
	for _, in := range f.instances {
		total += in.sharePercent()
	}
	return total
}

// status is the function as a person or a load generator sees it.
func (f *function) status() control.FunctionStatus {
	src := f.sourceStats()
	s := control.FunctionStatus{
		Name: f.name, Address: f.m.ports.address().String(), Port: int(f.localAddr().Port()),
		SLOMillis:    float64(f.slo) / float64(time.Millisecond),
		SharePercent: f.sharePercent(), Change: string(f.change),
		Streams: f.streams, Receivers: len(f.receivers),
		Swaps: f.swaps.Load(), SwapIdle: f.idle.summary(),
		Accepted: f.accepted.Load(), Replied: f.replied.Load(),
		Failed: f.results[wire.StatusFailed].Load(), Lost: f.lost(),
		Hangs: f.hangs.Load(), HangTimeoutMillis: float64(f.hangTimeout) / float64(time.Millisecond),
		KernelDrops: src.KernelDrops, SheddingPercent: 100 * src.Shedding, HeldBytes: src.HeldBytes, InFlight: f.inFlight(),
		Input: control.InputStatus{
			Height: f.card.Input.Height, Width: f.card.Input.Width, Channels: f.card.Input.Channels,
			Bytes: f.card.Input.WireBytes(), WireType: string(f.card.Input.WireType), WireLayout: string(f.card.Input.WireLayout),
		},
		Model: f.card.Name, Version: f.card.Version,
		Unsaved: f.unsaved(),
	}
	if s.Guarantee = f.guaranteeStatus(); s.Guarantee != nil {
		s.SharePercent = s.Guarantee.Percent
	}
	s.Replay, s.ReplayEnded = f.replay.File, f.played.Load()
	if q := f.instances[0].pair.Active(); q != nil {
		s.Model, s.Version = q.Card.Name, q.Card.Version // the one that serves
	}
	for _, in := range f.instances {
		s.Limit = max(s.Limit, in.limit)
		if bound, why := in.boundBy(); s.Bound == "" {
			s.Bound, s.BoundWhy = bound, why
		}
		if in.fit == control.FitUnder || s.Fit == control.FitUnknown {
			s.Fit = in.fit
		}
		s.Instances = append(s.Instances, in.status())
	}
	return s
}

// lost counts requests that were accepted, are nowhere any more, and were never
// answered. The three numbers are written under mu, so it is exact at any time.
func (f *function) lost() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	flying := uint64(0)
	for i := range f.flights {
		if f.flights[i].instance != nil {
			flying++
		}
	}
	return f.accepted.Load() - f.ended - flying
}
