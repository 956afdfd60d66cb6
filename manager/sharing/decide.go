package sharing

import (
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/models"
)

// Decider decides how functions share a device. It is pure: it sees snapshots, and its clock is theirs.
// Its only state is what it has learned from them.
type Decider struct {
	Device Device

	members    []*member // in the order of the functions
	spare      []*member // memory for the next members
	tuned      time.Duration
	shares     shares
	groups     groups
	guarantees guarantees

	// s and the rest belong to the present call of Decide.
	s       Snapshot
	actions []Action
	opening bool // what is known of the GPU comes with the next snapshot
}

// policy decides about the instances of a snapshot that has been read into the Decider.
type policy interface{ decide(d *Decider) }

// member is an instance: what the last snapshot has of it, and what was learned before.
type member struct {
	Instance
	id  gslice.ID
	f   *Function // of the last snapshot
	new bool      // since the last snapshot
	// change is how its share changes on this device, configured how it is configured to.
	change, configured configs.Change

	byHand float64
	edits  int
	serves *models.Card // the model that served last
	// fit and limit are from the last report: whether the share suits, and the max batch size.
	fit       control.Fit
	limit     float64
	behind    bool // see datapath.Window.Behind
	seen      map[uint32]*observation
	measured  measurement
	entitled  entitlement
	placement placement
}

// observation is what a process has last reported: its batch sizes, the device time it has spent, and its part
// of a GPU.
type observation struct {
	sms     int
	groups  []int
	batches []int
	growing bool // it is still getting more batch sizes
	spent   spending
}

// Decide returns what to do, in this order.
func (d *Decider) Decide(s Snapshot) []Action {
	d.s, d.actions, d.opening = s, nil, false
	d.readFunctions()
	if o := s.Published; o != nil && o.Seq != d.groups.published && d.onGPU() {
		d.groups.publish(d.Device.Name, o)
	}
	if o := s.Observed; o != nil {
		d.readDevice(o)
	}
	d.findChanges()
	if o := s.Observed; o != nil {
		d.readProcesses(o)
	}
	for _, m := range d.members {
		d.readReport(m)
	}

	policies := []policy{&d.shares, &d.groups}
	if d.s.Config.Guarantees() {
		policies = []policy{&d.guarantees}
	}
	if s.Interval {
		d.measure()
	}
	for _, p := range policies {
		if !d.opening {
			p.decide(d)
		}
	}
	return d.actions
}

func (d *Decider) do(a ...Action) { d.actions = append(d.actions, a...) }

func (d *Decider) log(id gslice.ID, level zerolog.Level, message string, fields map[string]any) {
	d.do(Log{id, level, message, fields})
}

// readFunctions takes the functions of the snapshot over.
func (d *Decider) readFunctions() {
	before := d.members
	d.members = d.spare[:0]
	for i := range d.s.Functions {
		f := &d.s.Functions[i]
		for _, in := range f.Instances {
			id := gslice.ID{IF: f.Config.Name, Instance: in.Number}
			m := find(before, id)
			if m == nil {
				m = &member{id: id, byHand: f.ByHand, edits: f.Edits, seen: map[uint32]*observation{}, new: true}
				m.entitled.terms = map[string]control.Terms{}
			}
			m.Instance, m.f = in, f
			for generation := range m.seen {
				if in.process(generation) == nil {
					delete(m.seen, generation)
				}
			}
			d.members = append(d.members, m)
		}
	}
	if !slices.Equal(before, d.members) {
		d.groups.allocator.Invalidate()
	}
	d.spare = before
}

func find(members []*member, id gslice.ID) *member {
	i := slices.IndexFunc(members, func(m *member) bool { return m.id == id })
	if i < 0 {
		return nil
	}
	return members[i]
}

// findChanges finds how each share changes.
func (d *Decider) findChanges() {
	for _, m := range d.members {
		m.configured, m.change = d.s.Config.ChangeOf(m.f.Config), d.Change(d.s.Config, m.f.Config)
		if m.new && m.whole() {
			d.setShare(m, 0)
		}
		m.new = false
	}
}

// whole reports whether the instance has no share, so that it may use the whole device.
func (m *member) whole() bool { return m.change == configs.ChangeNone }

// within is the part of the objective that the node may use.
func (d *Decider) within(m *member) time.Duration {
	return aggregate.Within(m.f.Objective, d.s.Config.Transit)
}

// observed returns what a process has reported; the zero value if nothing.
func (m *member) observed(generation uint32) observation {
	if o := m.seen[generation]; o != nil {
		return *o
	}
	return observation{}
}

// growing reports whether the active process is still getting batch sizes. Its measurements until
// then say nothing about its share.
func (m *member) growing() bool { return m.observed(m.Active).growing }

// setShare sets the desired share; 0 means no share, the whole device.
func (d *Decider) setShare(m *member, percent float64) {
	m.Share = percent
	d.groups.allocator.Invalidate()
	d.do(SetShare{m.id, percent})
}

// sharePercent is the current share: that of the active process.
func (m *member) sharePercent() float64 {
	if m.whole() {
		return wholePercent
	}
	if q := m.active(); q != nil {
		return q.SharePercent
	}
	return m.Share
}

// readProcesses learns from what the orchestrator reports on processes besides their states.
func (d *Decider) readProcesses(o *control.Observed) {
	for i := range o.Processes {
		p := &o.Processes[i]
		m := find(d.members, gslice.ID{IF: p.IF, Instance: p.Instance})
		if m == nil || p.Device != d.Device.Name {
			continue
		}
		q := m.process(p.Generation)
		if q == nil {
			continue
		}
		d.groups.learnMinimum(d, m, q, p)
		d.shares.learnWrong(d, m, q, p)
		if p.State.Ended() || p.SMs == 0 && len(p.SMGroups) == 0 && len(p.Batches) == 0 {
			continue
		}
		before := m.observed(p.Generation)
		now := &observation{p.SMs, p.SMGroups, p.Batches, p.WarmingUp, before.spent}
		m.seen[p.Generation] = now
		if !d.onGPU() {
			m.noteSpending(p.Generation, spending{time.Duration(p.DeviceNanos), time.Duration(p.DemotedNanos)})
		}
		if now.complete() && !before.complete() {
			d.shares.learnRight(d, m, q)
		}
	}
	if d.onGPU() {
		d.groups.observe(o)
	}
}

// complete reports whether the process runs all its batch sizes.
func (o *observation) complete() bool { return len(o.batches) > 0 && !o.growing }

// readReport learns from the active process's last report, and from another model that serves.
func (d *Decider) readReport(m *member) {
	q := m.active()
	if q == nil {
		return
	}
	if before := m.serves; before != q.Card {
		m.serves = q.Card
		if before != nil && q.Card == m.Card {
			d.replaced(m, !before.Equal(q.Card))
		}
	}
	r := &m.Report
	if r.Generation != q.Generation {
		return
	}
	m.entitled.unprotected = r.Unprotected
	if d.onGPU() {
		m.noteSpending(r.Generation, spending{time.Duration(r.DeviceNanos), time.Duration(r.DemotedNanos)})
	}
	d.guarantees.noteCosts(d, m, q.Worker)
	m.limit = r.Limit
	fit := r.Fit
	if m.growing() {
		fit = control.FitUnknown
	}
	if fit == m.fit {
		return
	}
	m.fit = fit
	d.log(m.id, zerolog.DebugLevel, "batching", map[string]any{"fit": string(fit), "limit": r.Limit})
	const minInterval = 100 * time.Millisecond // paper 3.3.1
	if fit == control.FitUnder && d.s.Now-d.tuned >= minInterval {
		d.do(Tune{})
	}
}

// replaced forgets the measurements of an instance that has another process. another: its model is another
// one, too.
func (d *Decider) replaced(m *member, another bool) {
	if !another {
		m.measured.Measurement = gslice.Measurement{} // it was measured against another objective
		return
	}
	m.measured = measurement{}
	m.entitled.forgetCosts()
	d.do(NextWindow{m.id})
	d.shares.replaced(d, m)
}

// measurement is what was measured of an instance's share.
type measurement struct {
	gslice.Measurement
	// cpuPerRequest is a smoothed mean of CPU time; 0 if it is not known.
	cpuPerRequest time.Duration
}

// noteCPU records the CPU time that a process spent on that many requests.
func (m *measurement) noteCPU(spent time.Duration, requests int64) {
	m.cpuPerRequest = smooth(m.cpuPerRequest, spent/time.Duration(requests))
}

// measure moves the window statistics into the averages, and measures the use of the device.
func (d *Decider) measure() {
	elapsed := d.s.Now - d.tuned
	d.tuned = d.s.Now
	if d.s.Config.Guarantees() {
		d.guarantees.measure(d, elapsed)
	}
	for _, m := range d.members {
		x, percent, w := &m.measured, m.sharePercent(), m.Window
		if w == nil {
			continue
		}
		m.behind = w.Behind(d.within(m))
		// A measurement must not cover two shares, a change of share, a share that is not the
		// policy's, or only some of the batch sizes.
		switch {
		case !x.Measures(percent), !m.whole() && percent != m.Share, m.Changing, d.groups.moving(m), m.growing(), m.Active == 0:
			x.Restart(percent, d.s.Now)
		case x.Enough(w.Arrived, w.Answered, d.s.Now):
			tail := *w // Tail sorts
			x.Add(gslice.Window{
				Arrived: w.Arrived, Answered: w.Answered, Aggregation: w.Aggregation,
				Tail: tail.Tail(), Throughput: d.throughput(m, w, percent),
			}, d.s.Now, m.f.Objective, d.within(m))
		default:
			continue
		}
		d.do(NextWindow{m.id})
	}
}

// throughput is requests per busy second of the share, 0 if nothing ran. Under a CPU quota
// a process runs at full speed until the quota is used up, so there the CPU time per
// request counts.
func (d *Decider) throughput(m *member, w *datapath.Window, percent float64) float64 {
	if w.Ran == 0 || w.Busy <= 0 {
		return 0
	}
	speed := float64(w.Ran) / w.Busy.Seconds()
	if d.onGPU() || m.measured.cpuPerRequest <= 0 {
		return speed
	}
	part := percent / 100 * float64(max(1, d.Device.cpus))
	return min(speed, part/m.measured.cpuPerRequest.Seconds())
}

// smooth moves a mean, 0 if there is none yet, towards a value.
func smooth(mean, value time.Duration) time.Duration {
	if mean == 0 {
		return value
	}
	return mean + (value-mean)/8
}

// round rounds to hundredths, for display.
func round(v float64) float64 { return math.Round(100*v) / 100 }
