package evaluate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/arrival"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// sample is one request and its outcome. Times are of CLOCK_MONOTONIC.
type sample struct {
	intended, arrived int64 // arrived is 0 if no answer arrived
	status            client.Status
	unsent            bool
	batch             int
	stages            [len(wire.StageNames)]time.Duration
}

// ok reports whether the request got an ok answer.
func (s *sample) ok() bool { return s.arrived != 0 && s.status == client.StatusOK }

func (s *sample) latency() time.Duration { return time.Duration(s.arrived - s.intended) }

// record has all requests of one function. One goroutine sends; replies arrive on any
// goroutine.
type record struct {
	mu      sync.Mutex // guards all
	samples []sample
	// open maps each entry of the load generator's ledger to its sample. The index is the
	// lower half of the tag, which later requests reuse.
	open []int
}

func (r *record) begin(intended int64, tag uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := int(uint32(tag))
	for len(r.open) <= i {
		r.open = append(r.open, -1)
	}
	r.open[i] = len(r.samples)
	r.samples = append(r.samples, sample{intended: intended})
}

func (r *record) end(reply *client.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := int(uint32(reply.Tag))
	if i >= len(r.open) || r.open[i] < 0 {
		return
	}
	s := &r.samples[r.open[i]]
	r.open[i] = -1
	switch {
	case errors.Is(reply.Err, client.ErrLate):
		s.arrived, s.status = shm.Now(), client.StatusLate
		return
	case reply.Err != nil:
		s.unsent = reply.Sent.IsZero()
		return
	}
	s.arrived, s.status, s.batch = shm.Nanos(reply.Received), reply.Status, reply.Batch
	s.stages = reply.Stages.Times()
}

// all returns the samples so far, in the order of their intended sends. The caller owns the
// slice.
func (r *record) all() []sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.samples)
	// Streams record independently: a sample that is a little late can follow another
	// stream's next one.
	slices.SortStableFunc(all, func(a, b sample) int { return cmp.Compare(a.intended, b.intended) })
	return all
}

// dial wraps a dialer so that every request of a function is recorded.
func (r *record) dial(inner loadgen.Dialer) loadgen.Dialer {
	return func(ctx context.Context, f loadgen.Function, stream int, deliver func(*client.Result)) (loadgen.Sender, error) {
		s, err := inner(ctx, f, stream, func(reply *client.Result) {
			r.end(reply)
			deliver(reply)
		})
		return &recordingSender{s, r}, err
	}
}

type recordingSender struct {
	loadgen.Sender
	record *record
}

func (s *recordingSender) Send(picture []byte, intended int64, tag uint64) error {
	s.record.begin(intended, tag)
	err := s.Sender.Send(picture, intended, tag)
	if err != nil {
		s.record.end(&client.Result{Tag: tag, Err: err})
	}
	return err
}

// open returns one function's open loop. Its arrivals, or their bursts, are one Poisson process,
// however many sockets send them.
func (b *rig) open(f Function, port int, perSecond float64) loadgen.Function {
	var arrivals arrival.Process
	if f.Burst > 0 {
		arrivals = arrival.Process{Shape: arrival.Bursts, Size: f.Burst}
	}
	return loadgen.Function{Name: f.Name, Arrivals: arrivals, Addr: fmt.Sprintf("127.0.0.1:%d", port), SLO: f.SLO, PerSecond: perSecond,
		Streams: flows(b.options.intake.receivers[f.Name], perSecond), Pictures: b.pictures[f.Name], Deadline: f.SLO}
}

// dialer returns the dialer that opens the sockets of open loops.
func dialer() loadgen.Dialer {
	return loadgen.DialClient(client.Options{})
}

// loads sends the traffic of each level in order and measures it.
func (r *runner) loads(ctx context.Context, b *rig, c *Case, seed uint64) (all []Load, err error) {
	if c.Settle > 0 {
		if _, err := r.level(ctx, b, c, c.Levels[0], 0, c.Settle, seed); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}
	for i, level := range c.Levels {
		l, err := r.level(ctx, b, c, level, c.Warmup, c.Measure, seed+uint64(i+1))
		if err != nil {
			return all, fmt.Errorf("load of %.2f: %w", level, err)
		}
		all = append(all, l)
	}
	return all, nil
}

// level sends an open loop to every function for warmup and then measured. It counts the
// requests that were to be sent during measured.
func (r *runner) level(ctx context.Context, b *rig, c *Case, level float64, warmup, measured time.Duration, seed uint64) (l Load, err error) {
	before, err := b.Status()
	if err != nil {
		return l, err
	}
	began := time.Now()
	spec := loadgen.Spec{Duration: warmup + measured, Seed: seed}
	records := map[string]*record{}
	for _, f := range c.Functions {
		at, ok := before.Function(f.Name)
		if !ok {
			return l, fmt.Errorf("node has no function %q", f.Name)
		}
		records[f.Name] = &record{}
		spec.Functions = append(spec.Functions, b.open(f, at.Port, level*b.full[f.Name]))
	}
	inner := dialer()
	busy := startBusy()
	report, err := loadgen.Run(ctx, spec, loadgen.Options{Dial: func(ctx context.Context, f loadgen.Function, stream int, deliver func(*client.Result)) (loadgen.Sender, error) {
		return records[f.Name].dial(inner)(ctx, f, stream, deliver)
	}})
	if err != nil {
		return l, err
	}
	if report.Interrupted {
		return l, context.Cause(ctx)
	}
	l.SenderBusyPercent = busy.percent(len(b.cpus.load))
	after, err := b.Status()
	if err != nil {
		return l, err
	}
	elapsed := time.Since(began)
	samples := map[string][]sample{}
	first := int64(0)
	for name, rec := range records {
		samples[name] = rec.all()
		if s := samples[name]; len(s) > 0 && (first == 0 || s[0].intended < first) {
			first = s[0].intended
		}
	}
	from := first + int64(warmup)
	to := from + int64(measured)
	l.Level, l.Seconds = level, measured.Seconds()
	for i, f := range c.Functions {
		own := within(samples[f.Name], from, to)
		fl := summarize(f, own, measured)
		fl.SendLagP99Millis = report.Functions[i].SendLagP99Millis
		state(&fl, &after)
		use(fl.Guarantee, f.Name, &before, elapsed)
		l.Functions = append(l.Functions, fl)
	}
	l.sum()
	return l, nil
}

// within returns the samples whose intended send lies in that time. all must be sorted by it.
func within(all []sample, from, to int64) []sample {
	begin, _ := slices.BinarySearchFunc(all, from, func(s sample, at int64) int { return int(min(max(s.intended-at, -1), 1)) })
	end, _ := slices.BinarySearchFunc(all, to, func(s sample, at int64) int { return int(min(max(s.intended-at, -1), 1)) })
	return all[begin:end]
}

// summarize summarizes the requests of a period.
func summarize(f Function, all []sample, took time.Duration) FunctionLoad {
	l := FunctionLoad{Name: f.Name, SLOMillis: millis(f.SLO), Sent: uint64(len(all))}
	var spent spentTimes
	var sum time.Duration
	batches, batched, inTime := 0.0, 0.0, 0
	for i := range all {
		s := &all[i]
		switch {
		case s.arrived == 0:
			l.Unanswered++
			if s.unsent {
				l.Unsent++
			}
			continue
		case s.status == client.StatusOK:
			l.OK++
		case s.status == client.StatusLate:
			l.Late++
			continue
		case s.status == client.StatusIncomplete:
			l.Incomplete++
			continue
		case s.status == client.StatusBusy:
			l.Busy++
			continue
		case s.status == client.StatusRefused:
			l.Refused++
			continue
		default:
			l.Failed++
			continue
		}
		latency := s.latency()
		spent.add(s)
		sum += latency
		if latency <= f.SLO {
			inTime++
		}
		if s.batch > 0 {
			batched++
			batches += 1 / float64(s.batch)
		}
	}
	seconds := took.Seconds()
	l.OfferedRPS, l.AnsweredRPS, l.GoodputRPS = float64(l.Sent)/seconds, float64(l.OK)/seconds, float64(inTime)/seconds
	if l.Sent > 0 {
		l.WithinPercent = 100 * float64(inTime) / float64(l.Sent)
	}
	if l.OK > 0 {
		l.MeanMillis = millis(sum) / float64(l.OK)
		l.GUE = l.AnsweredRPS / l.MeanMillis
	}
	spent.sort()
	l.P50Millis, l.P95Millis, l.P99Millis = millis(at(spent.latencies, 0.5)), millis(at(spent.latencies, 0.95)), millis(at(spent.latencies, 0.99))
	l.BatchMillis = millis(at(spent.batches, 0.5))
	l.Stages = spent.stages()
	l.InferMillis = l.Stages[wire.StageNames[stageInfer]].P50
	if batches > 0 {
		l.MeanBatch = batched / batches
	}
	return l
}

// at returns a quantile of a sorted slice, or 0 if it is empty.
func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// state adds the node's status of the function.
func state(l *FunctionLoad, status *control.Status) {
	f, ok := status.Function(l.Name)
	if !ok {
		return
	}
	l.SharePercent, l.Receivers, l.Guarantee = f.SharePercent, f.Receivers, f.Guarantee
	for i := range f.Instances {
		if p, ok := f.Instances[i].Serving(); ok {
			l.SMs += p.SMs
		}
	}
}

// use sets a guarantee's use to its mean since before. The status has that of one control
// interval, which may lie after the load.
func use(g *control.GuaranteeStatus, name string, before *control.Status, elapsed time.Duration) {
	old, ok := before.Function(name)
	if g == nil || !ok || old.Guarantee == nil {
		return
	}
	g.UsePercent = 100 * (g.UsedSeconds - old.Guarantee.UsedSeconds) / elapsed.Seconds()
	g.DemotedPercent = 100 * (g.DemotedSeconds - old.Guarantee.DemotedSeconds) / elapsed.Seconds()
}

// The sender is behind if it hands requests over this late, or uses this much of its CPUs.
const (
	behindLag     = 2.0 // milliseconds, at the 99th percentile
	behindPercent = 92
)

// sum computes the totals over all functions.
func (l *Load) sum() {
	answered, latency := 0.0, 0.0
	for _, f := range l.Functions {
		l.OfferedRPS += f.OfferedRPS
		l.AnsweredRPS += f.AnsweredRPS
		l.GoodputRPS += f.GoodputRPS
		answered += float64(f.OK)
		latency += f.MeanMillis * float64(f.OK)
		if f.SendLagP99Millis > behindLag {
			l.SenderBehind = true
		}
	}
	if l.SenderBusyPercent > behindPercent {
		l.SenderBehind = true
	}
	if l.OfferedRPS > 0 {
		l.WithinPercent = 100 * l.GoodputRPS / l.OfferedRPS
	}
	if answered > 0 && latency > 0 {
		l.GUE = l.AnsweredRPS / (latency / answered)
	}
}

// closed keeps every function busy: it sends the next request after each answer.
func (r *runner) closed(ctx context.Context, b *rig, functions []Function, warmup, measured time.Duration) (l Load, err error) {
	status, err := b.Status()
	if err != nil {
		return l, err
	}
	var loops []*loop
	defer func() {
		for _, o := range loops {
			o.stop()
		}
	}()
	for _, f := range functions {
		at, ok := status.Function(f.Name)
		if !ok {
			return l, fmt.Errorf("node has no function %q", f.Name)
		}
		o, err := startLoop(ctx, at.Port, loopFlows(at.Receivers), inFlight(f), b.pictures[f.Name])
		if err != nil {
			return l, err
		}
		loops = append(loops, o)
	}
	if err := pause(ctx, warmup); err != nil {
		return l, err
	}
	busy := startBusy()
	from := shm.Now()
	if err := pause(ctx, measured); err != nil {
		return l, err
	}
	to := shm.Now()
	l.SenderBusyPercent = busy.percent(len(b.cpus.load))
	if status, err = b.Status(); err != nil {
		return l, err
	}
	l.Seconds = time.Duration(to - from).Seconds()
	for i, f := range functions {
		// Count the answers of the period: in a closed loop they are the offered load.
		own := slices.DeleteFunc(loops[i].stop(), func(s sample) bool { return s.arrived < from || s.arrived >= to })
		fl := summarize(f, own, time.Duration(to-from))
		state(&fl, &status)
		l.Functions = append(l.Functions, fl)
	}
	l.sum()
	return l, nil
}

// inFlight returns how many requests a closed loop keeps in flight: two running batches, one
// complete batch, and one that is arriving.
func inFlight(f Function) int { return max(16, 4*slices.Max(f.Batches)) }

// loop is one function's closed loop, over a few sockets.
type loop struct {
	clients  []*client.Client
	stopping atomic.Bool
	flying   sync.WaitGroup

	mu      sync.Mutex // guards samples
	samples []sample
}

// loopFlows returns how many sockets a closed loop has.
func loopFlows(receivers int) int { return max(2, flows(receivers, 0)) }

func startLoop(ctx context.Context, port, flows, inFlight int, pictures [][]byte) (*loop, error) {
	o := &loop{}
	each := (inFlight + flows - 1) / flows
	const patience = 20 * time.Second // a closed loop counts every answer, however late
	for flow := range flows {
		var c *client.Client
		ready := make(chan struct{})
		send := func() {
			o.flying.Add(1)
			if _, err := c.Send(pictures[flow%len(pictures)], client.RequestOptions{Deadline: patience}); err != nil {
				o.note(sample{intended: shm.Now(), unsent: true})
				o.flying.Done()
			}
		}
		c, err := client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", port), client.Options{InFlight: each, QueueLimit: max(8192, each), Timeout: patience,
			Deliver: func(res *client.Result) {
				<-ready
				s := sample{intended: shm.Nanos(res.Intended), unsent: errors.Is(res.Err, client.ErrUnsent)}
				if res.Err == nil {
					s.arrived, s.status, s.batch = shm.Nanos(res.Received), res.Status, res.Batch
					s.stages = res.Stages.Times()
				}
				o.note(s)
				if !o.stopping.Load() {
					send()
				}
				o.flying.Done()
			}})
		if err != nil {
			o.stop()
			return nil, err
		}
		close(ready)
		o.clients = append(o.clients, c)
		for range each {
			send()
		}
	}
	return o, nil
}

func (o *loop) note(s sample) {
	o.mu.Lock()
	o.samples = append(o.samples, s)
	o.mu.Unlock()
}

// stop waits for requests in flight, closes the sockets and returns all samples. It may be
// called again.
func (o *loop) stop() []sample {
	if !o.stopping.Swap(true) {
		o.flying.Wait()
		for _, c := range o.clients {
			c.Close()
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.samples)
}

// busy measures how much CPU time this process uses.
type busy struct {
	began time.Time
	used  time.Duration
}

func startBusy() busy { return busy{time.Now(), cpuTime()} }

// percent returns the use in percent of that many CPUs.
func (b busy) percent(cpus int) float64 {
	return 100 * (cpuTime() - b.used).Seconds() / (time.Since(b.began).Seconds() * float64(max(cpus, 1)))
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
