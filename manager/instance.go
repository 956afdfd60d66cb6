package manager

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// instance is one instance of a function: a channel, the tensors that its active
// process and its shadow share, and the policy that says which is which. All but
// the fields of the reply thread belong to the control loop.
type instance struct {
	m       *Manager
	f       *function
	index   int
	log     zerolog.Logger
	channel *shm.Channel
	closed  atomic.Bool // the reply thread shall end

	// Owned by the control loop.
	pair    *pair.Pair
	tensors map[*models.Card]*shm.Region // by the card whose tensors they are
	conns   map[uint32]*control.AttachConn
	pids    map[uint32]int
	dying   map[uint32]time.Time // ended, and nobody has said why yet: until when to wait
	fit     control.Fit
	bound   string
	limit   float64
	cpu     control.Report // the last report, for its CPU time
	failure string         // why the last process failed; empty once one serves
	// lastFailure is of the last process that failed, nil if none has.
	lastFailure *control.ProcessFailure
	promoted    int64                // when the ring was given to somebody last, shm.Now
	since       time.Duration        // the same moment by runclock.Now, as all times of this struct that are a time.Duration
	wholeAt     time.Duration        // when a process got the last of its batch sizes, the last time
	handed      handovers            // those that were noted
	unheard     map[uint32]bool      // gone, and the orchestrator has not said whether with the GPU
	doubts      map[uint32]time.Time // failed while linking, and until when that may prove to be a fault of the GPU
	seen        map[uint32]sight     // what processes say they run on, by generation
	// On a GPU whose multiprocessors are handed out: the groups ordered, since when,
	// whether more are to come when others have left, and what each generation was
	// desired on last.
	groups    []int
	orderedAt time.Duration
	waits     bool
	last      map[uint32][]int
	floors    map[*models.Card]floor // of those that did not run on the groups that they had
	short     bool                   // there are not as many groups as they need
	visited   map[string]bool        // the sets of groups that the active process was desired on
	noted     []int                  // the last of them
	ran, runs *models.Card           // what the process that had the ring before, and the one that has it, run
	replaced  chan error             // waits for the end of a replacement; nil otherwise
	load      instanceLoad
	entitled  entitlement
	// cpuPerRequest is a smoothed mean, 0 where it is not known.
	cpuPerRequest time.Duration

	// Written under function.mu.
	inFlight int     // requests that this instance has
	serving  bool    // a process has been given the ring
	weight   float64 // its share, for choosing among instances
	arrivals int     // requests, ever
	tally    tally
	// What the reply thread must answer for processes that cannot: what these
	// generations had started, and what was published before that time.
	abandoned    []uint32
	expireBefore time.Duration

	// When requests were answered well: the last time, and the first since a process
	// was given the ring, 0 for not yet. shm.Now, written by the reply thread.
	lastGood, firstGood atomic.Int64
	// answeredAt is lastGood by runclock.Now.
	answeredAt atomic.Int64
	// resting: the reply thread looks for nothing but replies.
	resting atomic.Bool
}

// sight is what a process uses of a GPU, and which batch sizes it runs, as it says.
type sight struct {
	sms     int
	groups  []int
	batches []int
	growing bool // it is getting more
	spent   spending
}

// handovers are those that a generation has reported.
type handovers struct {
	generation uint32
	count      uint64
}

func newInstance(f *function, index int) (*instance, error) {
	channel, err := shm.NewChannel(fmt.Sprintf("penstock-%s-%d", f.name, index), f.geometry)
	if err != nil {
		return nil, fmt.Errorf("make rings of %s: %w", f.name, err)
	}
	in := &instance{
		m: f.m, f: f, index: index,
		log:     f.log.With().Int("instance", index).Logger(),
		pair:    pair.New(f.card, 0), // its share comes before its first process
		channel: channel,
		tensors: map[*models.Card]*shm.Region{},
		conns:   map[uint32]*control.AttachConn{},
		pids:    map[uint32]int{},
		dying:   map[uint32]time.Time{},
		seen:    map[uint32]sight{},
		unheard: map[uint32]bool{},
		doubts:  map[uint32]time.Time{},
		last:    map[uint32][]int{},
		floors:  map[*models.Card]floor{},
		visited: map[string]bool{},
	}
	in.pair.StartAfter(f.m.generations[place{f.name, index}])
	in.setChange()
	if f.m.device.known {
		if err := in.makeTensors(f.card); err != nil {
			channel.Close()
			return nil, err
		}
	}
	return in, nil
}

// setChange brings a share in as the function says.
func (in *instance) setChange() {
	in.pair.InPlace = in.f.change == configs.ChangeInPlace || in.f.change == configs.ChangePartition || in.f.whole()
	in.pair.Restart = in.f.change == configs.ChangeRestart
}

// makeTensors makes the input and output buffers of a card's largest batch, which
// all processes that run the card share (paper 3.4). The device must be known.
func (in *instance) makeTensors(card *models.Card) error {
	if in.tensors[card] != nil {
		return nil
	}
	t, err := shm.Create(fmt.Sprintf("penstock-%s-%d-tensors", in.f.name, in.index), in.tensorBytes(card.TensorBytes(), card.OutputBytes()), shm.Options{Writable: true})
	if err != nil {
		return fmt.Errorf("make tensors of %s: %w", in.f.name, err)
	}
	in.tensors[card] = t
	return nil
}

// dropTensors gives the buffers of cards back that no process runs any more.
func (in *instance) dropTensors() {
	for card, t := range in.tensors {
		if !in.uses(card) {
			t.Close()
			delete(in.tensors, card)
		}
	}
}

// uses reports whether a card is wanted, or a process has it.
func (in *instance) uses(card *models.Card) bool {
	return card == in.pair.Card() || slices.ContainsFunc(in.pair.Processes(), func(q *pair.Process) bool { return q.Card == card })
}

// step carries out what the policy orders.
func (in *instance) step() {
	for _, c := range in.pair.Step() {
		switch c.Kind {
		case pair.SetEpoch:
			in.channel.SetEpoch(c.Generation)
			in.promoted, in.since = shm.Now(), runclock.Now()
			in.firstGood.Store(0)
			in.f.answers = in.pair.Active().Card
			in.ran, in.runs = in.runs, in.pair.Active().Card
			clear(in.visited)
			in.setServing(true)
			in.log.Debug().Uint32("generation", c.Generation).Msg("ring handed over")
		case pair.Reclaim:
			in.reclaim(c.Generation)
		case pair.Promoted:
			in.f.swaps.Add(1)
			in.log.Info().Uint32("generation", c.Generation).Float64("share_percent", in.pair.Share()).Msg("shadow takes over")
		case pair.Replaced:
			in.f.version.Store(in.pair.Card().Version)
			in.log.Info().Uint32("model_version", in.pair.Card().Version).Msg("processes replaced")
			if in.ran == nil || !reflect.DeepEqual(in.ran, in.runs) {
				in.forget()
				in.m.shareReplaced(in)
			}
			in.load = instanceLoad{} // it was judged by another objective
			in.settle(nil)
		case pair.Rejected:
			in.log.Error().Str("reason", c.Reason).Msg("new model refused; the old one goes on")
			in.settle(fmt.Errorf("new model of %s refused, the old one goes on: %s", in.f.name, c.Reason))
		}
	}
}

// reclaim takes the ring from a generation that is gone; the reply thread answers
// what it had started, after what it had finished.
func (in *instance) reclaim(generation uint32) {
	in.hangUp(generation)
	delete(in.pids, generation)
	delete(in.dying, generation)
	delete(in.seen, generation)
	delete(in.doubts, generation)
	delete(in.unheard, generation)
	delete(in.last, generation)
	in.setServing(in.pair.Active() != nil)
	in.f.mu.Lock()
	in.abandoned = append(in.abandoned, generation)
	in.f.mu.Unlock()
	in.channel.Disown(generation)
	in.channel.Wake()
	in.dropTensors()
}

func (in *instance) setServing(serving bool) {
	in.f.mu.Lock()
	in.serving = serving
	in.f.mu.Unlock()
}

// replace asks for another model; the end of it comes through the channel.
func (in *instance) replace(card *models.Card) <-chan error {
	in.settle(fmt.Errorf("another replacement of %s was asked for", in.f.name))
	in.replaced = make(chan error, 1)
	end := in.replaced
	in.pair.Replace(card)
	if q := in.pair.Active(); q != nil && q.Card == card {
		in.settle(nil) // it serves already
	}
	return end
}

// setShare asks for another share; 0 is none, the whole device.
func (in *instance) setShare(percent float64) {
	in.pair.SetShare(percent)
	in.m.device.redivide = true
	if in.f.whole() {
		percent = wholePercent
	}
	in.f.mu.Lock()
	in.weight = percent
	in.f.mu.Unlock()
}

// sharePercent is the share in force: the active process's.
func (in *instance) sharePercent() float64 {
	if in.f.whole() {
		return wholePercent
	}
	if q := in.pair.Active(); q != nil {
		return q.SharePercent
	}
	return in.pair.Share()
}

// status is the instance as a person sees it.
func (in *instance) status() control.InstanceStatus {
	s := control.InstanceStatus{SharePercent: in.sharePercent(), Whole: in.f.whole(), SMGroups: in.groups, LastFailure: in.lastFailure}
	for _, q := range in.pair.Processes() {
		on := in.seen[q.Generation]
		s.Processes = append(s.Processes, control.ProcessStatus{
			Generation: q.Generation, PID: in.pids[q.Generation], Role: q.Role, State: q.State, Reason: cmp.Or(q.Reason, in.f.held),
			Batches: on.batches, Growing: on.growing, SMs: on.sms, SMGroups: on.groups,
		})
	}
	return s
}

// forget drops what was learnt of a model that serves no more.
func (in *instance) forget() {
	in.load, in.cpuPerRequest, in.cpu = instanceLoad{}, 0, control.Report{}
	in.entitled.fixed, in.entitled.cost = 0, 0
	in.f.mu.Lock()
	in.tally = tally{}
	in.f.mu.Unlock()
}

// settle ends a replacement, if one is waited for.
func (in *instance) settle(err error) {
	if in.replaced != nil {
		in.replaced <- err
		in.replaced = nil
	}
}

// desire appends the processes that should exist.
func (in *instance) desire(to []control.DesiredProcess) []control.DesiredProcess {
	for _, q := range in.pair.Processes() {
		role, with := q.Role, in.f.setupFor(q.Card)
		groups, wait := in.groupsOf(q.Generation, role)
		if wait {
			role = control.Shadow
		}
		p := control.DesiredProcess{
			IF: in.f.name, Instance: in.index, Generation: q.Generation,
			Role: role, SharePercent: q.SharePercent, SMGroups: groups, Early: q.Early && in.m.onGPU(),
			SharedWeights: with.weights == configs.WeightsShared && in.m.onGPU(),
			Started:       q.Attached || in.pids[q.Generation] != 0,
			Command:       q.Card.Command, Framework: q.Card.Apart(), Dir: q.Card.Dir, Model: q.Card.Model, Card: q.Card.File,
			Environment: with.environment, Ticket: in.ticket(q.Generation),
		}
		if in.m.cfg.Guarantees() {
			in.terms(&p)
		}
		to = append(to, p)
	}
	return to
}

// observe takes in what the orchestrator sees of one process.
func (in *instance) observe(o control.ObservedProcess) {
	q := in.pair.Process(o.Generation)
	if q == nil {
		return
	}
	in.pids[o.Generation] = o.PID
	in.outgrow(q, &o)
	if o.State == control.Draining || o.State.Ended() {
		in.heard(o.Generation)
	}
	in.see(&o)
	if q.State == o.State && q.Reason == o.Reason {
		return
	}
	if in.doubtful(q, &o, runclock.Time()) {
		return
	}
	event := in.log.Debug()
	switch {
	case o.State == control.Failed:
		event = in.log.Error()
	case o.Reason != "":
		event = in.log.Warn()
	}
	event.Uint32("generation", o.Generation).Str("state", string(o.State)).Str("reason", o.Reason).Msg(o.State.Change())
	switch o.State {
	case control.Failed:
		in.failure = o.Reason
		in.lastFailure = &control.ProcessFailure{Generation: o.Generation, PID: o.PID, At: time.Now(), Reason: o.Reason}
	case control.Active:
		in.failure = ""
	}
	if o.State == control.Ready {
		in.noteBytes(&o)
	}
	if o.DeviceLost && in.m.device.mps {
		in.pair.Excuse(o.Generation) // deviceFailed has blamed who is to blame
	}
	if active := in.pair.Active(); o.State == control.Failed && !q.Excused() && q.State != control.Active && q.Card == in.pair.Card() && (active == nil || active == q) {
		in.f.fails(o.Reason)
	}
	in.pair.Observe(o.Generation, o.State, o.Reason)
}

// see notes what a process says of itself beside its state.
func (in *instance) see(o *control.ObservedProcess) {
	if o.State.Ended() || o.SMs == 0 && len(o.SMGroups) == 0 && len(o.Batches) == 0 {
		return
	}
	before := in.seen[o.Generation]
	now := sight{o.SMs, o.SMGroups, o.Batches, o.Growing, spending{time.Duration(o.DeviceNanos), time.Duration(o.DemotedNanos)}}
	in.entitled.noteSpending(before.spent, now.spent)
	in.seen[o.Generation] = now
	if len(now.batches) > 0 && !now.growing {
		in.pair.Whole(o.Generation)
	}
	if len(before.batches) > 0 && len(now.batches) > len(before.batches) {
		in.noteBytes(o)
	}
	if before.growing && !now.growing {
		in.wholeAt = runclock.Now()
		in.log.Info().Uint32("generation", o.Generation).Ints("batches", now.batches).Msg("process has its batch sizes")
	}
}

func (in *instance) noteBytes(o *control.ObservedProcess) {
	in.f.persistentBytes.Store(o.PersistentBytes)
	in.f.ephemeralBytes.Store(o.EphemeralBytes)
}

// growing reports whether the active process is still getting batch sizes: what it can
// do then says nothing of its share.
func (in *instance) growing() bool {
	q := in.pair.Active()
	return q != nil && in.seen[q.Generation].growing
}

// ticket is what the process of a generation has to show when it attaches. It is derived,
// as a desired state is sent many times.
func (in *instance) ticket(generation uint32) string {
	mac := hmac.New(sha256.New, in.m.seal)
	fmt.Fprintf(mac, "%s/%d/%d", in.f.name, in.index, generation)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// admit hands a process its memory.
func (in *instance) admit(conn *control.AttachConn, hello control.Attach) error {
	q := in.pair.Process(hello.Generation)
	if q == nil {
		return fmt.Errorf("generation %d of %s/%d is not wanted (any more)", hello.Generation, in.f.name, in.index)
	}
	if !hmac.Equal([]byte(hello.Ticket), []byte(in.ticket(hello.Generation))) {
		return fmt.Errorf("process %d is not the one that was started as generation %d of %s/%d", hello.PID, hello.Generation, in.f.name, in.index)
	}
	if in.conns[hello.Generation] != nil {
		return fmt.Errorf("generation %d of %s/%d is attached already", hello.Generation, in.f.name, in.index)
	}
	card, err := json.Marshal(q.Card)
	if err != nil {
		return fmt.Errorf("encode card: %w", err)
	}
	geometry, err := json.Marshal(in.f.geometry)
	if err != nil {
		return fmt.Errorf("encode geometry: %w", err)
	}
	// The card may be one from before, whose buffers were given back.
	if err := in.makeTensors(q.Card); err != nil {
		return err
	}
	slab, tensors, with := in.f.slab(), in.tensors[q.Card], in.f.setupFor(q.Card)
	err = conn.Grant(control.Attached{
		Version: control.Version, Card: card, Setup: with.attached(&in.m.cfg),
		Geometry: geometry, TensorBytes: int64(tensors.Size()), SlabBytes: []int64{int64(slab.Size())},
	}, []*os.File{in.f.table.File(), in.channel.RingFile(), in.channel.RepliesFile(), tensors.File(), slab.File()})
	if err != nil {
		return err
	}
	in.conns[hello.Generation] = conn
	in.pair.Attach(hello.Generation)
	generation := hello.Generation
	in.m.threads.Go(func() {
		defer conn.Close()
		for {
			r, err := conn.ReadReport()
			if errors.Is(err, control.ErrBadMessage) || errors.Is(err, control.ErrTooLong) {
				// It lives, and writes nonsense: its memory is believed free when it
				// is dead.
				in.m.post(func() { in.kill(generation, err) })
				continue
			}
			if err != nil {
				// The kernel closes a dead process's sockets at once, so this is
				// the first word of its death.
				in.m.post(func() { in.lost(generation) })
				return
			}
			in.m.post(func() { in.report(generation, r) })
		}
	})
	return nil
}

// lost notes that a process closed its connection: it is dead, or as good as.
func (in *instance) lost(generation uint32) {
	delete(in.conns, generation)
	q := in.pair.Process(generation)
	if q == nil {
		return
	}
	if q.Role == control.Drain || q.Role == control.Kill {
		in.pair.Gone(generation, "")
		return
	}
	in.log.Warn().Uint32("generation", generation).Msg("process is gone")
	if q.State == control.Active && in.m.device.mps {
		in.listen(generation)
		return
	}
	if q.State == control.Active {
		// The shadow takes over now. The process stays desired until the orchestrator
		// has reported how it ended.
		in.pair.Died(generation, "process ended")
		return
	}
	// Nobody waits for it, so there is time to hear from the orchestrator why.
	in.dying[generation] = runclock.Time().Add(hearWhy)
}

// hearWhy is how long the orchestrator has to say why a process ended.
const hearWhy = time.Second

// bury gives up on the reasons of processes that ended.
func (in *instance) bury(now time.Time) {
	for generation, by := range in.dying {
		if now.After(by) {
			in.pair.Gone(generation, "process ended")
			delete(in.dying, generation)
		}
	}
}

// kill ends a process that does harm.
func (in *instance) kill(generation uint32, why error) {
	if q := in.pair.Process(generation); q != nil && q.Role != control.Kill {
		in.log.Error().Err(why).Uint32("generation", generation).Msg("process talks nonsense; killed")
		in.pair.Kill(generation)
	}
}

// hangUp closes the connection of a process that is done with.
func (in *instance) hangUp(generation uint32) {
	if conn := in.conns[generation]; conn != nil {
		conn.Close()
		delete(in.conns, generation)
	}
}

// report takes in what libml says of its batching.
func (in *instance) report(generation uint32, r control.Report) {
	active := in.pair.Active()
	if active == nil || active.Generation != generation {
		return
	}
	in.limit = r.Limit
	in.entitled.unprotected = r.Unprotected
	if in.m.onGPU() {
		was := spending{}
		if r.Generation == in.cpu.Generation {
			was = spending{time.Duration(in.cpu.DeviceNanos), time.Duration(in.cpu.DemotedNanos)}
		}
		in.entitled.noteSpending(was, spending{time.Duration(r.DeviceNanos), time.Duration(r.DemotedNanos)})
	}
	switch {
	case r.Generation != in.cpu.Generation:
		in.cpu = r
	case r.Ran > in.cpu.Ran: // batches in between would lend their CPU time to others
		ran := r.Ran - in.cpu.Ran
		if in.m.onGPU() {
			in.entitled.fixed, in.entitled.cost = time.Duration(r.FixedNanos), time.Duration(r.EachNanos)
		} else {
			in.entitled.noteCost(time.Duration(r.CPUNanos-in.cpu.CPUNanos)/time.Duration(max(1, in.m.observed.CPUs)), ran)
		}
		each := time.Duration((r.CPUNanos - in.cpu.CPUNanos) / ran)
		if in.cpuPerRequest == 0 {
			in.cpuPerRequest = each
		}
		in.cpuPerRequest += (each - in.cpuPerRequest) / 8
		in.cpu = r
	}
	if in.growing() {
		r.Fit = control.FitUnknown
	}
	if r.Fit != in.fit {
		in.fit = r.Fit
		in.log.Debug().Str("fit", string(r.Fit)).Float64("limit", r.Limit).Msg("batching")
		in.m.look(in)
	}
	in.noteHandovers(generation, r)
}

// noteHandovers counts what a process's report has that the one before had not: the
// first hand-over of a process gave it the ring, the others moved it.
func (in *instance) noteHandovers(generation uint32, r control.Report) {
	if generation != in.handed.generation {
		in.handed = handovers{generation: generation}
	}
	if r.Handovers <= in.handed.count {
		return
	}
	moves := r.Handovers - max(1, in.handed.count)
	in.f.swaps.Add(moves)
	in.handed.count = r.Handovers
	if r.IdleNanos < 0 {
		return
	}
	// It is the last one's.
	mechanism := configs.ChangeShadow
	switch {
	case moves > 0:
		mechanism = configs.ChangePartition
	case in.pair.Restart:
		mechanism = configs.ChangeRestart
	}
	in.f.idle.add(time.Duration(r.IdleNanos))
	in.m.metrics.swapIdle.WithLabelValues(in.f.name, string(mechanism)).Observe(seconds(r.IdleNanos))
}

// watch looks for requests that are overdue. The process that should have
// answered them is killed, and its death then seen like any other; what is still
// there after as long again, because there is no process or one that makes no
// sense, is answered for it.
//
// now is the running time (package runclock): a manager that was stopped did not wait
// for its processes.
func (in *instance) watch(now time.Duration) {
	in.bury(runclock.Time())
	in.hurry(now)
	in.rouse()
	oldest := in.f.oldest(in)
	if oldest == 0 {
		return
	}
	if in.m.cfg.Lab.RunLate {
		// A backlog may be as long as there are slots: while answers come, nobody hangs.
		oldest = max(oldest, time.Duration(in.answeredAt.Load()))
	}
	patience := in.f.hangTimeout
	// A process answers for the time since it was given the ring: what waited
	// before was another's.
	if now-max(oldest, in.since) >= patience {
		if q := in.holder(); q != nil && q.Role != control.Kill {
			in.log.Error().Uint32("generation", q.Generation).Dur("after_ms", now-oldest).
				Dur("hang_timeout_ms", in.f.hangTimeout).Msg("process hangs; killed")
			in.failure = fmt.Sprintf("a request had no answer after %s (hang_timeout), and its process was killed", in.f.hangTimeout)
			in.pair.Kill(q.Generation)
			in.f.hangs.Add(1)
		}
	}
	if now-oldest >= 2*patience {
		in.f.mu.Lock()
		in.expireBefore = now - patience
		in.f.mu.Unlock()
		in.channel.Wake()
	}
}

// holder is the process that has the ring, or should have. The owner word is a
// peer's: it is believed where it names a process that may own the ring.
func (in *instance) holder() *pair.Process {
	if q := in.pair.Process(in.channel.Owner()); q != nil && q.Role == control.Drain {
		return q // it has not let go yet
	}
	return in.pair.Active()
}

// remove ends the instance's processes.
func (in *instance) remove() {
	in.pair.Remove()
	if !in.m.device.known { // nobody was told of them
		for _, q := range slices.Clone(in.pair.Processes()) {
			in.pair.Gone(q.Generation, "it was not started")
		}
	}
	in.settle(fmt.Errorf("%s was removed", in.f.name))
}

// close gives the memory back; the reply thread has ended.
func (in *instance) close() {
	in.m.generations[place{in.f.name, in.index}] = in.pair.Last()
	for generation := range in.conns {
		in.hangUp(generation)
	}
	in.channel.Close()
	for _, t := range in.tensors {
		t.Close()
	}
}
