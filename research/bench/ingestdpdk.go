package bench

import (
	"time"

	"github.com/penstock/penstock/internal/testbed"
)

// IngestDPDK is the report of `penstock-lab ingest --source dpdk`.
type IngestDPDK struct {
	Machine testbed.Machine `json:"machine"`
	// Memory is the kind of packet memory: "huge pages" or "ordinary pages".
	Memory string `json:"memory"`
	// OneCore is the rate of one core with a port of memory. Ports has kernel sockets and
	// this machine's ports, each with its own sender.
	OneCore []OneCore    `json:"one_core"`
	Ports   []PortIngest `json:"ports,omitempty"`
	Soak    *Soak        `json:"soak,omitempty"`
}

// OneCore measures polling, parsing, aggregation and release on one core. Its floor, on
// the same core in the same run, is to receive bursts and free them: the cost of a port
// alone. The port makes its frames when it is polled, at the same cost for both.
type OneCore struct {
	Fragments     int `json:"pieces"`
	FragmentBytes int `json:"piece_bytes"`
	// Frames is "headers" or "whole". With "headers" the port writes the 64 bytes of
	// headers into each buffer, as if a NIC had written the payload. With "whole" it
	// writes the payload too.
	Frames                 string  `json:"frames"`
	DatagramsPerSecond     float64 `json:"datagrams_per_s"`
	BareDatagramsPerSecond float64 `json:"bare_datagrams_per_s"`
	// Ratio is the median of the ratios of consecutive measurements.
	Ratio float64 `json:"ratio"`
	// Read is a second floor: bursts that are received and freed after one read per
	// frame, of the cache line with its headers. RatioRead is the median ratio to it.
	ReadDatagramsPerSecond float64 `json:"read_datagrams_per_s,omitempty"`
	RatioRead              float64 `json:"ratio_read,omitempty"`
	Requests               uint64  `json:"requests"`
	Lost                   uint64  `json:"lost"` // requests
	AllocsPerDatagram      float64 `json:"allocs_per_datagram"`
}

// PortIngest is one kind of port with a sender at its peer.
type PortIngest struct {
	Port   string `json:"port"`   // udp, af_packet, tap, af_xdp, memif
	Sender string `json:"sender"` // what sends
	// Rates of complete datagrams. Received counts those that became fragments of
	// requests.
	SentPerSecond     float64 `json:"sent_per_s"`
	ReceivedPerSecond float64 `json:"received_per_s"`
	BytesPerSecond    float64 `json:"bytes_per_s"` // of payload
	LostPercent       float64 `json:"lost_percent"`
	AllocsPerDatagram float64 `json:"allocs_per_datagram"`
	// Lacks is why the port was not measured, or empty.
	Lacks string `json:"lacks,omitempty"`
}

// Soak is a long run at full speed. It holds some requests for a while, and some never
// become complete.
type Soak struct {
	Seconds    float64 `json:"seconds"`
	Datagrams  uint64  `json:"datagrams"`
	Requests   uint64  `json:"requests"`   // complete
	Incomplete uint64  `json:"incomplete"` // evicted
	// Missed counts frames for which there was no room; they make requests incomplete.
	Missed uint64 `json:"missed"`
	// Mbufs is the size of the pool, MbufsAbsent how many of them were missing at the end;
	// want 0.
	Mbufs       uint64 `json:"mbufs"`
	MbufsAbsent uint64 `json:"mbufs_absent"`
}

// DPDKOptions are the options of RunIngestDPDK.
type DPDKOptions struct {
	// Each is the duration of a measurement, Soak the duration of the soak; 0 omits it.
	Each, Soak time.Duration
	// Ports measures the ports too, which needs root.
	Ports    bool
	Machine  testbed.Machine
	Progress func(what string)
}
