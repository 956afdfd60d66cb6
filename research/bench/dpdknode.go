package bench

import (
	"time"

	"github.com/penstock/penstock/internal/testbed"
)

// DPDKNode is the report of `penstock-lab dpdk`. It compares whole nodes that receive from
// kernel sockets with nodes that receive from DPDK ports, in the same run. Inference functions
// map the ports' packet memory and gather from it.
type DPDKNode struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	Ways    []DPDKNodeWay   `json:"ways"`
}

// DPDKNodeWay is one path of requests into a node.
type DPDKNodeWay struct {
	// Source is udp, memif or tap. Camera describes the sender.
	Source string `json:"source"`
	Camera string `json:"camera"`
	// BusyPollMillis is the node's busy_poll.
	BusyPollMillis float64 `json:"busy_poll_ms"`
	// Memory is "huge pages" or "ordinary pages". MappedMiB is how much of it the serving
	// process has mapped read-only.
	Memory    string             `json:"memory"`
	MappedMiB float64            `json:"mapped_read_only_mib"`
	Functions []DPDKNodeFunction `json:"functions"`
	// Of DPDK: the mbufs of the pool, how many were missing from it after the last answer, and
	// the frames that belonged to no function. The rings of a port keep some mbufs.
	Mbufs     uint64 `json:"mbufs,omitempty"`
	MbufsHeld uint64 `json:"mbufs_held,omitempty"`
	// Lacks is why the path was not measured, or empty.
	Lacks string `json:"lacks,omitempty"`
}

// DPDKNodeFunction is one model behind a way. All times are in microseconds.
type DPDKNodeFunction struct {
	Model        string `json:"model"`
	PictureBytes int    `json:"picture_bytes"`
	Fragments    int    `json:"pieces"`
	// Alone is one request at a time with a pause after each. Loaded has InFlight requests in
	// flight at any time.
	Alone  DPDKNodeTraffic `json:"alone"`
	Loaded DPDKNodeTraffic `json:"loaded"`
}

// DPDKNodeTraffic has the outcomes and times of requests.
type DPDKNodeTraffic struct {
	InFlight        int     `json:"in_flight"`
	Seconds         float64 `json:"seconds"`
	ImagesPerSecond float64 `json:"images_per_s"`
	BytesPerSecond  float64 `json:"bytes_per_s"`
	MeanBatch       float64 `json:"mean_batch"`
	// Requests counts requests with status ok; Wrong of them had an incorrect answer. Refused
	// counts those with another status, and Unanswered those without an answer.
	Requests   int `json:"requests"`
	Wrong      int `json:"wrong"`
	Refused    int `json:"refused"`
	Unanswered int `json:"unanswered"`
	// EndToEnd is measured at the camera, from handing over the first byte until the answer is
	// received. The others are the node's stages.
	EndToEnd  Micros `json:"end_to_end_us"`
	Aggregate Micros `json:"aggregate_us"`
	Queue     Micros `json:"queue_us"`
	Gather    Micros `json:"gather_us"`
	Infer     Micros `json:"infer_us"`
	Reply     Micros `json:"reply_us"`
}

// NullModel stands for a model that computes nothing. It answers with a digest of every byte of
// the picture, so that a single byte that was gathered incorrectly is detected.
const NullModel = "null"

// DPDKNodeOptions say what is measured.
type DPDKNodeOptions struct {
	Setup
	ModelNames []string
	// Sources are any of udp, memif and tap. The answers of the others are compared with those
	// of the first.
	Sources  []string
	BusyPoll []time.Duration
	// Alone and Loaded are the durations of the two measurements.
	Alone, Loaded time.Duration
	InFlight      int
	// Drivers are the DPDK driver libraries to load. None are needed if DPDK's package is
	// installed.
	Drivers []string
}
