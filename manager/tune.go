package manager

import (
	"cmp"
	"math"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/share"
	"github.com/penstock/penstock/models"
)

// The manager's part in sharing: it measures, package share decides, and the
// instances' pairs bring the decisions in.

// shareConfig is a configuration as package share wants it.
func shareConfig(c configs.Shares) share.Config {
	s := share.DefaultConfig()
	s.MinimumPercent = c.MinimumPercent
	s.UnknownPercent = c.DefaultPercent
	s.ThresholdPercent = c.ThresholdPercent
	s.HoldDown = c.HoldDown
	s.SpreadSlack = c.SpreadSlack
	s.Steps = c.Steps
	return s
}

// burstMargin is how many times its mean a random stream's rate is to be taken
// for. A device that is busy two thirds of the time makes a request wait for one
// other in the mean (M/D/1), and for a few at the tail.
const burstMargin = 1.5

// An observation takes so many answers, or so much time and a few: with fewer,
// chance speaks.
const (
	enoughAnswers = 64
	enoughTime    = 5 * time.Second
	leastAnswers  = 4
	// The first observation of a share is of caches, queues and rates that are not
	// its own; two that are make an average.
	settling = 1
	enough   = settling + 2
)

// instanceLoad is how an instance has done since its share last changed.
type instanceLoad struct {
	percent float64 // the share that it speaks of
	since   time.Time
	tail, throughput, rate,
	aggregation share.EWMA
	observations int
	// observed is what the averages last said, once they were known.
	observed share.Observation
	known    bool
}

// shareIn takes a new function's instances in and returns their shares; everybody
// else's move at once. A function without shares is no affair of the others': theirs are
// of the whole device, which it uses, too.
func (m *Manager) shareIn(c configs.Function, card *models.Card) []float64 {
	if m.cfg.ChangeOf(c) == configs.ChangeNone {
		return make([]float64, c.Instances)
	}
	for i := range c.Instances {
		// The share that the configuration begins with stands for the knee.
		if err := m.shares.Add(share.ID{IF: c.Name, Instance: i}, cmp.Or(c.SharePercent, card.KneePercent)); err != nil {
			m.log.Error().Err(err).Msg("share out")
		}
	}
	plan := m.shares.Step(time.Since(m.started), nil)
	m.apply(plan, c.Name+" was added")
	shares := make([]float64, c.Instances)
	for _, s := range plan.Status {
		if s.ID.IF == c.Name {
			shares[s.ID.Instance] = s.Percent
		}
	}
	return shares
}

// shareReplaced forgets what was learnt of an instance's old model; shares move at
// once.
func (m *Manager) shareReplaced(in *instance) {
	if in.f.whole() {
		return
	}
	id := share.ID{IF: in.f.name, Instance: in.index}
	if err := m.shares.Replace(id, cmp.Or(in.f.config.SharePercent, in.pair.Card().KneePercent)); err != nil {
		m.log.Error().Err(err).Msg("share out")
		return
	}
	if m.cfg.Shares.Tune {
		m.apply(m.shares.Step(time.Since(m.started), nil), "the model of "+in.f.name+" was replaced")
	}
}

// shareOut lets a function's instances go.
func (m *Manager) shareOut(f *function) {
	if f.whole() {
		return
	}
	name, instances := f.name, len(f.instances)
	for i := range instances {
		if err := m.shares.Remove(share.ID{IF: name, Instance: i}); err != nil {
			m.log.Error().Err(err).Msg("share out")
		}
	}
	m.apply(m.shares.Step(time.Since(m.started), nil), name+" was removed")
}

// tune measures every instance and lets package share decide.
func (m *Manager) tune(now time.Time) {
	m.tuned = now
	observed := map[share.ID]share.Observation{}
	for _, f := range m.functions {
		for _, in := range f.instances {
			if o, ok := in.measure(now); ok && !f.whole() {
				observed[share.ID{IF: f.name, Instance: in.index}] = o
			}
		}
	}
	if m.cfg.Shares.Tune {
		m.apply(m.shares.Step(now.Sub(m.started), observed), "")
	}
}

// look is tune out of turn: libml found a share too small, or perhaps too large.
func (m *Manager) look(in *instance) {
	const atMostEvery = 100 * time.Millisecond
	if now := time.Now(); in.fit == control.FitUnder && now.Sub(m.tuned) >= atMostEvery {
		m.tune(now)
	}
}

// apply brings a plan in. Where functions came or went, cause says so: then that is
// why, and not what was observed.
func (m *Manager) apply(plan share.Plan, cause string) {
	for _, c := range plan.Changes {
		in := m.instance(c.ID.IF, c.ID.Instance)
		if in == nil {
			continue // it is being added, and begins with its share
		}
		event := in.log.Info().Float64("from_percent", round(c.From)).Float64("to_percent", round(c.To)).Str("why", cmp.Or(cause, c.Why))
		if o := in.load.observed; cause == "" {
			event = event.Dur("tail_ms", o.Latency).Dur("left_ms", o.SLO).
				Float64("can_rps", round(o.Throughput)).Float64("must_rps", round(o.ArrivalRate))
			if !m.onGPU() {
				event = event.Dur("cpu_ms", in.cpuPerRequest)
			}
		}
		event.Msg("share changes")
		in.setShare(c.To)
	}
}

// measure empties the tally into the averages and says how the instance does with
// its present share; ok is false while there is nothing to judge it by.
func (in *instance) measure(now time.Time) (o share.Observation, ok bool) {
	f := in.f
	load := &in.load
	elapsed := now.Sub(load.since)
	percent := in.sharePercent()
	changed := percent != load.percent || in.pair.Changing() || in.moving() || in.growing() || in.pair.Active() == nil
	f.mu.Lock()
	t := in.tally
	full := t.answered >= enoughAnswers || elapsed >= enoughTime && (t.answered >= leastAnswers || t.arrived == 0)
	if changed || full {
		in.tally = t.next()
	}
	f.mu.Unlock()
	switch {
	case changed:
		// What was measured is of another share, of two at once, or of a part of the batch
		// sizes.
		*load = instanceLoad{percent: percent, since: now}
		in.bound = ""
		return o, false
	case !full:
		return load.observed, load.known
	}
	load.since = now
	if load.observations++; load.observations <= settling {
		return o, false
	}
	load.rate.Add(float64(t.arrived) / elapsed.Seconds())
	switch {
	case t.ran > 0 && t.busy > 0:
		tail, throughput := in.atShare(&t, load.percent)
		load.tail.Add(tail.Seconds())
		load.throughput.Add(throughput)
	case t.answered > 0: // all late
		load.tail.Add(t.tail().Seconds())
	}
	if t.arrived > 0 {
		load.aggregation.Add(t.aggregation.Seconds() / float64(t.arrived))
	}
	tail, haveLatency := load.tail.Mean()
	throughput, haveThroughput := load.throughput.Mean()
	rate, _ := load.rate.Mean()
	aggregation, _ := load.aggregation.Mean()
	// What a share can shorten comes after the pieces: they have had their part
	// of the objective by then.
	left := max(f.slo-duration(aggregation), f.slo/10)
	o = share.Observation{
		Latency: duration(tail), Throughput: throughput, ArrivalRate: rate * burstMargin, SLO: left,
		// Paper 3.2.1: whichever part takes longer is the bottleneck.
		AggregationBound: aggregation > tail && aggregation+tail > f.slo.Seconds(),
	}
	in.bound = ""
	if o.AggregationBound {
		in.bound = "aggregation"
	}
	load.observed, load.known = o, haveLatency && haveThroughput && load.observations >= enough
	return load.observed, load.known
}

// atShare turns what was measured into what the share stands for. On a GPU it is
// that: a smaller share makes every batch slower. On a CPU it is not: a quota
// lets a process run at full speed until it is used up, so a batch within it says
// nothing of the share: its time is stretched to what its CPU time takes at the
// share, and so is the throughput of a busy second. Where the quota did bind, the
// measured numbers are the longer ones and stay.
func (in *instance) atShare(t *tally, percent float64) (tail time.Duration, throughput float64) {
	tail = t.tail()
	throughput = float64(t.ran) / t.busy.Seconds()
	if in.m.onGPU() || in.cpuPerRequest <= 0 || percent <= 0 {
		return tail, throughput
	}
	part := percent / 100 * float64(max(1, in.m.observed.CPUs))
	each := time.Duration(float64(in.cpuPerRequest) / part)
	if measured := t.busy / time.Duration(t.ran); each > measured {
		tail += each - measured
		throughput = 1 / each.Seconds()
	}
	if in.cpuPerRequest > quotaSlice {
		tail = max(tail, each+time.Duration(float64(tickOverrun)/part))
	}
	return tail, throughput
}

// A process that needs more than one quota's worth is stopped by the scheduler's
// tick, and may have overrun by one: it then stands still until its share has paid
// for that too. (Measured at 250 Hz: 1 ms of quota in 10 ms gives pauses of 27 to
// 35 ms; see orchestrator/quota.go.)
const (
	quotaSlice  = time.Millisecond
	tickOverrun = 4 * time.Millisecond
)

// round is for people: hundredths.
func round(v float64) float64 { return math.Round(100*v) / 100 }

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
