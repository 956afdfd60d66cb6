package bench

import (
	"time"

	"github.com/penstock/penstock/internal/testbed"
)

// IngestDPDK is the report of `penstock-lab ingest --source dpdk`.
type IngestDPDK struct {
	Machine testbed.Machine `json:"machine"`
	// Memory is what packet memory was made of: "huge pages" or "ordinary pages".
	Memory string `json:"memory"`
	// OneCore is what one core makes of what a port of memory brings; Ports is kernel
	// sockets and the ports that this machine has, each fed by a sender of its own.
	OneCore []OneCore    `json:"one_core"`
	Ports   []PortIngest `json:"ports,omitempty"`
	Soak    *Soak        `json:"soak,omitempty"`
}

// OneCore is polling, parsing, aggregation and release on one core, beside bursts that
// are received and freed on the same core in the same run: what a port costs without
// anything above it. The port makes its frames as it is polled, at the same cost for
// both.
type OneCore struct {
	Pieces     int `json:"pieces"`
	PieceBytes int `json:"piece_bytes"`
	// Frames: "headers", where the port writes the 64 bytes of headers into each
	// buffer, and a NIC would have written the payload; "whole", where it writes the
	// payload too.
	Frames                 string  `json:"frames"`
	DatagramsPerSecond     float64 `json:"datagrams_per_s"`
	BareDatagramsPerSecond float64 `json:"bare_datagrams_per_s"`
	// Ratio is the median of those of neighbouring measurements.
	Ratio float64 `json:"ratio"`
	// Read is a second floor: bursts that are received, of each frame the cache line read
	// that its headers lie in, and freed. RatioRead is the median ratio to it.
	ReadDatagramsPerSecond float64 `json:"read_datagrams_per_s,omitempty"`
	RatioRead              float64 `json:"ratio_read,omitempty"`
	Requests               uint64  `json:"requests"`
	Lost                   uint64  `json:"lost"` // requests
	AllocsPerDatagram      float64 `json:"allocs_per_datagram"`
}

// PortIngest is one kind of port with a sender at its other end.
type PortIngest struct {
	Port   string `json:"port"`   // udp, af_packet, tap, af_xdp, memif
	Sender string `json:"sender"` // what sends
	// Rates of whole datagrams; Received are those that became requests' pieces.
	SentPerSecond     float64 `json:"sent_per_s"`
	ReceivedPerSecond float64 `json:"received_per_s"`
	BytesPerSecond    float64 `json:"bytes_per_s"` // of payload
	LostPercent       float64 `json:"lost_percent"`
	AllocsPerDatagram float64 `json:"allocs_per_datagram"`
	// Lacks is why it was not measured, empty where it was.
	Lacks string `json:"lacks,omitempty"`
}

// Soak is a long run at full speed, with requests that are held for a while and some
// that are never whole.
type Soak struct {
	Seconds    float64 `json:"seconds"`
	Datagrams  uint64  `json:"datagrams"`
	Requests   uint64  `json:"requests"`   // whole
	Incomplete uint64  `json:"incomplete"` // given up
	// Missed frames found no place; they are why requests are incomplete.
	Missed uint64 `json:"missed"`
	// Mbufs of the pool, and how many of them were not back at the end: want 0.
	Mbufs       uint64 `json:"mbufs"`
	MbufsAbsent uint64 `json:"mbufs_absent"`
}

// DPDKOptions are those of RunIngestDPDK.
type DPDKOptions struct {
	// Each is how long a measurement takes, Soak how long the soak; 0 for none.
	Each, Soak time.Duration
	// Ports has the ports measured too, as root.
	Ports    bool
	Machine  testbed.Machine
	Progress func(what string)
}
