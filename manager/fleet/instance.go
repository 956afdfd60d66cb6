package fleet

import (
	"cmp"
	"crypto/hmac"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
)

// instance is one instance of a function: a queue of requests, the tensors that its active
// process and its shadow share, and the policy that decides which process is active. The control
// loop owns it.
type instance struct {
	fleet *Fleet
	f     *function
	id    gslice.ID
	log   zerolog.Logger
	queue *datapath.Queue

	pair      *pair.Pair
	processes processes
	tensors   tensors
	failures  failures
	// ringSince is when a process last got the ring, batchesSince when one last got the last of its batch
	// sizes, by runclock.Now; 0: never.
	ringSince, batchesSince time.Duration
	ran                     *models.Card // of the process that has the ring; nil: none has had it
	reported                reported
	orders                  map[string]*orders // of package sharing, by device
	percent                 float64            // share that an order gave the instance; 0: none did
	leaving                 bool               // it is being removed from its function
	unplaced                string             // why no device can run it; empty: one can
	suspected               time.Time          // when its batch last ran as its worker died; zero: never
	// stoppedSince is since when the process that should answer is stopped, by runclock.Now; 0 if it is not.
	stoppedSince time.Duration
}

func newInstance(f *function, index int, on *device) (*instance, error) {
	queue := f.port.Queue(index)
	in := &instance{
		fleet: f.fleet, f: f, id: gslice.ID{IF: f.name, Instance: index},
		log:       f.log.With().Int("instance", index).Logger(),
		pair:      pair.New(f.model.desired, 0), // it gets its share before its first process
		processes: processes{},
		queue:     queue,
		orders:    map[string]*orders{},
		tensors:   tensors{},
	}
	in.pair.StartAfter(f.fleet.generations[in.id])
	in.pair.Move(on.Device.Name)
	return in, in.makeTensors(pair.Run{Card: f.model.desired, Device: on.Device.Name})
}

// device is the one that the instance should run on. While it moves, its old processes are on another one.
func (in *instance) device() *device { return in.fleet.device(in.pair.Device()) }

// forgetDevice drops what was allocated for a device that another one replaces, or learned on it.
func (in *instance) forgetDevice(d *device) {
	in.tensors.keep(func(run pair.Run) bool { return run.Device != d.Device.Name })
	in.reported = reported{}
}

// step carries out the policy's commands.
func (in *instance) step() {
	in.followShare()
	change := in.device().Change(&in.fleet.cfg, in.f.config)
	in.pair.InPlace = change == configs.ChangeInPlace || change == configs.ChangePartition || change == configs.ChangeNone
	in.pair.Restart = change == configs.ChangeRestart
	// In a worker, a shadow would fill host memory per member. On a lost device it cannot start.
	in.pair.OnDemand = in.f.setupFor(in.pair.Card()).worker != "" || in.device().lost != ""
	wanted := in.pair.Device()
	for _, c := range in.pair.Step() {
		switch c.Kind {
		case pair.SetEpoch:
			in.queue.HandOver(c.Generation)
			in.ringSince = runclock.Now()
			in.ran = in.pair.Active().Card
			in.f.model.served = in.ran
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
			in.replaced(nil)
		case pair.Rejected:
			what := "model"
			if in.ran != nil && in.ran.File == in.f.model.desired.File && in.ran.Version == in.f.model.desired.Version {
				what = "process"
			}
			in.log.Error().Str("device", wanted).Str("reason", c.Reason).Msg("new " + what + " failed; keeping the old one")
			if wanted != in.pair.Device() {
				in.f.costs[wanted] = math.Inf(1)
			}
			in.replaced(fmt.Errorf("new %s of %s failed, keeping the old one: %s", what, in.f.name, c.Reason))
		}
	}
	in.processes.keep(in.pair)
	maps.DeleteFunc(in.orders, func(device string, _ *orders) bool { return !in.pair.On(device) })
}

// reclaim takes the ring from a generation that has ended.
func (in *instance) reclaim(generation uint32) {
	worker := in.processes.known(generation).worker
	in.processes.reset(generation)
	for _, o := range in.orders {
		delete(o.assigned, generation)
	}
	in.queue.SetServing(in.pair.Active() != nil)
	if in.queue.Abandon(generation) && worker != "" {
		in.suspect(worker)
	}
	in.tensors.keep(in.pair.Uses)
}

// status describes the instance for users. Decider.Status of package sharing adds its part of the device.
func (in *instance) status() control.InstanceStatus {
	s := control.InstanceStatus{Device: in.pair.Device(), LastFailure: in.failures.last, Held: in.held()}
	for _, q := range in.pair.Processes() {
		s.Processes = append(s.Processes, control.ProcessStatus{
			Generation: q.Generation, PID: in.processes.known(q.Generation).pid, Role: q.Role, State: q.State, Reason: cmp.Or(q.Reason, in.held()),
		})
	}
	return s
}

// observe applies the orchestrator's report on one process.
func (in *instance) observe(o control.ObservedProcess) {
	q := in.pair.Process(o.Generation)
	if q == nil {
		return
	}
	in.processes.of(o.Generation).pid = o.PID
	in.observeBatches(&o)
	if o.State == control.Draining || o.State.Ended() {
		in.endAwait(o.Generation)
	}
	in.leave(q, &o)
	if q.State == o.State && q.Reason == o.Reason {
		return
	}
	if in.fleet.device(q.Device).Device.MPS && in.processes.awaitsVerdict(q, &o, runclock.Time()) {
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
		in.f.memory = memory{o.PersistentBytes, o.EphemeralBytes}
	}
	if o.DeviceLost && in.fleet.device(q.Device).Device.MPS {
		in.pair.Excuse(o.Generation) // deviceFailed has already blamed a function
	}
	if active := in.pair.Active(); o.State == control.Failed && !q.Excused() && q.State != control.Active && q.Card == in.pair.Card() && (active == nil || active == q) {
		in.f.trial.fails(o.Reason)
	}
	in.pair.Observe(o.Generation, o.State, o.Reason)
}

// observeBatches follows the batch sizes that a process runs.
func (in *instance) observeBatches(o *control.ObservedProcess) {
	if o.State.Ended() || len(o.Batches) == 0 {
		return
	}
	p := in.processes.of(o.Generation)
	sizes, growing := p.sizes, p.growing
	p.sizes, p.growing = len(o.Batches), o.WarmingUp
	if !p.growing {
		in.pair.Whole(o.Generation)
	}
	if growing && !p.growing {
		in.log.Info().Uint32("generation", o.Generation).Ints("batches", o.Batches).Msg("process has all its batch sizes")
		in.batchesSince = runclock.Now()
	}
	if sizes > 0 && p.sizes > sizes {
		in.f.memory = memory{o.PersistentBytes, o.EphemeralBytes}
	}
}

// admit gives a process its memory.
func (in *instance) admit(conn *control.AttachConn, hello control.Attach) error {
	q := in.pair.Process(hello.Generation)
	if q == nil {
		return fmt.Errorf("generation %d of %v is not desired", hello.Generation, in.id)
	}
	if !hmac.Equal([]byte(hello.Ticket), []byte(in.processes.of(hello.Generation).ticket)) {
		return fmt.Errorf("process %d is not the one that was started as generation %d of %v", hello.PID, hello.Generation, in.id)
	}
	if in.processes.known(hello.Generation).conn != nil {
		return fmt.Errorf("generation %d of %v is attached already", hello.Generation, in.id)
	}
	geometry, err := json.Marshal(in.f.port.Geometry())
	if err != nil {
		return fmt.Errorf("encode geometry: %w", err)
	}
	// The card may be an earlier one, whose buffers were freed.
	if err := in.makeTensors(q.Run); err != nil {
		return err
	}
	tensors, d := in.tensors[q.Run], in.fleet.device(q.Device)
	card, err := json.Marshal(tensors.card)
	if err != nil {
		return fmt.Errorf("encode card: %w", err)
	}
	admission, err := d.Admit(hello.PID)
	if err != nil {
		return err
	}
	defer admission.Close()
	slab, with := in.f.port.Slab(), in.f.setupFor(q.Card)
	files := append(append(in.queue.Files(), tensors.File(), slab.File()), admission.Files...)
	warmedUp := control.Report{} // of the same model in the same worker
	if in.reported.run == q.Run {
		warmedUp = in.reported.Report
	}
	err = conn.Grant(control.Attached{
		Version: control.Version, Card: card, Setup: with.attached(&in.fleet.cfg),
		Geometry: geometry, TensorBytes: int64(tensors.Size()), SlabBytes: []int64{int64(slab.Size())}, Turn: admission.Turn, Busy: admission.Busy,
		Measurements: warmedUp.Measurements, Compared: warmedUp.Compared,
	}, files)
	if err != nil {
		d.Leave(hello.PID)
		return err
	}
	p := in.processes.of(hello.Generation)
	p.conn, p.worker = conn, with.worker
	in.pair.Attach(hello.Generation)
	in.fleet.loop.Go(func() {
		in.readReports(conn, hello.Generation)
		in.fleet.loop.Post(func() { d.Leave(hello.PID) })
	})
	return nil
}

// watch looks for overdue requests. It kills the process that should have answered them, and
// that death is then handled like any other. A request may remain for as long again, because
// there is no process or the process misbehaves. In that case the reply thread answers it.
//
// now is the running time (package runclock): while the manager was stopped, it did not
// wait for its processes.
func (in *instance) watch(now time.Duration) {
	in.processes.markExited(runclock.Time(), in.pair)
	in.queue.Rouse()
	oldest := in.queue.Oldest()
	if oldest == 0 {
		in.stoppedSince = 0
		return
	}
	patience := in.f.hangTimeout
	if q := holder(in.pair, in.queue.Owner()); q == nil || q.Role == control.Kill {
		in.stoppedSince = 0
	} else if why := in.hangs(q, now, oldest); why != "" {
		in.log.Error().Uint32("generation", q.Generation).Dur("after_ms", now-oldest).
			Dur("hang_timeout_ms", patience).Str("reason", why).Msg("process hangs; killed it")
		in.failures.reason = why
		in.pair.Kill(q.Generation)
		in.f.hangs++
	}
	if now-oldest >= 2*patience {
		in.queue.ExpireBefore(now - patience)
	}
}

// hangs returns why the process q, which should answer, must be killed; empty: it may go on. oldest is when
// the oldest request arrived.
func (in *instance) hangs(q *pair.Process, now, oldest time.Duration) string {
	if in.standsStill(q, now) {
		return "another program had stopped the process (SIGSTOP); it missed a deadline and was killed, and its shadow takes over"
	}
	// A process is responsible for the time since it got the ring. Before that, another
	// process was.
	residency := in.residency()
	loads := residency != nil && residency.State == control.Loading // its worker watches over that
	if now-max(oldest, in.ringSince) < in.f.hangTimeout || loads {
		return ""
	}
	return fmt.Sprintf("a request had no answer after %s (hang_timeout), and its process was killed", in.f.hangTimeout)
}

// holder returns the process that has the ring, or should have it. A process wrote the
// owner word, so holder believes it only if it names a process that may own the ring.
func holder(p *pair.Pair, owner uint32) *pair.Process {
	if q := p.Process(owner); q != nil && q.Role == control.Drain {
		return q // it has not released the ring yet
	}
	return p.Active()
}

// remove ends the instance's processes.
func (in *instance) remove() {
	in.pair.Remove()
	orphaned := in.fleet.draining && !in.fleet.orchestrator.link.PeerAlive() // processes end with their orchestrator
	for _, q := range slices.Clone(in.pair.Processes()) {
		if orphaned && in.processes.known(q.Generation).conn == nil {
			in.pair.Gone(q.Generation, "no orchestrator starts the process")
		}
	}
	in.replaced(fmt.Errorf("%s was removed", in.f.name))
}

// close frees the tensors. The reply thread must have ended.
func (in *instance) close() {
	in.fleet.generations[in.id] = in.pair.Last()
	for generation := range in.processes {
		in.processes.hangUp(generation)
	}
	in.tensors.keep(func(pair.Run) bool { return false })
}
