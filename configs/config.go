// Package configs is Penstock's configuration: one YAML file, checked whole before anything starts.
//
// A Config is pure data. Its tagged fields are the only definition of each key. The decoder
// (models/document) and the defaults follow them; `UPDATE=1 go test ./configs` writes
// penstock.schema.json, reference.yaml and the table in docs/configuration.md from them. Read reports
// every mistake as file:line:column, the value, and what would be right.
package configs

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/docker/go-units"

	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/models/document"
)

// Config is a node's whole configuration. The comments of its fields, and of those of its sections,
// are what an operator reads.
type Config struct {
	// Where models run: cpu; cuda (the first GPU), cuda:N or a GPU's UUID or its first digits; auto: the
	// first GPU if there is one, else cpu.
	Device string `yaml:"device" default:"cpu" pattern:"^(cpu|auto|cuda(:[0-9]{1,3})?|(GPU|MIG)-[0-9a-fA-F-]{1,36})$" want:"cpu, auto, cuda, cuda:N, or a GPU's UUID (nvidia-smi -L)"`
	// In place of device, several (docs/devices.md). all: every GPU, or cpu if there is none.
	Devices []DeviceName `yaml:"devices" zero:"all" integers:"true" minItems:"1" maxItems:"16" example:"all"`
	// Address of the functions' ports; 0.0.0.0 is every interface.
	Listen netip.Addr `yaml:"listen" default:"127.0.0.1" want:"an IP address, like 127.0.0.1 for this machine only or 0.0.0.0 for every interface"`
	// Networks of gateways and NAT, whose addresses stand for many machines: each port of an address
	// counts as an address when slots run short.
	Trusted []netip.Prefix `yaml:"trusted" default:"[]" maxItems:"64" pattern:"^[0-9a-fA-F.:]+/[0-9]{1,3}$" want:"a network like 10.0.0.0/8 or 192.0.2.7/32"`
	// Where datagrams come from: the kernel's sockets, or a port that DPDK polls (docs/networking.md).
	Source Source `yaml:"source" default:"udp" want:"udp, or {dpdk: {port: ..., addresses: [...]}}"`
	// Address of /metrics, /healthz, /readyz, /status.json and /rates.
	HTTP netip.AddrPort `yaml:"http" default:"127.0.0.1:9650" pattern:":[0-9]+$" want:"ADDRESS:PORT, like 127.0.0.1:9650"`
	// HTTP inference (docs/http.md). `gateway: off` starts none.
	Gateway Gateway `yaml:"gateway" want:"off, or {address: ADDRESS:PORT}"`
	// Folder of the sockets between the processes of this node. If left out, it is
	// $XDG_RUNTIME_DIR/penstock, or penstock-UID in the temporary folder.
	RuntimeDir string `yaml:"runtime_dir" want:"a folder" example:"/run/penstock"`
	// The level and format of the log.
	Log Log `yaml:"log"`
	// The rights of the processes of functions (docs/security.md). `sandbox: off` gives them all rights of
	// the node, for debugging.
	Sandbox Sandbox `yaml:"sandbox" want:"off, or {user: NAME, readable: [FOLDER], memory: SIZE, processes: COUNT}"`
	// CPUs that are kept for the manager; the others are 100 % for inference functions. 0 is an eighth of
	// the CPUs, at least one if there are two.
	ReservedCPUs int `yaml:"reserved_cpus" default:"0" min:"0" max:"1024"`
	// Whether `penstock plan --apply` may change the MIG instances of GPUs: keep or manage (docs/planning.md).
	MIG MIG `yaml:"mig" default:"keep" oneof:"keep|manage"`
	// A plan that the node carries out by itself, and changes when rates leave it (docs/planning.md).
	Plan Plan `yaml:"plan" default:"off" want:"off, or {profiles: DIR, services: FILE, follow: 10s}"`
	// Folders with model cards, searched in order before the built-in models.
	Models []string `yaml:"models" default:"[]" want:"a folder with cards"`
	// File of sha256sum that must list the files of all models but the built-in ones. A file with another sum is
	// refused (docs/security.md).
	ModelSums string `yaml:"model_sums" want:"a file" example:"/etc/penstock/SHA256SUMS"`
	// Packet memory of each function, in equal parts of its receivers.
	Slab Slab `yaml:"slab"`
	// Sockets, and threads that receive, per function: clients are spread over them (docs/networking.md).
	// With DPDK, source.dpdk.queues says it.
	Receivers int `yaml:"receivers" default:"1" min:"1" max:"16"`
	// How fragments become requests.
	Aggregate Aggregate `yaml:"aggregate"`
	// How the device is divided between functions.
	Shares Shares `yaml:"shares"`
	// The place of a model's weights on a GPU: shared, the default (once for all processes of the model,
	// docs/gpu.md), or private (in each process).
	Weights Weights `yaml:"weights" oneof:"shared|private" example:"shared"`
	// The part of each objective that is left for the network: the way of the first packet to the node
	// and of the result back. It is limited to a tenth of the objective.
	Transit time.Duration `yaml:"transit" default:"500us" min:"0s" max:"1h"`
	// A process whose batch runs longer is killed; ten objectives, at least 2s, if left out.
	// A process that a signal has stopped is killed at its first missed deadline, if its shadow can take over.
	HangTimeout time.Duration `yaml:"hang_timeout" min:"1ms" max:"1h" example:"2s"`
	// How long a function is refused after its model took the GPU down twice within a minute; 0s: never.
	FaultHold time.Duration `yaml:"fault_hold" default:"1m" min:"0s" max:"1h"`
	// How long a thread of the data path looks for work before it sleeps; 0s is a few microseconds. It
	// costs a CPU per thread while requests come faster than that (docs/gpu.md).
	BusyPoll time.Duration `yaml:"busy_poll" default:"0s" min:"0s" max:"1s"`
	// At SIGTERM, the time for requests that were accepted.
	DrainTimeout time.Duration `yaml:"drain_timeout" default:"10s" min:"1ms" max:"1h"`
	// Processes that host several functions each (docs/lanes.md).
	Workers []Worker `yaml:"workers" default:"[]" maxItems:"16" want:"{name: NAME, share_percent: PERCENT}"`
	// The inference functions.
	Functions []Function `yaml:"functions" maxItems:"256" want:"{name: NAME, port: PORT}"`

	// Videos that the gateway sends to functions (docs/stream.md).
	Streams []Stream `yaml:"streams" default:"[]" maxItems:"64" want:"{name: NAME, source: ADDRESS, to: [FUNCTION]}"`
	// Receivers of the answers of streams and of HTTP inference (docs/publish.md).
	Publish []Publish `yaml:"publish" default:"[]" maxItems:"16" want:"{name: NAME, kind: mqtt, address: ADDRESS, topic: TOPIC}"`
	// Addresses at which clients ask functions by ZeroMQ (docs/zeromq.md).
	ZeroMQ []ZeroMQ `yaml:"zeromq" default:"[]" maxItems:"16" want:"{address: \"ipc:///PATH\"}"`

	// File is the absolute path of the configuration; empty for the built-in one.
	File string
	// GPUs are the UUIDs of the machine's GPUs, in the order of their indexes. Nil before Resolve.
	GPUs []string
	// Text is what was read, not to be changed. Digest is its SHA-256, in hex.
	Text   []byte
	Digest string
	// Lab is not part of the file: ReadLab reads it.
	Lab Lab
	// Repository is the folder of `penstock up --models`, whose models the node serves. Empty: none.
	Repository string
}

// ModelFolders are the folders that have the cards of models, in the order of the search.
func (c *Config) ModelFolders() []string {
	if c.Repository == "" {
		return c.Models
	}
	return slices.Concat([]string{c.Repository, c.DraftFolder()}, c.Models)
}

// DraftFolder is the folder for drafted cards of models in Repository.
func (c *Config) DraftFolder() string { return filepath.Join(c.RuntimeDir, "models") }

// LoadedFile exists when the models that were in Repository at the start are loaded, as far as they can be.
func (c *Config) LoadedFile() string { return filepath.Join(c.DraftFolder(), ".loaded") }

// The limits of keys that other packages keep, too.
const (
	MaxFunctions = 256     // functions
	MaxInstances = 64      // functions[].instances
	MaxSlots     = 1 << 14 // aggregate.slots
	MaxReceivers = 16      // receivers
)

// MIG says whether plans may change MIG instances.
type MIG string

// MIGManage lets plans create and destroy MIG instances.
const MIGManage MIG = "manage"

// Plan says what `penstock up` plans. The zero value is no plan.
type Plan struct {
	// Folder of the models' profiles, as for `penstock plan --profiles`.
	Profiles string `yaml:"profiles" required:"true" want:"a folder" example:"/etc/penstock/profiles"`
	// CSV file of the services and their first rates, as for `penstock plan --services`.
	Services string `yaml:"services" required:"true" want:"a file" example:"/etc/penstock/services.csv"`
	// Interval at which rates are measured.
	Follow time.Duration `yaml:"follow" default:"10s" min:"1s" max:"1h"`
}

// Words are the forms of the key that are no map.
func (p *Plan) Words() []string { return []string{"off"} }

// SetWord takes one of Words.
func (p *Plan) SetWord(string) { *p = Plan{} }

// Log is the log of the node's processes.
type Log struct {
	// Lines below this level are left out.
	Level string `yaml:"level" default:"info" oneof:"debug|info|warn|error"`
	// auto is console on a terminal, else json.
	Format string `yaml:"format" default:"auto" oneof:"auto|console|json"`
}

// Sandbox confines the processes of inference functions.
type Sandbox struct {
	// Off starts them with all rights of the node, for debugging.
	Off bool
	// System user of the processes if the node runs as root. If left out, it is penstock if that user
	// exists, else nobody.
	User string `yaml:"user" want:"the name of a user" example:"penstock"`
	// More files and folders that the processes may read.
	Readable []string `yaml:"readable" default:"[]" pattern:"^/" want:"an absolute path of a file or folder"`
	// Main memory of each process of a function or worker, with all that it starts and its files in memory.
	// The kernel kills a process that needs more. If left out, it is half of the memory of the machine or of the
	// node's control group.
	Memory Size `yaml:"memory" min:"64MiB" max:"64TiB" example:"8GiB"`
	// Processes and threads of each process of a function or worker.
	Processes int `yaml:"processes" default:"2048" min:"64" max:"1000000"`
}

// Words are the forms of the key that are no map.
func (s *Sandbox) Words() []string { return []string{"off"} }

// SetWord takes one of Words.
func (s *Sandbox) SetWord(string) { s.Off = true }

// Gateway serves the functions over HTTP.
type Gateway struct {
	// Off starts no gateway.
	Off bool
	// Address of the gateway. Addresses other than 127.0.0.1 and ::1 need a key in every request.
	Address netip.AddrPort `yaml:"address" default:"127.0.0.1:9651" pattern:":[0-9]+$" want:"ADDRESS:PORT, like 127.0.0.1:9651"`
	// File with the keys of clients (docs/security.md), on each address. If left out, addresses other than
	// 127.0.0.1 and ::1 need the key that the gateway writes to gateway.token in the runtime folder.
	Keys string `yaml:"keys" want:"a file" example:"/etc/penstock/keys.yaml"`
	// Clients whose key allows changes may load, replace and unload functions (docs/http.md).
	Load bool `yaml:"load" default:"false"`
	// Clients of this machine may put tensors into files of /dev/shm (docs/http.md), if their key is for all functions. The gateway
	// then opens those that its user may, for reading and writing.
	SharedMemory bool `yaml:"shared_memory" default:"false"`
	// Certificate for HTTP and gRPC. Addresses other than 127.0.0.1 and ::1 need one, or `tls: off`: keys in clear text,
	// for a proxy or a network that you trust.
	TLS TLS `yaml:"tls" default:"off" want:"off, or {certificate: FILE, key: FILE}"`
}

// TLS is a certificate. Its files are read again when they change. The zero value sends everything in clear text.
type TLS struct {
	// PEM file with the certificate, and those that lead to a known authority.
	Certificate string `yaml:"certificate" required:"true" want:"a file" example:"/etc/penstock/tls.crt"`
	// PEM file with the certificate's private key.
	Key string `yaml:"key" required:"true" want:"a file" example:"/etc/penstock/tls.key"`
}

// Words are the forms of the key that are no map.
func (t *TLS) Words() []string { return []string{"off"} }

// SetWord takes one of Words.
func (t *TLS) SetWord(string) { *t = TLS{} }

// Words are the forms of the key that are no map.
func (g *Gateway) Words() []string { return []string{"off"} }

// SetWord takes one of Words.
func (g *Gateway) SetWord(string) { g.Off = true }

// ZeroMQ is an address at which the gateway answers clients by ZeroMQ.
type ZeroMQ struct {
	// Where clients connect: ipc:///PATH, or tcp://127.0.0.1:PORT. Each of them may use all functions.
	Address string `yaml:"address" required:"true" want:"an address like ipc:///run/penstock/requests.sock" example:"ipc:///run/penstock/requests.sock"`
	// The function that answers Frigate's detector zmq, which names none.
	Frigate string `yaml:"frigate,omitempty" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"the name of a function" example:"detect"`
}

func (c *Config) checkZeroMQ(root document.Value) {
	if c.Gateway.Off && len(c.ZeroMQ) > 0 {
		root.Find("zeromq").Reject("runs in the gateway, which is off; want `gateway: off` or zeromq left out")
	}
	for i := range c.ZeroMQ {
		checkZeroMQ(c.ZeroMQ[i].Address, root.Find("zeromq", i))
	}
}

// checkZeroMQ checks the address of a socket at a place of the configuration.
func checkZeroMQ(address string, at document.Value) {
	if address == "" {
		return // already reported
	}
	if _, _, err := zmtp.ParseAddress(address); err != nil {
		at.Find("address").Reject("%v", err)
	}
}

// Scheme is the begin of addresses with this certificate.
func (t *TLS) Scheme() string {
	if t.Certificate == "" {
		return "http://"
	}
	return "https://"
}

// check refuses an address to which clients would send their secrets in clear text.
func (g *Gateway) check(root document.Value) {
	if !g.Off && !g.Address.Addr().IsLoopback() && !root.Find("gateway").Has("tls") {
		root.Find("gateway", "tls").Reject("is missing, and secrets of keys would cross the network to %s in clear text; "+
			"want {certificate: FILE, key: FILE}, or off for a proxy or a network that you trust", g.Address)
	}
}

// Slab is the packet memory of each inference function, in equal parts of its receivers.
type Slab struct {
	// Max packet memory of each function. Pages are allocated when they are first used.
	Size Size `yaml:"size" default:"64MiB" min:"1MiB" max:"64GiB"`
	// Use huge pages if there are any.
	HugePages bool `yaml:"huge_pages" default:"true"`
	// Receive buffer of each socket; the kernel may allow less (penstock doctor).
	ReceiveBuffer Size `yaml:"receive_buffer" default:"8MiB" min:"64KiB" max:"1GiB"`
}

// Aggregate bounds how fragments become requests.
type Aggregate struct {
	// Max requests in flight per function. auto follows the rate of its answers times its objective,
	// from 64 up to what the slab holds.
	Slots int `yaml:"slots" default:"auto" zero:"auto" oneof:"64|128|256|512|1024|2048|4096|8192|16384" want:"a power of two from 64 to 16384"`
	// Time from the first fragment of a request to its last; a quarter of the objective if left out.
	Deadline time.Duration `yaml:"deadline" min:"100us" max:"1h" example:"5ms"`
}

// Shares is how the node's CPUs or its GPU are divided between functions.
type Shares struct {
	// guarantee: functions share the whole device, and priorities protect each function's
	// guaranteed part of its time (docs/sharing.md). gslice: each function has a share of the device
	// that tunes itself, as in the GSLICE paper; the other keys of this section belong to it.
	Policy Policy `yaml:"policy" default:"guarantee" oneof:"guarantee|gslice"`
	// How a share changes. shadow: a swap to the hot-standby process, as in the paper. in-place: the
	// CPU quota of the running process. partition: other multiprocessors of a GPU for the running
	// process. auto is shadow, except on a GPU without MPS, which enforces no shares.
	Change Change `yaml:"change" default:"auto" oneof:"auto|shadow|partition|in-place"`
	// How often guarantees or shares are computed. Guarantees are also computed when a rate rises.
	Interval time.Duration `yaml:"interval" default:"1s" min:"10ms" max:"1h"`
	// Minimum time between two changes of one instance (paper 3.2.1).
	HoldDown time.Duration `yaml:"hold_down" default:"10s" min:"0s" max:"1h"`
	// Minimum share of an instance.
	MinimumPercent float64 `yaml:"minimum_percent" default:"5" min:"0.1" max:"100"`
	// true: what no function demands is divided among all, in proportion to their demands. false: it
	// stays free.
	SpreadSlack bool `yaml:"spread_slack" default:"false"`
	// false: shares stay as configured.
	Tune bool `yaml:"tune" default:"true"`
}

// Policy is how a device is divided between functions.
type Policy string

// The values of Shares.Policy.
const (
	PolicyGuarantee Policy = "guarantee"
	PolicyGSLICE    Policy = "gslice"
)

// Change is how a new share comes in.
type Change string

// The values of Shares.Change. Only a Lab sets the last two: ChangeRestart stops the process and starts
// another, and with ChangeNone each process may use the whole device.
const (
	ChangeAuto      Change = "auto"
	ChangeShadow    Change = "shadow"
	ChangePartition Change = "partition"
	ChangeInPlace   Change = "in-place"
	ChangeRestart   Change = "restart"
	ChangeNone      Change = "none"
)

// Weights says where a model's weights lie on a GPU.
type Weights string

// The values of Config.Weights. The weight server keeps shared ones, if the model's framework can take
// them from there.
const (
	WeightsShared  Weights = "shared"
	WeightsPrivate Weights = "private"
)

// Function is one inference function: a model behind a UDP port. Keys that are live may change while it
// runs; the others decide how its memory and threads are laid out when it is added.
type Function struct {
	// The function's name in metrics and commands.
	Name string `yaml:"name" live:"true" required:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"lower case letters, digits, '-' and '_', at most 64" example:"face"`
	// A card's name, or its file, relative to the configuration; the function's name if left out.
	Model string `yaml:"model,omitempty" live:"true" want:"a card's name, or its file" example:"face"`
	// UDP port; 0 is any free one, which /status.json shows.
	Port uint16 `yaml:"port" required:"true" min:"0" max:"65535" example:"5001"`
	// Latency objective; the card's if left out.
	SLO time.Duration `yaml:"slo,omitempty" live:"true" min:"1us" max:"1h" example:"25ms"`
	// Processes that serve at the same time; with `policy: gslice` each needs shares.minimum_percent.
	Instances int `yaml:"instances,omitempty" default:"1" min:"1" max:"64"`
	// The guarantee of each instance, in percent of the device's time; computed from its requests if
	// left out. With `policy: gslice` the first share; the model's knee if left out. All together are
	// at most 100.
	SharePercent float64 `yaml:"share_percent,omitempty" live:"true" min:"0.1" max:"100" example:"20"`
	// Which functions keep their objectives if the device is overloaded: higher goes first, before smaller needs.
	Priority uint8 `yaml:"priority,omitempty" live:"true" min:"0" max:"255" example:"1"`
	// The worker that hosts the function; its own process if left out (docs/lanes.md).
	Worker string `yaml:"worker,omitempty" live:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"the name of a worker" example:"cold"`
	// Those of the node's devices that the function may use; all of them if left out.
	Devices []DeviceName `yaml:"devices,omitempty" integers:"true" minItems:"1" maxItems:"16" example:"[cuda:1]"`
	// As shares.change, for this function.
	Change Change `yaml:"change,omitempty" oneof:"auto|shadow|partition|in-place" example:"shadow"`
	// As weights, for this function.
	Weights Weights `yaml:"weights,omitempty" live:"true" oneof:"shared|private" example:"private"`
	// As receivers, for this function.
	Receivers int `yaml:"receivers,omitempty" min:"1" max:"16" example:"4"`
	// Batches in flight on a GPU; libml chooses if left out.
	InFlight int `yaml:"in_flight,omitempty" live:"true" zero:"auto" min:"1" max:"2" example:"auto"`
	// Variables that are added to the processes' environment.
	Environment map[string]string `yaml:"environment,omitempty" live:"true" example:"{OMP_NUM_THREADS: \"1\"}"`
	// How many of its clients' pictures the page shows, with their answers; none if left out. Each reader of
	// the page sees them (docs/page.md).
	Pictures PictureRate `yaml:"pictures,omitempty" live:"true" pattern:"^(([1-9]|10)/s|([1-9]|[1-5][0-9]|60)/min)$" want:"1/s to 10/s, or 1/min to 60/min" example:"1/s"`
	// The largest picture, with 4 bytes per pixel, of other formats and sizes than the card's; none if left out. Clients and
	// cameras may send it (docs/wire.md, docs/cameras.md). Each request in flight takes memory for as many fragments as this picture has.
	// A GPU has two rooms for such pictures, of the size of this one or 32 MiB.
	MaxPicture PictureSize `yaml:"max_picture,omitempty" pattern:"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$" want:"WIDTHxHEIGHT" example:"1920x1200"`
	// The packets that arrive at the port: Penstock's protocol if left out, else those of cameras
	// (docs/cameras.md). gvsp is GigE Vision, rfc4175 uncompressed RGB over RTP. The others are the
	// same in BGR, in 4:2:2 of 8 or 10 bits, in 4:2:0, and in RGB of 10 bits.
	Format Format `yaml:"format,omitempty" oneof:"gvsp|rfc4175|rfc4175-bgr|rfc4175-uyvy|rfc4175-uyvy10|rfc4175-yyyyuv|rfc4175-rgb10" example:"gvsp"`
	// Colours that Y, U and V of a camera's pictures mean: bt601 if left out (docs/cameras.md).
	Colours string `yaml:"colours,omitempty" oneof:"bt601|bt709|bt2020|bt601-full|bt709-full|bt2020-full" example:"bt709"`
	// File with the keys of its clients, one in each line: it runs only requests of clients with one of them (docs/security.md).
	// The file is read again when it changes. All clients may send requests if left out.
	Key string `yaml:"key,omitempty" want:"a file" example:"/etc/penstock/face.keys"`
	// Networks of its cameras, which have no key: packets of other addresses are dropped. All may send if left out.
	Allowed []netip.Prefix `yaml:"allowed,omitempty" maxItems:"64" pattern:"^[0-9a-fA-F.:]+/[0-9]{1,3}$" want:"a network like 192.0.2.0/24 or 192.0.2.7/32" example:"[192.0.2.7/32]"`
	// Receiver of the answers about pictures of cameras, in UDP datagrams of Penstock's protocol. If
	// left out, answers are counted and not sent.
	AnswersTo *netip.AddrPort `yaml:"answers_to,omitempty" pattern:":[0-9]+$" want:"ADDRESS:PORT, like 192.0.2.7:9000" example:"192.0.2.7:9000"`
}

// Size is a number of bytes, written as 512, 64KiB or 8MiB.
type Size int64

// Want is what the errors of all keys of this type say.
func (Size) Want() string { return "a size" }

// Pattern is what the text of a size looks like.
func (Size) Pattern() string { return `^[0-9]+(\.[0-9]+)? ?([kKmMgGtT]i?)?[bB]?$` }

// UnmarshalText reads a size with its unit.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := units.RAMInBytes(string(text))
	*s = Size(n)
	return err
}

// Default is the configuration of a file that says nothing.
func Default() (c Config) {
	document.SetDefaults(&c)
	c.Weights = WeightsShared // by default only on a GPU; written in the file, it asks for one
	return c
}
