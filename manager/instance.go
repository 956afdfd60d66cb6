package manager

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/pair"
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
	pair     *pair.Pair
	tensors  map[*models.Card]*shm.Region // by the card whose tensors they are
	conns    map[uint32]*control.AttachConn
	pids     map[uint32]int
	fit      control.Fit
	bound    string
	limit    float64
	cpu      control.Report // the last report, for its CPU time
	handed   uint32         // the generation whose hand-over was noted last
	replaced chan error     // waits for the end of a replacement; nil otherwise
	load     instanceLoad
	// cpuPerRequest is a smoothed mean, 0 where it is not known.
	cpuPerRequest time.Duration

	// Written under function.mu.
	inFlight int     // requests that this instance has
	weight   float64 // its share, for choosing among instances
	tally    tally
	// What the reply thread must answer for processes that cannot: what these
	// generations had started, and what was published before that time.
	abandoned    []uint32
	expireBefore int64
}

func newInstance(f *function, index int, sharePercent float64) (*instance, error) {
	channel, err := shm.NewChannel(fmt.Sprintf("penstock-%s-%d", f.name, index), f.geometry)
	if err != nil {
		return nil, fmt.Errorf("make rings of %s: %w", f.name, err)
	}
	in := &instance{
		m: f.m, f: f, index: index,
		log:     f.log.With().Int("instance", index).Logger(),
		pair:    pair.New(f.card, sharePercent),
		channel: channel,
		tensors: map[*models.Card]*shm.Region{},
		conns:   map[uint32]*control.AttachConn{},
		pids:    map[uint32]int{},
		weight:  sharePercent,
	}
	in.pair.InPlace = f.change == configs.ChangeInPlace
	in.pair.Restart = f.change == configs.ChangeRestart
	if err := in.makeTensors(f.card); err != nil {
		channel.Close()
		return nil, err
	}
	return in, nil
}

// makeTensors makes the input and output buffers of a card's largest batch, which
// all processes that run the card share (paper 3.4).
func (in *instance) makeTensors(card *models.Card) error {
	if in.tensors[card] != nil {
		return nil
	}
	t, err := shm.Create(fmt.Sprintf("penstock-%s-%d-tensors", in.f.name, in.index), card.TensorBytes(), shm.Options{Writable: true})
	if err != nil {
		return fmt.Errorf("make tensors of %s: %w", in.f.name, err)
	}
	in.tensors[card] = t
	return nil
}

// dropTensors gives the buffers of cards back that no process runs any more.
func (in *instance) dropTensors() {
	for card, t := range in.tensors {
		inUse := card == in.pair.Card() || slices.ContainsFunc(in.pair.Processes(), func(q *pair.Process) bool { return q.Card == card })
		if !inUse {
			t.Close()
			delete(in.tensors, card)
		}
	}
}

// step carries out what the policy orders.
func (in *instance) step() {
	for _, c := range in.pair.Step() {
		switch c.Kind {
		case pair.SetEpoch:
			in.channel.SetEpoch(c.Generation)
			in.log.Debug().Uint32("generation", c.Generation).Msg("ring handed over")
		case pair.Reclaim:
			in.reclaim(c.Generation)
		case pair.Promoted:
			in.f.swaps.Add(1)
			in.log.Info().Uint32("generation", c.Generation).Float64("share_percent", in.pair.Share()).Msg("shadow takes over")
		case pair.Replaced:
			in.f.version.Store(in.pair.Card().Version)
			in.log.Info().Uint32("model_version", in.pair.Card().Version).Msg("model replaced")
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
	in.f.mu.Lock()
	in.abandoned = append(in.abandoned, generation)
	in.f.mu.Unlock()
	in.channel.Disown(generation)
	in.channel.Wake()
	in.dropTensors()
}

// replace asks for another model; the end of it comes through the channel.
func (in *instance) replace(card *models.Card) (<-chan error, error) {
	if err := in.makeTensors(card); err != nil {
		return nil, err
	}
	in.settle(fmt.Errorf("another replacement of %s was asked for", in.f.name))
	in.replaced = make(chan error, 1)
	in.pair.Replace(card)
	if q := in.pair.Active(); q != nil && q.Card == card {
		end := in.replaced
		in.settle(nil)
		return end, nil
	}
	return in.replaced, nil
}

// setShare asks for another share.
func (in *instance) setShare(percent float64) {
	in.pair.SetShare(percent)
	in.f.mu.Lock()
	in.weight = percent
	in.f.mu.Unlock()
}

// sharePercent is the share in force: the active process's.
func (in *instance) sharePercent() float64 {
	if q := in.pair.Active(); q != nil {
		return q.SharePercent
	}
	return in.pair.Share()
}

// status is the instance as a person sees it.
func (in *instance) status() control.InstanceStatus {
	s := control.InstanceStatus{SharePercent: in.sharePercent()}
	for _, q := range in.pair.Processes() {
		s.Processes = append(s.Processes, control.ProcessStatus{
			Generation: q.Generation, PID: in.pids[q.Generation], Role: q.Role, State: q.State, Reason: q.Reason,
		})
	}
	return s
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
		to = append(to, control.DesiredProcess{
			IF: in.f.name, Instance: in.index, Generation: q.Generation,
			Role: q.Role, SharePercent: q.SharePercent,
			Command: q.Card.Command, Dir: q.Card.Dir, Environment: in.f.environment,
		})
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
	if q.State == o.State && q.Reason == o.Reason {
		return
	}
	event := in.log.Debug()
	switch {
	case o.State == control.Failed:
		event = in.log.Error()
	case o.Reason != "":
		event = in.log.Warn()
	}
	event.Uint32("generation", o.Generation).Str("state", string(o.State)).Str("reason", o.Reason).Msg("process")
	if o.State == control.Ready {
		in.f.persistentBytes.Store(o.PersistentBytes)
		in.f.ephemeralBytes.Store(o.EphemeralBytes)
	}
	in.pair.Observe(o.Generation, o.State, o.Reason)
}

// admit hands a process its memory.
func (in *instance) admit(conn *control.AttachConn, hello control.Attach) error {
	q := in.pair.Process(hello.Generation)
	if q == nil {
		return fmt.Errorf("generation %d of %s/%d is not wanted (any more)", hello.Generation, in.f.name, in.index)
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
	slab, tensors := in.f.source.Slab(), in.tensors[q.Card]
	err = conn.Grant(control.Attached{
		Version: control.Version, Card: card, SLONanos: int64(in.f.slo), Batching: string(in.f.batching),
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
	in.pair.Gone(generation, "process ended")
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
	switch {
	case r.Generation != in.cpu.Generation:
		in.cpu = r
	case r.Ran > in.cpu.Ran: // batches in between would lend their CPU time to others
		each := time.Duration((r.CPUNanos - in.cpu.CPUNanos) / (r.Ran - in.cpu.Ran))
		if in.cpuPerRequest == 0 {
			in.cpuPerRequest = each
		}
		in.cpuPerRequest += (each - in.cpuPerRequest) / 8
		in.cpu = r
	}
	if r.Fit != in.fit {
		in.fit = r.Fit
		in.log.Debug().Str("fit", string(r.Fit)).Float64("limit", r.Limit).Msg("batching")
		in.m.look(in)
	}
	if r.Handovers > 0 && generation != in.handed {
		in.handed = generation
		if r.IdleNanos >= 0 {
			in.f.idle.add(time.Duration(r.IdleNanos))
			in.m.metrics.swapIdle.WithLabelValues(in.f.name).Observe(seconds(r.IdleNanos))
		}
	}
}

// watch looks for requests that are overdue. The process that should have
// answered them is killed, and its death then seen like any other; what is still
// there after as long again, because there is no process or one that makes no
// sense, is answered for it.
func (in *instance) watch(now int64) {
	oldest := in.f.oldest(in)
	if oldest == 0 || now-oldest < int64(in.f.hangTimeout) {
		return
	}
	if q := in.pair.Process(in.channel.Owner()); q != nil && q.Role != control.Kill && now-oldest < 2*int64(in.f.hangTimeout) {
		in.log.Error().Uint32("generation", q.Generation).Dur("after", time.Duration(now-oldest)).Msg("process hangs; killed")
		in.pair.Kill(q.Generation)
		in.f.hangs.Add(1)
		return
	}
	if now-oldest >= 2*int64(in.f.hangTimeout) {
		in.f.mu.Lock()
		in.expireBefore = now - int64(in.f.hangTimeout)
		in.f.mu.Unlock()
		in.channel.Wake()
	}
}

// remove ends the instance's processes.
func (in *instance) remove() {
	in.pair.Remove()
	in.settle(fmt.Errorf("%s was removed", in.f.name))
}

// close gives the memory back; the reply thread has ended.
func (in *instance) close() {
	for generation := range in.conns {
		in.hangUp(generation)
	}
	in.channel.Close()
	for _, t := range in.tensors {
		t.Close()
	}
}
