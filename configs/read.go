package configs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
)

// builtIn is what runs when no file is named: three real models on ports 5001
// to 5003.
//
//go:embed demo.yaml
var builtIn []byte

// BuiltIn is the text of the built-in configuration, the caller's.
func BuiltIn() []byte { return bytes.Clone(builtIn) }

// Limits of a configuration: far above any node of use, low enough that a slip of
// the pen takes no machine down.
const (
	MaxFunctions = 256
	MaxInstances = 64
	MaxSlots     = 1 << 14
	MaxReceivers = 16
	minSlots     = 64 // the paper's 64 requests in flight (3.3.2)
	minSlab      = 1 << 20
	maxSlab      = 64 << 30
	minPart      = 256 << 10 // of a slab: what one receiver reads into
	maxTimeout   = time.Hour
	maxGrain     = 1024
	maxStreams   = 2 // what libml's loop keeps in flight at most
	maxBusyPoll  = time.Second
	maxSpeed     = 1e6 // of a replay
)

const deviceRule = "cpu, auto, cuda, cuda:N, or a GPU's UUID (nvidia-smi -L)"

var devicePattern = regexp.MustCompile(`^(cpu|auto|cuda(:[0-9]{1,3})?|GPU-[0-9a-fA-F-]{1,36})$`)

// IsDevice reports whether a text names one device, be it there or not.
func IsDevice(name string) bool { return devicePattern.MatchString(name) && name != DeviceAuto }

var changes = []Change{ChangeAuto, ChangeShadow, ChangePartition, ChangeInPlace, ChangeRestart, ChangeNone}

// Read reads the configuration in file, the built-in one where file is empty.
// The error names all that is wrong, a line each: file, line, column, field, and
// what would be right.
func Read(file string) (Config, error) {
	if file == "" {
		return Decode("built-in configuration", builtIn)
	}
	return ReadCopy(file, file)
}

// ReadCopy is Read of a file whose text stands in another: errors name file, relative paths
// are as seen from there, and the configuration is file's.
func ReadCopy(file, copied string) (Config, error) {
	path, err := filepath.Abs(file)
	if err == nil {
		copied, err = filepath.Abs(copied)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	info, err := os.Stat(copied)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > document.MaxBytes {
		return Config{}, fmt.Errorf("read configuration: %s is no regular file of at most %d bytes", copied, document.MaxBytes)
	}
	data, err := os.ReadFile(copied)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Decode(path, data)
	if err != nil {
		return Config{}, err
	}
	c.File = path
	for i, dir := range c.Models {
		if !filepath.IsAbs(dir) {
			c.Models[i] = filepath.Join(filepath.Dir(path), dir)
		}
	}
	for i := range c.Functions {
		// A model with a slash is a card's file; a bare name is looked up.
		if f := &c.Functions[i]; strings.Contains(f.Model, "/") && !filepath.IsAbs(f.Model) {
			f.Model = filepath.Join(filepath.Dir(path), f.Model)
		}
		if r := &c.Functions[i].Replay; r.File != "" && !filepath.IsAbs(r.File) {
			r.File = filepath.Join(filepath.Dir(path), r.File)
		}
	}
	return c, nil
}

// Decode is Read of bytes already read from file; relative paths stay as they
// are.
func Decode(file string, data []byte) (Config, error) {
	doc, err := document.Parse(file, data)
	if err != nil {
		return Config{}, err
	}
	c := Default()
	digest := sha256.Sum256(data)
	c.Text, c.Digest = bytes.Clone(data), hex.EncodeToString(digest[:])
	c.decode(doc.Root())
	if err := doc.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) decode(root document.Value) {
	m := root.Map("device", "mps", "listen", "source", "http", "runtime_dir", "log", "reserved_cpus", "models", "slab", "receivers",
		"aggregate", "shares", "batching", "gather", "late", "weights", "functions", "transit", "hang_timeout", "fault_hold", "busy_poll", "drain_timeout")
	if v := m.May("device"); !v.Absent() {
		c.Device = v.Text(deviceRule)
		if !devicePattern.MatchString(c.Device) {
			v.Reject("is %q, want %s", c.Device, deviceRule)
			c.Device = DeviceAuto // what is wrong is said once
		}
	}
	if v := m.May("mps"); !v.Absent() {
		before := c.MPS
		c.MPS = v.Bool()
		if _, is := v.Plain().(bool); !is {
			c.MPS = before // what is wrong is said once
		} else if err := c.mpsOn(c.Device); err != nil {
			v.Reject("%v", err)
		}
	}
	if v := m.May("listen"); !v.Absent() {
		var err error
		if c.Listen, err = netip.ParseAddr(v.Text("an IP address")); err != nil {
			v.Reject("is no IP address; 127.0.0.1 is this machine only, 0.0.0.0 every interface")
		}
	}
	c.Source.decode(m)
	if v := m.May("http"); !v.Absent() {
		var err error
		if c.HTTP, err = netip.ParseAddrPort(v.Text("ADDRESS:PORT")); err != nil {
			v.Reject("is not like 127.0.0.1:9650")
		}
	}
	if v := m.May("runtime_dir"); !v.Absent() {
		c.RuntimeDir = v.Text("a folder")
	}
	log := m.May("log").Map("level", "format")
	choose(log.May("level"), &c.Log.Level, "debug", "info", "warn", "error")
	choose(log.May("format"), &c.Log.Format, "auto", "console", "json")
	c.ReservedCPUs = int(m.May("reserved_cpus").Int(0, 1024))
	for _, v := range m.May("models").List("a list of folders with cards") {
		c.Models = append(c.Models, v.Text("a folder with cards"))
	}
	c.Slab.decode(m.May("slab"))
	c.receivers(m.May("receivers"), &c.Receivers)
	c.Aggregate.decode(m.May("aggregate"))
	steps := c.Shares.decode(m.May("shares"), c)
	c.Batching.decode(m.May("batching"))
	gather(m.May("gather"), &c.Gather, c.Device)
	choose(m.May("late"), &c.Late, lates...)
	weights(m.May("weights"), &c.Weights, c.Device)
	duration(m.May("transit"), &c.Transit, 0)
	duration(m.May("hang_timeout"), &c.HangTimeout, time.Millisecond)
	duration(m.May("fault_hold"), &c.FaultHold, 0)
	if v := m.May("busy_poll"); !v.Absent() {
		c.BusyPoll = v.Duration(0, maxBusyPoll)
	}
	duration(m.May("drain_timeout"), &c.DrainTimeout, time.Millisecond)

	list := m.May("functions")
	entries := list.List("a list of {name, port}")
	if len(entries) > MaxFunctions {
		list.Reject("has %d elements, want at most %d", len(entries), MaxFunctions)
		return
	}
	names, ports := map[string]bool{}, map[uint16]string{}
	for _, v := range entries {
		var f Function
		f.decode(v, c, names, ports)
		c.Functions = append(c.Functions, f)
	}
	if err := c.stepsUsed(); err != nil {
		steps.Reject("%v", err)
	}
}

func (s *Slab) decode(v document.Value) {
	m := v.Map("size", "huge_pages", "receive_buffer")
	size(m.May("size"), &s.Size, minSlab, maxSlab)
	size(m.May("receive_buffer"), &s.ReceiveBuffer, 64<<10, 1<<30)
	if h := m.May("huge_pages"); !h.Absent() {
		s.HugePages = h.Bool()
	}
}

func (a *Aggregate) decode(v document.Value) {
	m := v.Map("slots", "deadline", "answered_for", "minimum_piece")
	if s := m.May("slots"); !s.Absent() {
		a.Slots = int(s.Int(minSlots, MaxSlots))
		if bits.OnesCount(uint(a.Slots)) > 1 { // 0 was rejected already
			s.Reject("is %d, want a power of two from %d to %d", a.Slots, minSlots, MaxSlots)
		}
	}
	duration(m.May("deadline"), &a.Deadline, 100*time.Microsecond)
	duration(m.May("answered_for"), &a.AnsweredFor, time.Millisecond)
	size(m.May("minimum_piece"), &a.MinimumPiece, 64, 64<<10)
}

// decode returns what stands at steps: whether there are shares to take them is known when
// the functions are.
func (s *Shares) decode(v document.Value, c *Config) (steps document.Value) {
	m := v.Map("change", "sm_grain", "interval", "hold_down", "threshold_percent", "minimum_percent",
		"default_percent", "spread_slack", "steps", "tune")
	change(m.May("change"), &s.Change, c)
	if g := m.May("sm_grain"); !g.Absent() {
		s.SMGrain = int(g.Int(0, maxGrain))
	}
	duration(m.May("interval"), &s.Interval, 10*time.Millisecond)
	duration(m.May("hold_down"), &s.HoldDown, 0)
	percent(m.May("threshold_percent"), &s.ThresholdPercent, 0)
	percent(m.May("minimum_percent"), &s.MinimumPercent, 0.1)
	percent(m.May("default_percent"), &s.DefaultPercent, 1)
	if b := m.May("spread_slack"); !b.Absent() {
		s.SpreadSlack = b.Bool()
	}
	steps = m.May("steps")
	for _, v := range steps.List("a list of percentages, like [8, 24, 50, 100]") {
		step := v.Float(0.1, 100)
		if n := len(s.Steps); n > 0 && step <= s.Steps[n-1] {
			v.Reject("is %v after %v, want percentages that ascend", step, s.Steps[n-1])
		}
		s.Steps = append(s.Steps, step)
	}
	if b := m.May("tune"); !b.Absent() {
		s.Tune = b.Bool()
	}
	return steps
}

func (f *Function) decode(v document.Value, c *Config, names map[string]bool, ports map[uint16]string) {
	m := v.Map("name", "model", "port", "slo", "instances", "share_percent", "change", "batching", "gather", "late",
		"weights", "receivers", "streams", "environment", "replay")
	const nameRule = "lower case letters, digits, '-' and '_', at most 64"
	name := m.Need("name", nameRule)
	f.Name = name.Text(nameRule)
	switch {
	case f.Name != "" && !models.NamePattern.MatchString(f.Name):
		name.Reject("is %q, want %s", f.Name, nameRule)
	case names[f.Name]:
		name.Reject("is %q, which another function has", f.Name)
	}
	names[f.Name] = true
	if w := m.May("model"); !w.Absent() {
		f.Model = w.Text("a card's name, or its file")
	}
	port := m.Need("port", "a UDP port, 0 for any free one")
	f.Port = uint16(port.Int(0, 65535))
	if other, taken := ports[f.Port]; taken && f.Port != 0 {
		port.Reject("is %d, which function %q has", f.Port, other)
	}
	ports[f.Port] = f.Name
	duration(m.May("slo"), &f.SLO, time.Microsecond)
	f.Instances = 1
	if w := m.May("instances"); !w.Absent() {
		f.Instances = int(w.Int(1, MaxInstances))
	}
	change(m.May("change"), &f.Change, c)
	first := m.May("share_percent")
	percent(first, &f.SharePercent, 0.1)
	if err := f.shareUnder(c); err != nil {
		first.Reject("%v", err)
	}
	f.Batching.decode(m.May("batching"))
	gather(m.May("gather"), &f.Gather, c.Device)
	choose(m.May("late"), &f.Late, lates...)
	weights(m.May("weights"), &f.Weights, c.Device)
	f.Streams = streams(m.May("streams"), c.Device)
	f.Replay.decode(m.May("replay"))
	r := m.May("receivers")
	c.receivers(r, &f.Receivers)
	if err := f.receivesReplay(); err != nil {
		r.Reject("%v", err)
	}
	if env := m.May("environment"); !env.Absent() {
		plain, ok := env.Plain().(map[string]any)
		if !ok {
			env.Reject("is no map of names to strings")
		}
		f.Environment = map[string]string{}
		for key, value := range plain {
			text, ok := value.(string)
			if !ok {
				env.Reject("%s is no string; quote it", key)
			}
			f.Environment[key] = text
		}
	}
}

func (r *Replay) decode(v document.Value) {
	if v.Absent() {
		return
	}
	m := v.Map("file", "speed")
	r.File = m.Need("file", "a capture, pcap or pcapng").Text("a capture, pcap or pcapng")
	r.Speed = 1
	if s := m.May("speed"); !s.Absent() {
		r.Speed = s.Float(0, maxSpeed)
	}
}

// Check reports the first value of a function that makes no sense, for one that
// did not come out of a file.
func (f *Function) Check() error {
	switch {
	case !models.NamePattern.MatchString(f.Name):
		return fmt.Errorf("name is %q, want lower case letters, digits, '-' and '_', at most 64", f.Name)
	case f.Instances < 1 || f.Instances > MaxInstances:
		return fmt.Errorf("instances of %s are %d, want 1 to %d", f.Name, f.Instances, MaxInstances)
	case f.SLO < 0 || f.SLO > maxTimeout:
		return fmt.Errorf("slo of %s is %s, want more than 0, at most %s", f.Name, f.SLO, maxTimeout)
	case !(f.SharePercent >= 0 && f.SharePercent <= 100):
		return fmt.Errorf("share of %s is %v %%, want more than 0, at most 100", f.Name, f.SharePercent)
	case f.Change != "" && !slices.Contains(changes, f.Change):
		return fmt.Errorf("change of %s is %q, want %s", f.Name, f.Change, oneOf(changes))
	case f.Batching.check() != nil:
		return fmt.Errorf("batching of %s %w", f.Name, f.Batching.check())
	case f.Gather != "" && !slices.Contains(gathers, f.Gather):
		return fmt.Errorf("gather of %s is %q, want %s", f.Name, f.Gather, oneOf(gathers))
	case f.Late != "" && !slices.Contains(lates, f.Late):
		return fmt.Errorf("late of %s is %q, want %s", f.Name, f.Late, oneOf(lates))
	case f.Weights != "" && !slices.Contains(places, f.Weights):
		return fmt.Errorf("weights of %s are %q, want %s", f.Name, f.Weights, oneOf(places))
	case !(f.Replay.Speed >= 0 && f.Replay.Speed <= maxSpeed):
		return fmt.Errorf("replay of %s has speed %v, want 0 to %v", f.Name, f.Replay.Speed, maxSpeed)
	case f.Receivers < 0 || f.Receivers > MaxReceivers:
		return fmt.Errorf("receivers of %s are %d, want 1 to %d, or 0 for the node's", f.Name, f.Receivers, MaxReceivers)
	case f.receivesReplay() != nil:
		return fmt.Errorf("receivers of %s %w", f.Name, f.receivesReplay())
	case f.Streams < 0 || f.Streams > maxStreams:
		return fmt.Errorf("streams of %s are %d, want 1 or %d, or 0 for auto", f.Name, f.Streams, maxStreams)
	}
	return nil
}

// oneOf lists words for people.
func oneOf[T ~string](words []T) string {
	var list strings.Builder
	for i, w := range words {
		switch i {
		case 0:
		case len(words) - 1:
			list.WriteString(" or ")
		default:
			list.WriteString(", ")
		}
		list.WriteString(string(w))
	}
	return list.String()
}

// On reports what of a configuration does not go with device, which DeviceAuto has
// come to.
func (c *Config) On(device string) error {
	if err := c.mpsOn(device); err != nil {
		return fmt.Errorf("mps %w", err)
	}
	if err := c.Shares.Change.under(c, device); err != nil {
		return fmt.Errorf("shares.change %w", err)
	}
	if err := c.Gather.On(device); err != nil {
		return fmt.Errorf("gather %w", err)
	}
	if err := c.stepsUsed(); err != nil {
		return fmt.Errorf("shares.steps %w", err)
	}
	for _, f := range c.Functions {
		if err := f.Under(c, device); err != nil {
			return err
		}
	}
	return nil
}

// Under reports what of a function does not go with the rest of a configuration on a
// device.
func (f *Function) Under(c *Config, device string) error {
	if err := f.Change.under(c, device); err != nil {
		return fmt.Errorf("change of function %s %w", f.Name, err)
	}
	if err := f.shareUnder(c); err != nil {
		return fmt.Errorf("share of function %s %w", f.Name, err)
	}
	if err := f.Gather.On(device); err != nil {
		return fmt.Errorf("gather of function %s %w", f.Name, err)
	}
	if err := f.Weights.On(device); err != nil {
		return fmt.Errorf("weights of function %s %w", f.Name, err)
	}
	if err := c.receive(f.Receivers); err != nil && f.Receivers != 0 {
		return fmt.Errorf("receivers of function %s %w", f.Name, err)
	}
	if err := streamsOn(f.Streams, device); err != nil {
		return fmt.Errorf("streams of function %s %w", f.Name, err)
	}
	return nil
}

// receivers reads how many receivers a function has.
func (c *Config) receivers(v document.Value, to *int) {
	if v.Absent() {
		return
	}
	n := int(v.Int(1, MaxReceivers))
	if n == 0 {
		return // that is said already
	}
	*to = n
	if err := c.receive(n); err != nil {
		v.Reject("%v", err)
	}
}

// receive reports whether a function that the network feeds can have n receivers.
func (c *Config) receive(n int) error {
	switch {
	case c.Source.DPDK != nil:
		return fmt.Errorf("is %d, the number of kernel sockets, and source is dpdk; want source.dpdk.queues", n)
	case n > 1 && c.Slab.Size/Size(n) < minPart:
		return fmt.Errorf("is %d, and slab.size of %d bytes has no 256KiB for each; want a larger slab, or fewer", n, c.Slab.Size)
	}
	return nil
}

// receivesReplay reports whether a function that a capture feeds has receivers of its own.
func (f *Function) receivesReplay() error {
	if f.Receivers > 0 && f.Replay.File != "" {
		return fmt.Errorf("is %d, and a capture is received by one; want it left out", f.Receivers)
	}
	return nil
}

// ReceiversOf is how many receivers a function has that kernel sockets feed.
func (c *Config) ReceiversOf(f Function) int { return max(1, cmp.Or(f.Receivers, c.Receivers)) }

// ChangeOf is how a function's share changes under a configuration. Without MPS
// ChangeAuto comes to ChangeNone.
func (c *Config) ChangeOf(f Function) Change {
	change := cmp.Or(f.Change, c.Shares.Change)
	if !c.MPS && change == ChangeAuto {
		return ChangeNone
	}
	return change
}

// mpsOn reports whether MPS can be as configured on device.
func (c *Config) mpsOn(device string) error {
	if !c.MPS && device == DeviceCPU {
		return errors.New("is false, which has processes take turns on a GPU, and the device is cpu; want `device: cuda`, or `mps` left out")
	}
	return nil
}

// shareUnder reports whether a function can have the share that it begins with.
func (f *Function) shareUnder(c *Config) error {
	switch {
	case f.SharePercent == 0 || c.ChangeOf(*f) != ChangeNone:
		return nil
	case !c.MPS:
		return fmt.Errorf("is %v %%, and mps is false: without MPS nobody has a share; want it left out", f.SharePercent)
	}
	return fmt.Errorf("is %v %%, and change is none: each process may use the whole device; want it left out, or another change", f.SharePercent)
}

// stepsUsed reports whether anybody has a share that could be one of the steps.
func (c *Config) stepsUsed() error {
	has := func(f Function) bool { return c.ChangeOf(f) != ChangeNone }
	if len(c.Shares.Steps) == 0 || has(Function{}) || slices.ContainsFunc(c.Functions, has) {
		return nil
	}
	return errors.New("are shares that may be given, and change is none: nobody has a share; want it left out, or another change")
}

// On reports whether weights can lie so on device where somebody asks for it; DeviceAuto
// allows all. The default, which nobody asked for, is nothing on a CPU.
func (w Weights) On(device string) error {
	if w == WeightsShared && device == DeviceCPU {
		return errors.New("is shared, which keeps weights on a GPU once, and the device is cpu; want `device: cuda`, or it left out")
	}
	return nil
}

// streamsOn reports whether so many batches can be in flight on device, as far as it is
// known.
func streamsOn(n int, device string) error {
	if n > 1 && device == DeviceCPU {
		return fmt.Errorf("is %d, batches in flight on a GPU, and the device is cpu; want `device: cuda`, or auto", n)
	}
	return nil
}

// On reports whether pieces can be gathered so on device; DeviceAuto allows all.
func (g Gather) On(device string) error {
	if g == GatherCopy && device == DeviceCPU {
		return errors.New("is copy, which brings a batch to a GPU, and the device is cpu; want `device: cuda`, or kernel")
	}
	return nil
}

// under reports whether shares can change so on device under a configuration.
func (c Change) under(cfg *Config, device string) error {
	if !cfg.MPS && c != "" && c != ChangeAuto && c != ChangeNone {
		return fmt.Errorf("is %s, and mps is false: processes that take turns on a GPU have no shares; want none", c)
	}
	return c.On(device)
}

// On reports whether shares can change so on device; DeviceAuto allows all.
func (c Change) On(device string) error {
	switch {
	case device == DeviceAuto:
	case c == ChangePartition && device == DeviceCPU:
		return errors.New("is partition, which hands out a GPU's multiprocessors, and the device is cpu; want shadow or in-place, or `device: cuda`")
	case c == ChangeInPlace && device != DeviceCPU:
		return fmt.Errorf("is in-place, which writes a CPU quota, and the device is %s; want partition, which also leaves the process running, or shadow", device)
	}
	return nil
}

// The readers below leave *to as it is where nothing stands.

func choose[T ~string](v document.Value, to *T, words ...T) {
	if v.Absent() {
		return
	}
	list := make([]string, len(words))
	for i, w := range words {
		list[i] = string(w)
	}
	*to = T(v.Choice(list...))
}

func gather(v document.Value, to *Gather, device string) {
	choose(v, to, gathers...)
	if err := to.On(device); err != nil && !v.Absent() {
		v.Reject("%v", err)
	}
}

func weights(v document.Value, to *Weights, device string) {
	choose(v, to, places...)
	if err := to.On(device); err != nil && !v.Absent() {
		v.Reject("%v", err)
	}
}

func change(v document.Value, to *Change, c *Config) {
	choose(v, to, changes...)
	if err := to.under(c, c.Device); err != nil && !v.Absent() {
		v.Reject("%v", err)
	}
}

// streams is 0 for auto, and where nothing stands.
func streams(v document.Value, device string) int {
	switch n := v.Plain().(type) {
	case nil:
		return 0
	case string:
		if n == "auto" {
			return 0
		}
	case int64:
		if n >= 1 && n <= maxStreams {
			if err := streamsOn(int(n), device); err != nil {
				v.Reject("%v", err)
			}
			return int(n)
		}
	}
	v.Reject("is %v, want auto, 1 or %d", v.Plain(), maxStreams)
	return 0
}

func duration(v document.Value, to *time.Duration, least time.Duration) {
	if !v.Absent() {
		*to = v.Duration(least, maxTimeout)
	}
}

func percent(v document.Value, to *float64, least float64) {
	if !v.Absent() {
		*to = v.Float(least, 100)
	}
}

func size(v document.Value, to *Size, least, most int64) {
	if v.Absent() {
		return
	}
	n, err := units.RAMInBytes(fmt.Sprint(v.Plain()))
	if err != nil || n < least || n > most {
		v.Reject("is %v, want a size from %s to %s, like 64MiB", v.Plain(), units.BytesSize(float64(least)), units.BytesSize(float64(most)))
		return
	}
	*to = Size(n)
}
