package bench

import (
	"time"

	"github.com/penstock/penstock/internal/testbed"
)

// DPDKNode is the report of `penstock-lab dpdk`: a whole node that is fed by kernel sockets and,
// in the same run, by ports of DPDK, whose packet memory inference functions map and
// gather from.
type DPDKNode struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	Ways    []DPDKNodeWay   `json:"ways"`
}

// DPDKNodeWay is one way into a node.
type DPDKNodeWay struct {
	// Source is udp, memif or tap; Camera what sends.
	Source string `json:"source"`
	Camera string `json:"camera"`
	// BusyPollMillis is the node's busy_poll.
	BusyPollMillis float64 `json:"busy_poll_ms"`
	// Memory is "huge pages" or "ordinary pages". MappedMiB is how much of it the process
	// that serves has mapped and cannot write.
	Memory    string             `json:"memory"`
	MappedMiB float64            `json:"mapped_read_only_mib"`
	Functions []DPDKNodeFunction `json:"functions"`
	// Of DPDK: mbufs of the pool, how many were not in it when all was answered, and
	// frames that were none of the functions'. The rings of a port keep some mbufs.
	Mbufs     uint64 `json:"mbufs,omitempty"`
	MbufsHeld uint64 `json:"mbufs_held,omitempty"`
	// Lacks is why it was not measured, empty where it was.
	Lacks string `json:"lacks,omitempty"`
}

// DPDKNodeFunction is one model behind a way. All times are in microseconds.
type DPDKNodeFunction struct {
	Model        string `json:"model"`
	PictureBytes int    `json:"picture_bytes"`
	Pieces       int    `json:"pieces"`
	// Alone: one request at a time, and a pause after each. Loaded: InFlight at any time.
	Alone  DPDKNodeTraffic `json:"alone"`
	Loaded DPDKNodeTraffic `json:"loaded"`
}

// DPDKNodeTraffic is how requests fared.
type DPDKNodeTraffic struct {
	InFlight        int     `json:"in_flight"`
	Seconds         float64 `json:"seconds"`
	ImagesPerSecond float64 `json:"images_per_s"`
	BytesPerSecond  float64 `json:"bytes_per_s"`
	MeanBatch       float64 `json:"mean_batch"`
	// Requests are those that were answered ok, Wrong of which with another answer than is
	// right; Refused had another status, and Unanswered none.
	Requests   int `json:"requests"`
	Wrong      int `json:"wrong"`
	Refused    int `json:"refused"`
	Unanswered int `json:"unanswered"`
	// EndToEnd is from the first byte handed over to be sent to the answer received, at
	// the camera; the others are the node's stages.
	EndToEnd  Micros `json:"end_to_end_us"`
	Aggregate Micros `json:"aggregate_us"`
	Queue     Micros `json:"queue_us"`
	Gather    Micros `json:"gather_us"`
	Infer     Micros `json:"infer_us"`
	Reply     Micros `json:"reply_us"`
}

// NullModel stands for a model that computes nothing and answers with a digest of every
// byte of the picture, so that one byte that was gathered wrong is seen.
const NullModel = "null"

// DPDKNodeOptions say what is measured.
type DPDKNodeOptions struct {
	Setup
	ModelNames []string
	// Sources are of udp, memif and tap. The first is the one whose answers the others'
	// are compared with.
	Sources  []string
	BusyPoll []time.Duration
	// Alone and Loaded are how long each is measured.
	Alone, Loaded time.Duration
	InFlight      int
	// Drivers are libraries of DPDK's drivers that it shall load, none where its package
	// is installed.
	Drivers []string
}
