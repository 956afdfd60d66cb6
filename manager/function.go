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

// function is one inference function: a model behind a UDP port. On the wire the port
// identifies it. Inside the node a request is identified by its slot: the same index in the
// aggregator, the request table and the rings.
type function struct {
	m          *Manager
	name       string
	log        zerolog.Logger
	config     configs.Function
	card       *models.Card   // the desired model; control loop
	answers    *models.Card   // the model that served last, nil before the first; control loop
	older      []olderModel   // the models before it, newest last, for rollbacks; control loop
	configured configs.Change // the configured way to change a share, and the way on this device
	change     configs.Change
	geometry   shm.Geometry
	replay     configs.Replay // fixed
	// setup is the current setup; the control loop writes it under mu. setups has one for each
	// card that a process runs or is going to run; control loop.
	setup
	setups map[*models.Card]setup

	receivers []*receiver  // one per source, fixed; their sources share one port and one slab
	closeSlab func() error // for when the sources' slab has no user left
	table     *shm.Table
	threads   sync.WaitGroup // receive and reply
	closed    atomic.Bool    // tells the receive threads to end
	version   atomic.Uint32  // of the serving model, for requests that are not run
	played    atomic.Bool    // the replayed capture has ended

	// mu guards the flights and the instances' rings: receive threads publish requests, reply
	// threads end them. It is held for the requests that one burst completed. Its holder never
	// blocks: its one system call wakes a sleeping process.
	mu      adaptive.Mutex
	flights []flight // by slot
	ended   uint64   // requests that were complete and have been answered
	// owners has, for each slot in flight, the receiver whose aggregator holds it. Threads
	// write it under mu. The reply thread that has the slot's answer reads it without.
	owners []atomic.Uint32

	instances []*instance // fixed once the threads run

	// Owned by the control loop.
	removing  bool
	removeBy  time.Time // when the manager stops waiting for answers
	replacing bool
	held      string // why the function is held back; "" if it is not
	trial     *trial // nil once it has served, and for functions of the configuration
	leaving   uint16 // the old port, which stays open until leavesAt
	leavesAt  time.Time
	byHand    float64 // percent per instance that was set by hand, if shares are not tuned; else 0

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
	name string // finds the model: a card's name or file
}

// maxOlder is how many models back a function can be rolled back.
const maxOlder = 16

// flight is a complete request on its way through an instance.
type flight struct {
	instance  *instance     // nil: the slot is not in flight
	published time.Duration // runclock.Now
	answered  bool          // the client got `late` at the deadline; the slot is still out
}

// leastResultBytes is the minimum size of a result. It leaves room for a later model with
// larger results than the first one's.
const leastResultBytes = 4096

// newFunction opens the port and allocates the memory. It starts no thread.
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
	// A fragment that crosses two free runs of the slab needs two descriptors.
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

// within is the part of the objective that the node may use.
func (f *function) within() time.Duration { return aggregate.Within(f.slo, f.m.cfg.Transit) }

// whole reports whether the instances have no shares, so that each may use the whole device.
func (f *function) whole() bool { return f.change == configs.ChangeNone }

// served reports whether any instance of the function has an active process.
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

// oldest returns when the instance received its oldest unanswered request; 0 if it has none.
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

// inFlight returns how many requests are complete and not answered.
func (f *function) inFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, in := range f.instances {
		n += in.inFlight
	}
	return n
}

// refuse rejects new requests. Requests that have begun continue.
func (f *function) refuse() {
	for _, r := range f.receivers {
		r.mu.Lock()
		r.aggregate.Drain()
		r.mu.Unlock()
	}
}

// resume accepts requests again after refuse.
func (f *function) resume() {
	for _, r := range f.receivers {
		r.mu.Lock()
		r.aggregate.Resume()
		r.mu.Unlock()
	}
}

// pending returns how many requests have begun and not ended.
func (f *function) pending() int {
	s := f.counts()
	return s.Gathering + s.InFlight
}

// unanswered reports whether a request's answer has yet to be sent. For a moment a request has
// ended while its answer is still on its way.
func (f *function) unanswered() bool {
	return f.pending() > 0 || f.replied.Load() != f.accepted.Load()
}

// localAddr is the address that the function listens on.
func (f *function) localAddr() netip.AddrPort { return f.receivers[0].source.LocalAddr() }

// sources returns the sources that feed the function.
func (f *function) sources() (all []ingest.Source) {
	for _, r := range f.receivers {
		all = append(all, r.source)
	}
	return all
}

// slab is the memory that holds the function's datagrams.
func (f *function) slab() shm.Memory { return f.receivers[0].source.Slab() }

// sourceStats adds up the counters of all sources; Shedding is the highest of them.
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

// giveUp answers all complete requests with `failed`, because no process will answer them.
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

// wantedPercent is the sum of the desired shares of the instances.
func (f *function) wantedPercent() float64 {
	total := 0.0
	for _, in := range f.instances {
		total += in.pair.Share()
	}
	return total
}

// counts adds up the counters of all aggregators.
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

// failure tells why the last process failed, for an instance without an active process. It is
// "" if none failed.
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

// processes counts the processes that exist or should exist.
func (f *function) processes() int {
	n := 0
	for _, in := range f.instances {
		n += len(in.pair.Processes())
	}
	return n
}

// watch looks for hung processes.
func (f *function) watch() {
	now := runclock.Now()
	if f.held != "" && f.pending() > 0 {
		f.giveUp()
	}
	for _, in := range f.instances {
		in.watch(now)
	}
}

// wholePercent is the limit of an instance without a share.
const wholePercent = 100

// sharePercent is the sum over the instances. Instances without shares all use the same device,
// so it counts once.
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

// status describes the function for users and load generators.
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
		s.Limit = max(s.Limit, in.batching.Limit)
		if bound, why := in.boundBy(); s.Bound == "" {
			s.Bound, s.BoundWhy = bound, why
		}
		if in.batching.Fit == control.FitUnder || s.Fit == control.FitUnknown {
			s.Fit = in.batching.Fit
		}
		s.Instances = append(s.Instances, in.status())
	}
	return s
}

// lost counts accepted requests that were never answered and are no longer anywhere. The three
// numbers are written under mu, so the count is exact at any time.
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
