package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/research/floor"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Overhead is the report of `penstock-lab overhead`. It compares Penstock through a
// whole node, from a received datagram to the sent reply, with the bare framework at
// the same batch size in the same run.
type Overhead struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	// Floor is a bare futex wake of one process by another, one way. A path whose
	// threads sleep includes two of them in the added time.
	Floor Micros         `json:"floor_us"`
	Cases []OverheadCase `json:"cases"`
}

// OverheadCase is one model at one batch size.
type OverheadCase struct {
	Model string `json:"model"`
	Batch int    `json:"batch"`
	// Bare is the framework alone with one batch in flight, the median of the runs
	// before and after Penstock's. BareOverlapped has two batches in flight. BareBatch
	// is the time of one batch.
	BareImagesPerSecond           float64 `json:"bare_images_per_s"`
	BareOverlappedImagesPerSecond float64 `json:"bare_overlapped_images_per_s,omitempty"`
	BareBatch                     Micros  `json:"bare_batch_us"`
	// Ways are Penstock's settings: the default, and with busy_poll.
	Ways []OverheadWay `json:"ways"`
}

// OverheadWay is Penstock with one setting of busy_poll.
type OverheadWay struct {
	BusyPollMillis float64 `json:"busy_poll_ms"`
	// Throughput is measured under a closed loop, with one row per number of ports.
	// Best is the row with the highest ratio.
	Throughput []ThroughputCase `json:"throughput"`
	Best       ThroughputCase   `json:"best"`
	Latency    LatencyCase      `json:"latency"`
}

// ThroughputCase is a node's throughput under a closed loop.
type ThroughputCase struct {
	// Ports is how many functions serve the model, each with its own port, receive
	// thread and process. Flows is how many sockets send to each.
	Ports int `json:"ports"`
	Flows int `json:"flows"`
	// InFlight is how many requests each flow keeps in flight.
	InFlight        int     `json:"in_flight"`
	Seconds         float64 `json:"seconds"`
	ImagesPerSecond float64 `json:"images_per_s"`
	BytesPerSecond  float64 `json:"bytes_per_s"`
	MeanBatch       float64 `json:"mean_batch"`
	Answers         Answers `json:"answers"`
	KernelDrops     uint64  `json:"kernel_drops"`
	// Ratio is relative to the bare framework with one batch in flight, RatioOverlapped
	// to it with two. If there is more than one bare result, the target refers to the
	// better one.
	Ratio           float64 `json:"ratio"`
	RatioOverlapped float64 `json:"ratio_overlapped,omitempty"`
	// Busy is the time of the busiest thread of each kind, in percent of one CPU. Limit
	// names the bottleneck.
	Busy  Busy   `json:"busiest_thread_percent"`
	Limit string `json:"limit"`
}

// LatencyCase is what Penstock adds to the latency of a batch on an otherwise idle
// device, if the batch's last packets all arrive at once.
type LatencyCase struct {
	// Volleys is the number of volleys sent, of Batch requests each. Whole of them
	// formed one batch of that size; only these are measured.
	Volleys  int `json:"volleys"`
	EndToEnd int `json:"whole"`
	// Added is the time from the last received packet to the sent reply, minus the
	// gather and the bare framework's median batch. AddedWithGather includes the
	// gather.
	Added           Micros `json:"added_us"`
	AddedWithGather Micros `json:"added_with_gather_us"`
	// Queue, Gather, Infer and Reply are its stages.
	Queue  Micros `json:"queue_us"`
	Gather Micros `json:"gather_us"`
	Infer  Micros `json:"infer_us"`
	Reply  Micros `json:"reply_us"`
}

// OverheadOptions say what is measured.
type OverheadOptions struct {
	Setup
	ModelNames []string
	Batches    []int
	// Duration is of each measurement of throughput. Volleys is how many are sent.
	Duration time.Duration
	Volleys  int
	// Ports are the numbers of ports to try, in order, until one reaches the target.
	Ports []int
	Flows int
	// Receivers are the threads that receive from each port.
	Receivers int
	// BusyPoll are the settings of busy_poll to measure.
	BusyPoll []time.Duration
}

// enough is the ratio that Penstock must reach (design: 95 % of the throughput).
const enough = 0.95

// wakeSamples take half a second. The sleeper sleeps about as long as between volleys.
const wakeSamples = 500

// RunOverhead measures every model at every batch size.
func RunOverhead(ctx context.Context, o OverheadOptions) (Overhead, error) {
	r := Overhead{Machine: o.Machine}
	samples, err := floor.MeasureWakeAcross(wakeSamples, 2*idleGap)
	if err != nil {
		return r, err
	}
	r.Floor = micros(samples)
	for _, name := range o.ModelNames {
		card, err := o.Card(name)
		if err != nil {
			return r, err
		}
		for _, batch := range o.Batches {
			c, device, err := o.overheadCase(ctx, card, name, batch)
			if err != nil {
				return r, fmt.Errorf("%s at batch %d: %w", name, batch, err)
			}
			r.Device = device
			r.Cases = append(r.Cases, c)
		}
	}
	return r, nil
}

func (o *OverheadOptions) overheadCase(ctx context.Context, card *models.Card, name string, batch int) (c OverheadCase, device string, err error) {
	c = OverheadCase{Model: card.Name, Batch: batch}
	dir, err := testbed.NewDir()
	if err != nil {
		return c, "", err
	}
	defer os.RemoveAll(dir)
	file, err := testbed.Variant(dir, card, testbed.Ladder(batch))
	if err != nil {
		return c, "", err
	}
	o.Printf("%s, batch %d: the bare framework", name, batch)
	before, err := bareApart(ctx, o.Setup, name, batch, 1, o.Duration)
	if err != nil {
		return c, "", err
	}
	c.BareBatch = before.Time
	if before.Device != configs.DeviceCPU {
		overlapped, err := bareApart(ctx, o.Setup, name, batch, 2, o.Duration)
		if err != nil {
			return c, "", err
		}
		c.BareOverlappedImagesPerSecond = overlapped.ImagesPerSecond
	}
	picture := testbed.Noise(card, 2)
	for _, busy := range o.BusyPoll {
		w := OverheadWay{BusyPollMillis: busy.Seconds() * 1000}
		for i, ports := range o.Ports {
			o.Printf("%s, batch %d: Penstock, busy_poll %v, %d port(s)", name, batch, busy, ports)
			t, err := o.throughput(ctx, &c, &w, busy, file, picture, ports, i == 0)
			if err != nil {
				return c, "", err
			}
			w.Throughput = append(w.Throughput, t)
			if t.ImagesPerSecond >= enough*max(before.ImagesPerSecond, c.BareOverlappedImagesPerSecond) {
				break
			}
		}
		c.Ways = append(c.Ways, w)
	}
	o.Printf("%s, batch %d: the bare framework again", name, batch)
	after, err := bareApart(ctx, o.Setup, name, batch, 1, o.Duration)
	if err != nil {
		return c, "", err
	}
	c.BareImagesPerSecond = (before.ImagesPerSecond + after.ImagesPerSecond) / 2
	for i := range c.Ways {
		w := &c.Ways[i]
		for j := range w.Throughput {
			t := &w.Throughput[j]
			t.Ratio = t.ImagesPerSecond / c.BareImagesPerSecond
			if c.BareOverlappedImagesPerSecond > 0 {
				t.RatioOverlapped = t.ImagesPerSecond / c.BareOverlappedImagesPerSecond
			}
			t.Limit = t.limit(w.BusyPollMillis > 0)
		}
		w.Best = slices.MaxFunc(w.Throughput, func(a, b ThroughputCase) int { return cmp.Compare(a.Ratio, b.Ratio) })
	}
	return c, o.deviceName(before.Device), nil
}

// deviceName returns the name of the GPU with that UUID, or its argument if there is
// none.
func (o *OverheadOptions) deviceName(uuid string) string {
	for _, g := range o.Machine.GPUs {
		if g.UUID == uuid {
			return g.Name
		}
	}
	return uuid
}

// limit names the bottleneck. It is the device if Penstock reaches the target ratio,
// and the receive buffer if the kernel dropped datagrams. Otherwise it is a thread that
// uses more than nine tenths of its CPU, or else the gaps between batches. With
// busy_poll the node's threads always use their CPUs, so only the load's thread is
// significant.
func (t *ThroughputCase) limit(busyPoll bool) string {
	const full = 90
	better := t.Ratio
	if t.RatioOverlapped > 0 {
		better = min(better, t.RatioOverlapped)
	}
	switch {
	case better >= enough:
		return "the device"
	case t.Answers.OK > 0 && t.KernelDrops > t.Answers.OK/100:
		return "the receive buffer: the kernel dropped datagrams"
	case t.Busy.Manager >= full && !busyPoll:
		return "a thread of the manager"
	case t.Busy.Load >= full:
		return "a thread of the load"
	case t.Busy.IF >= full && !busyPoll:
		return "the batch loop's thread"
	case t.MeanBatch > 0 && better < enough:
		return "the gaps between batches"
	}
	return ""
}

// throughput runs a node with that many functions of the card under a closed loop. If
// latency is true, it measures the latency of volleys first.
func (o *OverheadOptions) throughput(ctx context.Context, c *OverheadCase, w *OverheadWay, busy time.Duration, file string, picture []byte, ports int, latency bool) (_ ThroughputCase, err error) {
	t := ThroughputCase{Ports: ports, Flows: o.Flows, Seconds: o.Duration.Seconds()}
	// Four batches: two in flight, one complete, one arriving; at least 8.
	t.InFlight = max(8, (4*c.Batch+o.Flows-1)/o.Flows)
	var functions []Served
	for i := range ports {
		functions = append(functions, Served{Name: "fn" + strconv.Itoa(i), Card: file, Percent: float64(100 / ports), Receivers: o.Receivers})
	}
	slots := 64
	for slots < 2*t.InFlight*o.Flows {
		slots *= 2
	}
	b, err := testbed.Start(ctx, o.Binary, testbed.Options{Device: o.Device, More: configuration(functions, busy), Slots: slots})
	if err != nil {
		return t, err
	}
	defer b.Kill()
	if latency {
		if err := o.volleys(ctx, b, c, &w.Latency, picture); err != nil {
			return t, err
		}
	}
	var loads []*Traffic
	defer func() {
		for _, l := range loads {
			l.Stop()
		}
	}()
	for i := range ports {
		f, err := b.Function("fn" + strconv.Itoa(i))
		if err != nil {
			return t, err
		}
		l, err := NewTraffic(ctx, TrafficOptions{Port: f.Port, Flows: o.Flows, InFlight: t.InFlight, Picture: picture, Expect: 1 << 18})
		if err != nil {
			return t, err
		}
		loads = append(loads, l)
		if err := l.Keep(t.InFlight); err != nil {
			return t, err
		}
	}
	// SLAB needs this time to find its batch size, and the clients to get their credit.
	if err := testbed.Pause(ctx, time.Second+o.Duration/4); err != nil {
		return t, err
	}
	threads := readThreads(b.PID())
	from := shm.Now()
	if err := testbed.Pause(ctx, o.Duration); err != nil {
		return t, err
	}
	to := shm.Now()
	t.Busy = busiest(threads, readThreads(b.PID()), time.Duration(to-from))
	var all []Answered
	for i, l := range loads {
		all = append(all, l.Between(from, to)...)
		f, err := b.Function("fn" + strconv.Itoa(i))
		if err != nil {
			return t, err
		}
		t.KernelDrops += f.KernelDrops
	}
	for _, l := range loads {
		l.Stop()
	}
	t.Answers, t.MeanBatch = Count(all), meanBatch(all)
	t.Seconds = time.Duration(to - from).Seconds()
	t.ImagesPerSecond = float64(t.Answers.OK) / t.Seconds
	t.BytesPerSecond = t.ImagesPerSecond * float64(len(picture))
	if t.Answers.Unanswered > 0 {
		return t, fmt.Errorf("%d requests were not answered; the node said: %s", t.Answers.Unanswered, lastOf(b.Log()))
	}
	if t.Answers.OK == 0 {
		return t, fmt.Errorf("no request was answered ok: %+v; the node said: %s", t.Answers, lastOf(b.Log()))
	}
	return t, drain(b)
}

// volleys measures the time added to batches whose last packets arrive at once.
func (o *OverheadOptions) volleys(ctx context.Context, b *testbed.Harness, c *OverheadCase, l *LatencyCase, picture []byte) error {
	f, err := b.Function("fn0")
	if err != nil {
		return err
	}
	v, err := newVolley(f.Port, c.Batch, picture)
	if err != nil {
		return err
	}
	defer v.close()
	var added, with, queue, gather, infer, reply []time.Duration
	bare := time.Duration(c.BareBatch.P50 * float64(time.Microsecond))
	// A request that lost a fragment ends as incomplete at its objective, 10 s (testbed.Variant).
	// Its volley does not count.
	const patience = 20 * time.Second
	for i := range o.Volleys + o.Volleys/10 {
		results, err := v.fire(ctx, patience)
		if err != nil {
			return err
		}
		if i < o.Volleys/10 {
			continue // warm-up, while SLAB finds its batch size
		}
		l.Volleys++
		if slices.ContainsFunc(results, func(r wire.Result) bool { return r.Status != wire.StatusOK || int(r.Batch) != c.Batch }) {
			continue
		}
		l.EndToEnd++
		for _, r := range results {
			total := r.Queue + r.Gather + r.Infer + r.Reply
			added = append(added, total-r.Gather-bare)
			with = append(with, total-bare)
			queue, gather = append(queue, r.Queue), append(gather, r.Gather)
			infer, reply = append(infer, r.Infer), append(reply, r.Reply)
		}
		time.Sleep(idleGap)
	}
	l.Added, l.AddedWithGather = micros(added), micros(with)
	l.Queue, l.Gather, l.Infer, l.Reply = micros(queue), micros(gather), micros(infer), micros(reply)
	return nil
}
