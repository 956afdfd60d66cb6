package manager

import (
	"cmp"
	"crypto/hmac"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// instance is one instance of a function: a queue of requests, the tensors that its active
// process and its shadow share, and the policy that decides which process is active. The control
// loop owns it.
type instance struct {
	m       *Manager
	f       *function
	index   int
	log     zerolog.Logger
	queue   *datapath.Queue
	sharing *sharing.Instance

	pair      *pair.Pair
	processes processes
	tensors   map[*models.Card]*shm.Region // by the card that they are for
	failures  failures
	tenure    tenure
	replaced  chan error // gets the result of a replacement; nil if there is none
	handovers handovers
	residency residency
	warmedUp  warmedUp
	suspected time.Time // when its batch last ran as its worker died; zero: never
	// stoppedSince is since when the process that should answer is stopped, by runclock.Now; 0 if it is not.
	stoppedSince time.Duration
}

func newInstance(f *function, index int) (*instance, error) {
	queue := f.port.Queue(index)
	in := &instance{
		m: f.m, f: f, index: index,
		log:       f.log.With().Int("instance", index).Logger(),
		pair:      pair.New(f.model.desired, 0), // it gets its share before its first process
		processes: processes{},
		queue:     queue,
		tensors:   map[*models.Card]*shm.Region{},
	}
	in.pair.StartAfter(f.m.generations.last[place{f.name, index}])
	in.sharing = f.sharing.NewInstance(in.pair, queue, in.log)
	if f.m.sharing.Device.Known {
		if err := in.makeTensors(f.model.desired); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// makeTensors allocates the input and output buffers of a card's largest batch. All
// processes that run the card share them (paper 3.4). The device must be known.
func (in *instance) makeTensors(card *models.Card) error {
	if in.tensors[card] != nil {
		return nil
	}
	t, err := shm.Create(fmt.Sprintf("penstock-%s-%d-tensors", in.f.name, in.index), tensorBytes(card, in.m.sharing.Device.GPU != nil), shm.Options{Writable: true})
	if err != nil {
		return fmt.Errorf("make tensors of %s: %w", in.f.name, err)
	}
	in.tensors[card] = t
	return nil
}

// dropTensors frees the buffers of cards that no process runs any more.
func (in *instance) dropTensors() {
	for card, t := range in.tensors {
		if !in.pair.Uses(card) {
			t.Close()
			delete(in.tensors, card)
		}
	}
}

// forgetDevice drops what was allocated for another device, or learned on it.
func (in *instance) forgetDevice() {
	for card, t := range in.tensors {
		t.Close()
		delete(in.tensors, card)
	}
	in.warmedUp = warmedUp{}
}

// outputSlots is how many batches' outputs a GPU writes at once: two batches may be in
// flight (libml/device.Slots).
const outputSlots = 2

// tensorBytes is the size of the memory that the processes of a card share. On a CPU that
// is the batch tensor and its outputs. A GPU has its own batch tensor and copies back only
// the outputs.
func tensorBytes(card *models.Card, gpu bool) int {
	if gpu {
		return outputSlots * card.OutputBytes()
	}
	return card.TensorBytes()
}

// step carries out the policy's commands.
func (in *instance) step() {
	in.pair.OnDemand = in.f.setupFor(in.pair.Card()).worker != "" // a shadow would fill host memory per member
	for _, c := range in.pair.Step() {
		switch c.Kind {
		case pair.SetEpoch:
			in.queue.HandOver(c.Generation)
			in.tenure.begin(in.pair.Active().Card)
			in.f.model.served = in.pair.Active().Card
			in.sharing.HandedOver()
			in.queue.SetServing(true)
			in.log.Debug().Uint32("generation", c.Generation).Msg("ring handed over")
		case pair.Reclaim:
			in.reclaim(c.Generation)
		case pair.Promoted:
			in.f.swaps.Count++
			in.log.Info().Uint32("generation", c.Generation).Float64("share_percent", in.pair.Share()).Msg("shadow takes over")
		case pair.Replaced:
			in.f.port.SetVersion(in.pair.Card().Version)
			in.log.Info().Uint32("model_version", in.pair.Card().Version).Msg("processes replaced")
			in.sharing.Replaced(!in.tenure.sameModel())
			in.settle(nil)
		case pair.Rejected:
			what := "model"
			if in.tenure.model != nil && in.tenure.model.File == in.f.model.desired.File && in.tenure.model.Version == in.f.model.desired.Version {
				what = "process"
			}
			in.log.Error().Str("reason", c.Reason).Msg("new " + what + " failed; keeping the old one")
			in.settle(fmt.Errorf("new %s of %s failed, keeping the old one: %s", what, in.f.name, c.Reason))
		}
	}
}

// reclaim takes the ring from a generation that has ended.
func (in *instance) reclaim(generation uint32) {
	worker := in.processes.known(generation).worker
	in.processes.forget(generation)
	in.sharing.Ended(generation)
	in.queue.SetServing(in.pair.Active() != nil)
	if in.queue.Abandon(generation) && worker != "" {
		in.suspect(worker)
	}
	in.dropTensors()
}

// replace requests another model; the channel gets the result.
func (in *instance) replace(card *models.Card) <-chan error {
	in.settle(fmt.Errorf("replaced by another replacement of %s", in.f.name))
	in.replaced = make(chan error, 1)
	end := in.replaced
	in.pair.Replace(card)
	if q := in.pair.Active(); q != nil && q.Card == card {
		in.settle(nil) // it serves already
	}
	return end
}

// status describes the instance for users. Function.Status of package sharing adds its part of the device.
func (in *instance) status() control.InstanceStatus {
	s := control.InstanceStatus{LastFailure: in.failures.last}
	for _, q := range in.pair.Processes() {
		s.Processes = append(s.Processes, control.ProcessStatus{
			Generation: q.Generation, PID: in.processes.known(q.Generation).pid, Role: q.Role, State: q.State, Reason: cmp.Or(q.Reason, in.f.held),
		})
	}
	return s
}

// settle reports the result of a replacement, if there is one.
func (in *instance) settle(err error) {
	if in.replaced != nil {
		in.replaced <- err
		in.replaced = nil
	}
}

// observe applies the orchestrator's report on one process.
func (in *instance) observe(o control.ObservedProcess) {
	q := in.pair.Process(o.Generation)
	if q == nil {
		return
	}
	in.processes.of(o.Generation).pid = o.PID
	growth := in.sharing.Observe(q, &o)
	if growth.More {
		in.noteBytes(&o)
	}
	if growth.Complete {
		in.tenure.completeBatches()
	}
	if o.State == control.Draining || o.State.Ended() {
		in.endAwait(o.Generation)
	}
	in.leave(q, &o)
	if q.State == o.State && q.Reason == o.Reason {
		return
	}
	if in.awaitsVerdict(q, &o, runclock.Time()) {
		return
	}
	expected := o.WrongAnswers && q.Excused() // learnWrong has logged it
	event := in.log.Debug()
	switch {
	case o.State == control.Failed && !expected:
		event = in.log.Error()
	case o.Reason != "":
		event = in.log.Warn()
	}
	event.Uint32("generation", o.Generation).Str("state", string(o.State)).Str("reason", o.Reason).Msg(o.State.Change())
	in.failures.observe(&o, expected)
	if o.State == control.Ready {
		in.noteBytes(&o)
	}
	if o.DeviceLost && in.m.sharing.Device.MPS {
		in.pair.Excuse(o.Generation) // deviceFailed has already blamed a function
	}
	if active := in.pair.Active(); o.State == control.Failed && !q.Excused() && q.State != control.Active && q.Card == in.pair.Card() && (active == nil || active == q) {
		in.f.fails(o.Reason)
	}
	in.pair.Observe(o.Generation, o.State, o.Reason)
}

func (in *instance) noteBytes(o *control.ObservedProcess) {
	in.f.memory = memory{o.PersistentBytes, o.EphemeralBytes}
}

// place is the instance's position.
func (in *instance) place() place { return place{in.f.name, in.index} }

// ticket is what the process of a generation must show when it attaches.
func (in *instance) ticket(generation uint32) string {
	return in.m.generations.ticket(in.place(), generation)
}

// admit gives a process its memory.
func (in *instance) admit(conn *control.AttachConn, hello control.Attach) error {
	q := in.pair.Process(hello.Generation)
	if q == nil {
		return fmt.Errorf("generation %d of %s/%d is not desired", hello.Generation, in.f.name, in.index)
	}
	if !hmac.Equal([]byte(hello.Ticket), []byte(in.ticket(hello.Generation))) {
		return fmt.Errorf("process %d is not the one that was started as generation %d of %s/%d", hello.PID, hello.Generation, in.f.name, in.index)
	}
	if in.processes.known(hello.Generation).conn != nil {
		return fmt.Errorf("generation %d of %s/%d is attached already", hello.Generation, in.f.name, in.index)
	}
	card, err := json.Marshal(wireCard(in.f.config.Format, q.Card))
	if err != nil {
		return fmt.Errorf("encode card: %w", err)
	}
	geometry, err := json.Marshal(in.f.port.Geometry())
	if err != nil {
		return fmt.Errorf("encode geometry: %w", err)
	}
	// The card may be an earlier one, whose buffers were freed.
	if err := in.makeTensors(q.Card); err != nil {
		return err
	}
	admission, err := in.m.sharing.Admit(hello.PID)
	if err != nil {
		return err
	}
	defer admission.Close()
	slab, tensors, with := in.f.port.Slab(), in.tensors[q.Card], in.f.setupFor(q.Card)
	files := append(append(in.queue.Files(), tensors.File(), slab.File()), admission.Files...)
	measured, compared := in.warmedUp.of(q.Card)
	err = conn.Grant(control.Attached{
		Version: control.Version, Card: card, Setup: with.attached(&in.m.cfg),
		Geometry: geometry, TensorBytes: int64(tensors.Size()), SlabBytes: []int64{int64(slab.Size())}, Turn: admission.Turn, Busy: admission.Busy,
		Measurements: measured, Compared: compared,
	}, files)
	if err != nil {
		in.m.sharing.Leave(hello.PID)
		return err
	}
	p := in.processes.of(hello.Generation)
	p.conn, p.worker = conn, with.worker
	in.pair.Attach(hello.Generation)
	in.m.threads.Go(func() {
		in.readReports(conn, hello.Generation)
		in.m.post(func() { in.m.sharing.Leave(hello.PID) })
	})
	return nil
}

// loading reports whether the process loads its model. Its worker watches over that.
func (in *instance) loading() bool {
	r := in.currentResidency()
	return r != nil && r.State == control.Loading
}

// watch looks for overdue requests. It kills the process that should have answered them, and
// that death is then handled like any other. A request may remain for as long again, because
// there is no process or the process misbehaves. In that case the reply thread answers it.
//
// now is the running time (package runclock): while the manager was stopped, it did not
// wait for its processes.
func (in *instance) watch(now time.Duration) {
	in.markExited(runclock.Time())
	in.sharing.WatchMove(now, in.tenure.movable())
	in.queue.Rouse()
	oldest := in.queue.Oldest()
	if oldest == 0 {
		in.stoppedSince = 0
		return
	}
	in.failOver(now)
	if in.m.cfg.Lab.RunLate {
		// A backlog may be as long as there are slots: while answers come, the process is
		// alive.
		_, answered := in.queue.LastGood()
		oldest = max(oldest, answered)
	}
	patience := in.f.hangTimeout
	// A process is responsible for the time since it got the ring. Before that, another
	// process was.
	if now-max(oldest, in.tenure.since) >= patience && !in.loading() {
		if q := in.holder(); q != nil && q.Role != control.Kill {
			in.log.Error().Uint32("generation", q.Generation).Dur("after_ms", now-oldest).
				Dur("hang_timeout_ms", in.f.hangTimeout).Msg("process hangs; killed it")
			in.failures.reason = fmt.Sprintf("a request had no answer after %s (hang_timeout), and its process was killed", in.f.hangTimeout)
			in.pair.Kill(q.Generation)
			in.f.hangs++
		}
	}
	if now-oldest >= 2*patience {
		in.queue.ExpireBefore(now - patience)
	}
}

// holder returns the process that has the ring, or should have it. A process wrote the
// owner word, so holder believes it only if it names a process that may own the ring.
func (in *instance) holder() *pair.Process {
	if q := in.pair.Process(in.queue.Owner()); q != nil && q.Role == control.Drain {
		return q // it has not released the ring yet
	}
	return in.pair.Active()
}

// remove ends the instance's processes.
func (in *instance) remove() {
	in.pair.Remove()
	orphaned := in.m.draining && !in.m.orchestrator.link.PeerAlive() // processes end with their orchestrator
	for _, q := range slices.Clone(in.pair.Processes()) {
		if orphaned && in.processes.known(q.Generation).conn == nil {
			in.pair.Gone(q.Generation, "no orchestrator starts the process")
		}
	}
	in.settle(fmt.Errorf("%s was removed", in.f.name))
}

// close frees the tensors. The reply thread must have ended.
func (in *instance) close() {
	in.m.generations.retire(in.place(), in.pair.Last())
	for generation := range in.processes {
		in.processes.hangUp(generation)
	}
	for _, t := range in.tensors {
		t.Close()
	}
}
