package observe

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/wire"
)

// Snapshot is a node at one moment.
type Snapshot struct {
	Status control.Status
	// Frames is what an Ethernet port counted, nil if the node has none.
	Frames *dpdk.GroupStats
	// Restored counts how often the runtime folder was restored; Lost: it cannot be.
	Restored uint64
	Lost     bool
	// Functions are those of Status, in its order.
	Functions []Function
}

// Function is what a snapshot has of a function besides its status.
type Function struct {
	Stats datapath.Stats
	// Histograms are those of Metrics.Of.
	Histograms *Histograms
	Picture    uint64 // number of the newest picture
	Serving    bool
	Planned    float64 // control.PeersOrder.Rate
	Failures   uint64  // processes that ended unexpectedly
	// Device memory: of the linked model, and of the largest batch beyond that.
	PersistentBytes, EphemeralBytes int64
	// Uses are the instances' guarantees; nil if the node has none.
	Uses []sharing.Use
}

// described are the descriptors of the snapshot's metrics, for the page that lists them.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	described = append(described, d)
	return d
}

var (
	descShare = describe("penstock_share_ratio",
		"Share of the device. 1 is the whole device.", "function", "instance", "device")
	descGuarantee = describe("penstock_guarantee_ratio",
		"Guaranteed part of the device's time. 1 is all of it.", "function", "instance", "device")
	descNeed = describe("penstock_need_ratio",
		"Part of the device's time that recent requests need.", "function", "instance", "device")
	descNeeds = describe("penstock_needs_ratio",
		"Part of the device's time that all functions need. Above 0.9 not all objectives can be kept.", "device")
	descDeviceTime = describe("penstock_device_seconds_total",
		"Device time used, within the guarantee or beyond it.", "function", "instance", "device", "priority")
	descFeasible = describe("penstock_objective_guaranteed",
		"1 if the objective holds whatever other functions do, else 0.", "function", "instance", "device")
	descObjective = describe("penstock_objective_seconds",
		"Latency objective.", "function")
	descServing = describe("penstock_function_serving",
		"1 while every instance has a process that serves, else 0.", "function")
	descFailures = describe("penstock_process_failures_total",
		"Processes that ended unexpectedly.", "function")
	descSwaps = describe("penstock_swaps_total",
		"Hand-overs from an active process to its shadow, and moves to other multiprocessors.", "function")
	descSMs = describe("penstock_share_multiprocessors",
		"Multiprocessors of the GPU that the serving process counts.", "function", "instance", "device")
	descConfiguration = describe("penstock_configuration_rejected",
		"1 while the node rejects the configuration file, else 0. /status.json has the reason.")
	descFolder = describe("penstock_runtime_folder_restored_total",
		"Times that removed files of the runtime folder were restored.")
	descFolderLost = describe("penstock_runtime_folder_lost",
		"1 while the runtime folder cannot be restored, else 0. /readyz has the reason.")
	descLostDevice = describe("penstock_device_lost",
		"1 while the device can run nothing, else 0. /status.json has the reason.", "device")
	descFaults = describe("penstock_device_faults_total",
		"Times that the GPU failed for all its functions at once.", "device")
	descMemory = describe("penstock_device_memory_bytes",
		"Memory of the GPU.", "device")
	descUsed = describe("penstock_device_memory_used_bytes",
		"Memory of the GPU in use by all programs.", "device")
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
		"Device memory of weights that processes share.", "device")
	descWeightFiles = describe("penstock_weights_files",
		"Files of weights that processes share.", "device")
	descPersistent = describe("penstock_model_persistent_bytes",
		"Device memory of a linked model.", "function")
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

// collector collects the counters of a snapshot.
type collector struct {
	snapshot func() (Snapshot, error)
}

// Describe sends nothing: the collector is unchecked, because functions are
// added and removed.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads every function's counters.
func (x collector) Collect(out chan<- prometheus.Metric) {
	s, err := x.snapshot()
	if err != nil {
		return // the node has stopped
	}
	c := sink(out)
	c.node(&s)
	for i := range s.Status.Devices {
		c.device(&s.Status.Devices[i], s.Status.Policy == string(configs.PolicyGuarantee))
	}
	if s.Frames != nil {
		c.frames(s.Frames)
	}
	for i := range s.Functions {
		c.instances(&s.Status.Functions[i], &s.Functions[i])
		c.function(&s.Status.Functions[i], &s.Functions[i])
	}
}

// sink takes metrics.
type sink chan<- prometheus.Metric

func (c sink) counter(d *prometheus.Desc, v uint64, labels ...string) {
	c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// seconds sends a counter of time.
func (c sink) seconds(d *prometheus.Desc, v float64, labels ...string) {
	c <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (c sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// flag sends a gauge of 1 or 0.
func (c sink) flag(d *prometheus.Desc, set bool, labels ...string) {
	v := 0.0
	if set {
		v = 1
	}
	c.gauge(d, v, labels...)
}

func (c sink) node(s *Snapshot) {
	c.flag(descConfiguration, !s.Status.Configuration.Followed)
	c.counter(descFolder, s.Restored)
	c.flag(descFolderLost, s.Lost)
	for _, w := range s.Status.Workers {
		if w.MemoryBytes > 0 {
			c.gauge(descWorkerMemory, float64(w.MemoryBytes), w.Name)
			c.flag(descThrashing, w.Thrashing, w.Name)
		}
	}
}

func (c sink) device(d *control.DeviceStatus, guarantees bool) {
	if guarantees {
		c.gauge(descNeeds, d.NeedsPercent/100, d.Name)
	}
	c.flag(descLostDevice, d.Lost != "", d.Name)
	if d.GPU == nil {
		return
	}
	c.counter(descFaults, d.Faults.Count, d.Name)
	c.gauge(descMemory, float64(d.GPU.MemoryBytes), d.Name)
	c.gauge(descUsed, float64(d.GPU.UsedBytes), d.Name)
	if d.GPU.Weights != nil {
		c.gauge(descWeights, float64(d.GPU.Weights.Bytes), d.Name)
		c.gauge(descWeightFiles, float64(d.GPU.Weights.Files), d.Name)
	}
}

// frames sends what an Ethernet port counted.
func (c sink) frames(p *dpdk.GroupStats) {
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

// instances sends the parts of devices that a function's instances have.
func (c sink) instances(f *control.FunctionStatus, s *Function) {
	for i, in := range f.Instances {
		labels := []string{f.Name, strconv.Itoa(i), in.Device}
		if s.Uses == nil {
			c.gauge(descShare, in.SharePercent/100, labels...)
		} else {
			u := s.Uses[i]
			c.gauge(descGuarantee, u.Guarantee, labels...)
			c.gauge(descNeed, u.Need, labels...)
			c.flag(descFeasible, !u.Infeasible, labels...)
			c.seconds(descDeviceTime, u.Guaranteed.Seconds(), append(labels, "guaranteed")...)
			c.seconds(descDeviceTime, u.Demoted.Seconds(), append(labels, "demoted")...)
		}
		for _, p := range in.Processes {
			if p.SMs > 0 && p.State == control.Active {
				c.gauge(descSMs, float64(p.SMs), labels...)
			}
		}
	}
}

func (c sink) function(f *control.FunctionStatus, s *Function) {
	c.gauge(descObjective, f.SLOMillis/1000, f.Name)
	c.flag(descServing, s.Serving, f.Name)
	c.counter(descFailures, s.Failures, f.Name)
	c.counter(descSwaps, f.Swaps, f.Name)
	c.counter(descHangs, f.Hangs, f.Name)
	c.counter(descAccepted, s.Stats.Accepted, f.Name)
	c.counter(descRequestsLost, s.Stats.Lost, f.Name)
	c.counter(descRejected, s.Stats.Rejected, f.Name)
	c.counter(descDatagrams, s.Stats.Source.Datagrams, f.Name)
	c.counter(descBytes, s.Stats.Source.Bytes, f.Name)
	c.counter(descDrops, s.Stats.Source.KernelDrops, f.Name, "kernel")
	c.counter(descDrops, s.Stats.Source.Truncated, f.Name, "truncated")
	for reason, n := range s.Stats.Requests.Malformed {
		if r := wire.Reason(reason); r != wire.ReasonNone {
			c.counter(descDrops, n, f.Name, r.String())
		}
	}
	for reason, n := range s.Stats.Requests.Dropped {
		c.counter(descDrops, n, f.Name, aggregate.Drop(reason).String())
	}
	for status, n := range s.Stats.Results {
		c.counter(descResults, n, f.Name, wire.Status(status).String())
	}
	c.counter(descNACKs, s.Stats.Requests.NACKs, f.Name)
	c.counter(descWithheld, s.Stats.Requests.Withheld, f.Name)
	c.counter(descEvicted, s.Stats.Requests.Evicted, f.Name)
	c.counter(descShed, s.Stats.Requests.Shed, f.Name)
	c.counter(descUnsent, s.Stats.Unsent, f.Name)
	c.gauge(descShedding, s.Stats.Source.Shedding, f.Name)
	c.gauge(descHeld, float64(s.Stats.Source.HeldBytes), f.Name)
	c.gauge(descSlab, float64(s.Stats.Source.SlabBytes), f.Name)
	c.gauge(descInFlight, float64(s.Stats.InFlight), f.Name)
	c.gauge(descPersistent, float64(s.PersistentBytes), f.Name)
	c.gauge(descEphemeral, float64(s.EphemeralBytes), f.Name)
	if r := f.Residency; r != nil {
		for _, state := range control.ResidencyStates {
			c.flag(descModelState, r.State == state, f.Name, string(state))
		}
		c.counter(descLoads, r.Loads, f.Name)
		c.counter(descEvictions, r.Evictions, f.Name)
		c.gauge(descLastLoad, r.LastLoadMillis/1000, f.Name)
	}
}
