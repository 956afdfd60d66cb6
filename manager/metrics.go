package manager

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/wire"
)

// metrics are the node's Prometheus metrics, in base units. The reply threads
// record into histograms without allocation. Counters that exist elsewhere are
// read when Prometheus scrapes.
type metrics struct {
	registry *prometheus.Registry
	request  *prometheus.HistogramVec
	stage    *prometheus.HistogramVec
	batch    *prometheus.HistogramVec
	swapIdle *prometheus.HistogramVec
	// functions are those of the node by name; control loop.
	functions map[string]*functionMetrics
}

// Stages of a request, in order (docs/architecture.md, "the way of a request").
const (
	stageSocket    = iota // first fragment at the machine -> received
	stageAggregate        // first fragment received -> complete
	stageQueue            // complete -> dispatched
	stageGather           // dispatched -> batch tensor ready
	stageInfer            // gathered -> outputs ready
	stageReply            // outputs ready -> reply handed to the socket
	stageRelease          // reply handed over -> packets released
	numStages
)

// stageNames has one name for each of them.
var stageNames = control.StageNames

func newMetrics(m *Manager) *metrics {
	// 50 µs to 13 s in steps of 1.5, so that 7, 10 and 15 ms fall into different
	// buckets.
	latency := prometheus.ExponentialBuckets(50e-6, 1.5, 32)
	x := &metrics{
		registry:  prometheus.NewRegistry(),
		functions: map[string]*functionMetrics{},
		request: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_request_seconds", Buckets: latency,
			Help: "Time from the arrival of a request's first fragment at the machine to its reply.",
		}, []string{"function"}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_stage_seconds", Buckets: prometheus.ExponentialBuckets(5e-6, 2, 22),
			Help: "Time that a request spent in each stage.",
		}, []string{"function", "stage"}),
		batch: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_batch_requests", Buckets: []float64{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256},
			Help: "Size of each request's batch.",
		}, []string{"function"}),
		swapIdle: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_swap_idle_seconds", Buckets: prometheus.ExponentialBuckets(5e-6, 1.6, 24),
			Help: "Time in a hand-over during which requests waited and no batch ran, by how the share changed.",
		}, []string{"function", "mechanism"}),
	}
	x.registry.MustRegister(x.request, x.stage, x.batch, x.swapIdle, &snapshot{m: m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return x
}

// of returns the histograms of one function. They are looked up once, so that a
// reply needs no lookup.
func (x *metrics) of(name string) *functionMetrics {
	if fm := x.functions[name]; fm != nil {
		return fm
	}
	fm := &functionMetrics{
		request:  x.request.WithLabelValues(name),
		batch:    x.batch.WithLabelValues(name),
		outliers: &outliers{},
	}
	x.functions[name] = fm
	for i, stage := range stageNames {
		fm.stages[i] = x.stage.WithLabelValues(name, stage)
	}
	return fm
}

// forget drops the series of a removed function.
func (x *metrics) forget(name string) {
	delete(x.functions, name)
	label := prometheus.Labels{"function": name}
	x.request.DeletePartialMatch(label)
	x.stage.DeletePartialMatch(label)
	x.batch.DeletePartialMatch(label)
	x.swapIdle.DeletePartialMatch(label)
}

type functionMetrics struct {
	request prometheus.Observer
	batch   prometheus.Observer
	stages  [numStages]prometheus.Observer
	// outliers are kept for the page.
	outliers *outliers
}

// Answered makes functionMetrics a datapath.Observer.
func (fm *functionMetrics) Answered(t *datapath.Times) {
	fm.outliers.note(t)
	fm.request.Observe(seconds(t.Sent - t.FirstFragment))
	fm.stages[stageSocket].Observe(seconds(t.Received - t.FirstFragment))
	fm.stages[stageAggregate].Observe(seconds(t.Complete - t.Received))
	if t.Inferred == 0 {
		return
	}
	fm.stages[stageQueue].Observe(seconds(t.Dispatched - t.Complete))
	fm.stages[stageGather].Observe(seconds(t.Gathered - t.Dispatched))
	fm.stages[stageInfer].Observe(seconds(t.Inferred - t.Gathered))
	fm.stages[stageReply].Observe(seconds(t.Sent - t.Inferred))
	fm.stages[stageRelease].Observe(seconds(t.Released - t.Sent))
	fm.batch.Observe(float64(t.Batch))
}

func seconds(nanos int64) float64 { return float64(nanos) / 1e9 }

// snapshot collects the counters that live in the functions themselves.
type snapshot struct{ m *Manager }

// described are the descriptors of the snapshot's metrics, for the page that lists them.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	described = append(described, d)
	return d
}

var (
	descShare = describe("penstock_share_ratio",
		"Share of the device. 1 is the whole device.", "function", "instance")
	descGuarantee = describe("penstock_guarantee_ratio",
		"Guaranteed part of the device's time. 1 is all of it.", "function", "instance")
	descNeed = describe("penstock_need_ratio",
		"Part of the device's time that recent requests need.", "function", "instance")
	descDeviceTime = describe("penstock_device_seconds_total",
		"Device time used, within the guarantee or beyond it.", "function", "instance", "priority")
	descFeasible = describe("penstock_objective_guaranteed",
		"1 if the objective holds whatever other functions do, else 0.", "function", "instance")
	descObjective = describe("penstock_objective_seconds",
		"Latency objective.", "function")
	descServing = describe("penstock_function_serving",
		"1 while every instance has a process that serves, else 0.", "function")
	descFailures = describe("penstock_process_failures_total",
		"Processes that ended unexpectedly.", "function")
	descSwaps = describe("penstock_swaps_total",
		"Hand-overs from an active process to its shadow, and moves to other multiprocessors.", "function")
	descSMs = describe("penstock_share_multiprocessors",
		"Multiprocessors of the GPU that the serving process counts.", "function", "instance")
	descConfiguration = describe("penstock_configuration_rejected",
		"1 while the node rejects the configuration file, else 0. /status.json has the reason.")
	descFolder = describe("penstock_runtime_folder_restored_total",
		"Times that removed files of the runtime folder were restored.")
	descFolderLost = describe("penstock_runtime_folder_lost",
		"1 while the runtime folder cannot be restored, else 0. /readyz has the reason.")
	descFaults = describe("penstock_device_faults_total",
		"Times that the GPU failed for all functions at once.")
	descOutage = describe("penstock_device_fault_seconds",
		"Time without answers after the last of these faults.")
	descMemory = describe("penstock_device_memory_bytes",
		"Memory of the GPU.")
	descUsed = describe("penstock_device_memory_used_bytes",
		"Memory of the GPU in use by all programs.")
	descHangs = describe("penstock_hangs_total",
		"Processes killed because a batch did not end.", "function")
	descResults = describe("penstock_results_total",
		"Requests by result.", "function", "result")
	descDatagrams = describe("penstock_source_datagrams_total",
		"Datagrams received.", "function")
	descBytes = describe("penstock_source_bytes_total",
		"Bytes of datagrams received.", "function")
	descFrames = describe("penstock_port_frames_total",
		"Frames that the DPDK port received, by what was found in them.", "reason")
	descAnswered = describe("penstock_port_answered_total",
		"Questions about the port's own addresses that were answered.", "protocol")
	descConflicts = describe("penstock_port_address_conflicts_total",
		"Frames of another machine that claims one of the port's addresses.")
	descLost = describe("penstock_port_lost_total",
		"Frames that the DPDK port lost, by place.", "where")
	descLink = describe("penstock_port_link_up",
		"1 while the DPDK port has a link, else 0.")
	descMbufs = describe("penstock_port_mbufs",
		"Packet buffers of DPDK.", "state")
	descDrops = describe("penstock_source_drops_total",
		"Datagrams dropped, by reason.", "function", "reason")
	descShedding = describe("penstock_source_shedding_ratio",
		"Part of the requests that the kernel sheds because a receiver cannot keep up.", "function")
	descHeld = describe("penstock_slab_held_bytes",
		"Packet memory held by requests.", "function")
	descSlab = describe("penstock_slab_bytes",
		"Packet memory.", "function")
	descInFlight = describe("penstock_requests_in_flight",
		"Complete requests that are not answered yet.", "function")
	descAccepted = describe("penstock_requests_accepted_total",
		"Requests that became complete.", "function")
	descRequestsLost = describe("penstock_requests_lost_total",
		"Complete requests that were never answered. It must stay 0.", "function")
	descRejected = describe("penstock_replies_rejected_total",
		"Invalid replies of a process, which were dropped.", "function")
	descNACKs = describe("penstock_nacks_total",
		"NACKs: clients were asked to send fragments again.", "function")
	descWithheld = describe("penstock_answers_withheld_total",
		"Busy answers sent instead of a result because the client must prove its address first.", "function")
	descEvicted = describe("penstock_requests_evicted_total",
		"Incomplete requests that lost their slot or memory to others, or the rest of which was shed.", "function")
	descShed = describe("penstock_requests_shed_total",
		"Shed requests that were answered busy.", "function")
	descUnsent = describe("penstock_replies_unsent_total",
		"Datagrams of replies that the socket refused.", "function")
	descWeights = describe("penstock_weights_bytes",
		"Device memory of weights that processes share.")
	descWeightFiles = describe("penstock_weights_files",
		"Files of weights that processes share.")
	descPersistent = describe("penstock_model_persistent_bytes",
		"Device memory of a linked model.", "function")
	descResident = describe("penstock_model_resident",
		"1 while the model of a worker's member is in memory, 0 while it is evicted or being loaded.", "function")
	descModelState = describe("penstock_model_state",
		"1 for the state of the model of a worker's member (evicted, loading, resident or active), else 0.", "function", "state")
	descLoads = describe("penstock_model_loads_total",
		"Times that the model of a worker's member was loaded.", "function")
	descEvictions = describe("penstock_model_evictions_total",
		"Times that the model of a worker's member was evicted.", "function")
	descLastLoad = describe("penstock_model_last_load_seconds",
		"How long the last load of the model of a worker's member took.", "function")
	descThrashing = describe("penstock_worker_thrashing",
		"1 while a worker cannot load models as fast as requests for them come, else 0.", "worker")
	descWorkerMemory = describe("penstock_worker_memory_bytes",
		"Limit of the memory of a worker's models.", "worker")
	descEphemeral = describe("penstock_model_ephemeral_bytes",
		"Additional device memory of the largest batch.", "function")
)

// Describe sends nothing: the collector is unchecked, because functions are
// added and removed.
func (*snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect reads every function's counters.
func (s *snapshot) Collect(out chan<- prometheus.Metric) {
	c := collector{out}
	s.m.do(func() error {
		c.collectNode(s.m)
		if s.m.device.gpu != nil {
			c.collectDevice(s.m)
		}
		if frames := s.m.network.Frames(); frames != nil {
			c.collectFrames(frames)
		}
		for _, f := range s.m.functions {
			for _, in := range f.instances {
				c.collectInstance(in)
			}
			c.collectFunction(f)
		}
		return nil
	})
}

// collector sends metrics.
type collector struct {
	out chan<- prometheus.Metric
}

func (c collector) counter(d *prometheus.Desc, v uint64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (c collector) gauge(d *prometheus.Desc, v float64, labels ...string) {
	c.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// flag sends a gauge of 1 or 0.
func (c collector) flag(d *prometheus.Desc, set bool, labels ...string) {
	v := 0.0
	if set {
		v = 1
	}
	c.gauge(d, v, labels...)
}

func (c collector) collectNode(m *Manager) {
	c.flag(descConfiguration, !m.file.status.Followed)
	c.counter(descFolder, m.folder.restored)
	c.flag(descFolderLost, m.folder.err != nil)
	for _, w := range m.workersStatus() {
		if w.MemoryBytes > 0 {
			c.gauge(descWorkerMemory, float64(w.MemoryBytes), w.Name)
			c.flag(descThrashing, w.Thrashing, w.Name)
		}
	}
}

func (c collector) collectDevice(m *Manager) {
	gpu := m.device.gpu
	c.counter(descFaults, m.faults.count)
	c.gauge(descOutage, m.faults.last.Seconds())
	c.gauge(descMemory, float64(gpu.MemoryBytes))
	c.gauge(descUsed, float64(gpu.UsedBytes))
	if gpu.Weights != nil {
		c.gauge(descWeights, float64(gpu.Weights.Bytes))
		c.gauge(descWeightFiles, float64(gpu.Weights.Files))
	}
}

// collectFrames sends what an Ethernet port counted.
func (c collector) collectFrames(p *dpdk.GroupStats) {
	for reason, n := range p.Frames {
		c.counter(descFrames, n, frame.Reason(reason).String())
	}
	c.counter(descAnswered, p.Answered.ARP, "arp")
	c.counter(descAnswered, p.Answered.Neighbour, "neighbour")
	c.counter(descAnswered, p.Answered.Echo, "echo")
	c.counter(descConflicts, p.Answered.Conflicts)
	c.counter(descLost, p.Missed, "missed")
	c.counter(descLost, p.NoMbuf, "no_mbuf")
	c.counter(descLost, p.Unsent, "unsent")
	c.counter(descLost, p.NoNeighbour, "no_neighbour")
	c.flag(descLink, p.LinkUp)
	c.gauge(descMbufs, float64(p.MbufsHeld), "held")
	c.gauge(descMbufs, float64(p.Mbufs-p.MbufsHeld), "free")
}

func (c collector) collectInstance(in *instance) {
	index := strconv.Itoa(in.index)
	if in.m.cfg.Guarantees() {
		c.collectGuarantee(in)
	} else {
		c.gauge(descShare, in.sharePercent()/100, in.f.name, index)
	}
	if q := in.pair.Active(); q != nil && in.m.onGPU() {
		c.gauge(descSMs, float64(in.processes.known(q.Generation).sms), in.f.name, index)
	}
}

func (c collector) collectFunction(f *function) {
	stats := f.port.Stats()
	src, counts := stats.Source, stats.Requests
	c.gauge(descObjective, f.slo.Seconds(), f.name)
	c.flag(descServing, f.serving(), f.name)
	c.counter(descFailures, f.processFailures(), f.name)
	c.counter(descSwaps, f.swaps.count, f.name)
	c.counter(descHangs, f.hangs, f.name)
	c.counter(descAccepted, stats.Accepted, f.name)
	c.counter(descRequestsLost, stats.Lost, f.name)
	c.counter(descRejected, stats.Rejected, f.name)
	c.counter(descDatagrams, src.Datagrams, f.name)
	c.counter(descBytes, src.Bytes, f.name)
	c.counter(descDrops, src.KernelDrops, f.name, "kernel")
	c.counter(descDrops, src.Truncated, f.name, "truncated")
	for reason, n := range counts.Malformed {
		if r := wire.Reason(reason); r != wire.ReasonNone {
			c.counter(descDrops, n, f.name, r.String())
		}
	}
	for reason, n := range counts.Dropped {
		c.counter(descDrops, n, f.name, aggregate.Drop(reason).String())
	}
	for status, n := range stats.Results {
		c.counter(descResults, n, f.name, wire.Status(status).String())
	}
	c.counter(descNACKs, counts.NACKs, f.name)
	c.counter(descWithheld, counts.Withheld, f.name)
	c.counter(descEvicted, counts.Evicted, f.name)
	c.counter(descShed, counts.Shed, f.name)
	c.counter(descUnsent, stats.Unsent, f.name)
	c.gauge(descShedding, src.Shedding, f.name)
	c.gauge(descHeld, float64(src.HeldBytes), f.name)
	c.gauge(descSlab, float64(src.SlabBytes), f.name)
	c.gauge(descInFlight, float64(stats.InFlight), f.name)
	c.gauge(descPersistent, float64(f.memory.persistentBytes), f.name)
	c.gauge(descEphemeral, float64(f.memory.ephemeralBytes), f.name)
	if r := f.instances[0].currentResidency(); r != nil {
		c.flag(descResident, r.State == control.Resident || r.State == control.Running, f.name)
		for _, state := range control.ResidencyStates {
			c.flag(descModelState, r.State == state, f.name, string(state))
		}
		c.counter(descLoads, r.Loads, f.name)
		c.counter(descEvictions, r.Evictions, f.name)
		c.gauge(descLastLoad, r.LastLoadMillis/1000, f.name)
	}
}

func (c collector) collectGuarantee(in *instance) {
	labels := []string{in.f.name, strconv.Itoa(in.index)}
	e := &in.entitled
	c.gauge(descGuarantee, e.action.Guarantee, labels...)
	c.gauge(descNeed, e.action.Need, labels...)
	c.flag(descFeasible, e.action.Infeasible == "", labels...)
	for priority, spent := range map[string]time.Duration{"guaranteed": e.spent.total - e.spent.demoted, "demoted": e.spent.demoted} {
		c.out <- prometheus.MustNewConstMetric(descDeviceTime, prometheus.CounterValue, spent.Seconds(), append(slices.Clone(labels), priority)...)
	}
}
