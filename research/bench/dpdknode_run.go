//go:build dpdk && cgo

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// nodePicture is the size of NullModel's picture in bytes: 224 × 224 × 3.
const nodePicture = 224 * 224 * 3

// nodeMemoryMiB is the packet memory of a node that DPDK feeds.
const nodeMemoryMiB = 256

// RunDPDKNode starts a node for each path and each setting of busy_poll, has a camera
// send it pictures, and compares the answers.
func RunDPDKNode(ctx context.Context, o DPDKNodeOptions) (DPDKNode, error) {
	r := DPDKNode{Machine: o.Machine, Device: o.Device}
	dir, err := testbed.NewDir()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	var served []*nodeModel
	for i, name := range o.ModelNames {
		m, err := o.nodeModel(dir, "fn"+strconv.Itoa(i), name)
		if err != nil {
			return r, err
		}
		served = append(served, m)
	}
	for _, busy := range o.BusyPoll {
		for _, source := range o.Sources {
			if err := ctx.Err(); err != nil {
				return r, context.Cause(ctx)
			}
			o.Printf("%s, busy_poll %v", source, busy)
			w := DPDKNodeWay{Source: source, BusyPollMillis: busy.Seconds() * 1000}
			if err := o.way(ctx, dir, &w, served, busy); err != nil {
				w.Lacks = err.Error()
			}
			r.Ways = append(r.Ways, w)
		}
	}
	return r, nil
}

// nodePictures is how many different pictures of a model are sent, in turn.
const nodePictures = 8

// nodeModel is a model with its pictures and their correct answers.
type nodeModel struct {
	function, name, file string
	pictures             [][]byte
	// right are the correct answers. NullModel's are computed; for other models they are
	// the first answers received. The tolerance covers differences between batch sizes.
	right    []answer.Answer
	comparer answer.Comparer
}

func (o *DPDKNodeOptions) nodeModel(dir, function, name string) (m *nodeModel, err error) {
	m = &nodeModel{function: function, name: name, right: make([]answer.Answer, nodePictures), comparer: answer.Comparer{Tolerance: answer.Default}}
	bytes := nodePicture
	if name == NullModel {
		if m.file, err = nullCard(dir, "nothing", bytes, "[1, 2, 4, 8]"); err != nil {
			return nil, err
		}
	} else {
		var card *models.Card
		if card, err = o.Card(name); err != nil {
			return nil, err
		}
		if m.file, err = testbed.Variant(dir, card, []int{1, 2, 4, 8}); err != nil {
			return nil, err
		}
		bytes = card.Input.WireBytes()
	}
	random := rand.New(rand.NewPCG(3, 4))
	for i := range nodePictures {
		p := make([]byte, bytes)
		for j := range p {
			p[j] = byte(random.Uint32())
		}
		m.pictures = append(m.pictures, p)
		if name == NullModel {
			value := null.Value(null.Digest(p), 0, 0)
			payload, err := binary.Append(nil, binary.LittleEndian, value)
			if err != nil {
				return nil, err
			}
			m.right[i] = answer.Answer{Kind: wire.KindRaw, Payload: payload}
		}
	}
	return m, nil
}

// isRight reports whether an answer matches the correct one.
func (m *nodeModel) isRight(picture int, a answer.Answer) bool {
	right := &m.right[picture]
	if right.Payload == nil {
		*right = answer.Answer{Kind: a.Kind, Payload: append([]byte{}, a.Payload...)}
		return true
	}
	return m.comparer.Compare(a, *right) == nil
}

// The node's and the camera's addresses on a port of DPDK.
var (
	nodeAddress   = netip.MustParseAddr("10.78.0.2")
	cameraAddress = netip.MustParseAddr("10.78.0.1")
)

const tapName = "pstap0"

// way measures one path.
func (o *DPDKNodeOptions) way(ctx context.Context, dir string, w *DPDKNodeWay, served []*nodeModel, busy time.Duration) (err error) {
	huge := freeHugeMiB() >= nodeMemoryMiB*max(1, len(served))+64
	w.Memory = "ordinary pages"
	if huge {
		w.Memory = "huge pages"
	}
	var functions []Served
	for _, m := range served {
		functions = append(functions, servedBy(m, len(served)))
	}
	bo := testbed.Options{Device: o.Device, SlabMiB: nodeMemoryMiB, More: configuration(functions, busy)}
	socket := filepath.Join(dir, "memif.sock")
	switch w.Source {
	case "udp":
		w.Camera = "a kernel UDP socket over loopback, UDP_SEGMENT trains whole (UDP_GRO)"
	case "memif":
		w.Camera = "DPDK in another process, shared memory"
		bo.More += o.sourceOf("net_memif0,role=server,id=0,rsize=11,socket-abstract=no,socket="+socket, huge)
	case "tap":
		w.Camera = "a kernel UDP socket through a TAP device"
		bo.More += o.sourceOf("net_tap0,iface="+tapName, huge)
	default:
		return fmt.Errorf("no such source: want udp, memif or tap")
	}
	b, err := testbed.Start(ctx, o.Binary, bo)
	if err != nil {
		return err
	}
	defer b.Kill()
	for _, m := range served {
		f, err := b.Function(m.function)
		if err != nil {
			return err
		}
		c, err := o.openCamera(ctx, w.Source, socket, uint16(f.Port))
		if err != nil {
			return err
		}
		t := nodeTraffic{model: m, camera: c}
		n, err := t.measure(ctx, o)
		if err := errors.Join(err, c.close()); err != nil {
			return fmt.Errorf("%s: %w; the node said: %s", m.name, err, lastOf(b.Log()))
		}
		w.Functions = append(w.Functions, n)
	}
	p, _, _, err := servingProcess(b, served[0].function)
	if err != nil {
		return err
	}
	if w.MappedMiB, err = mappedReadOnly(p.PID); err != nil {
		return err
	}
	if w.Mbufs, w.MbufsHeld, err = mbufsOf(b); err != nil {
		return err
	}
	return drain(b)
}

func servedBy(m *nodeModel, of int) Served {
	return Served{Name: m.function, Card: m.file, Percent: 100 / float64(of)}
}

// sourceOf returns the configuration of a port.
func (o *DPDKNodeOptions) sourceOf(port string, huge bool) string {
	return fmt.Sprintf("source: {dpdk: {port: %q, addresses: [%v], memory: %dMiB, huge_pages: %v, eal: [%s]}}\n",
		port, nodeAddress, nodeMemoryMiB, huge, strings.Join(o.load(), ", "))
}

// load returns EAL's arguments that load the drivers.
func (o *DPDKNodeOptions) load() (args []string) {
	for _, d := range o.Drivers {
		args = append(args, "-d", d)
	}
	return args
}

// freeHugeMiB returns the free memory in huge pages of 2 MiB.
func freeHugeMiB() int {
	text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil {
		return 0
	}
	free, _ := strconv.Atoi(strings.TrimSpace(string(text))) // zero if it is not a number
	return 2 * free
}

// mappedReadOnly returns how much anonymous shared memory a process has mapped read-only,
// in MiB. Nearly all of it is packet memory.
func mappedReadOnly(pid int) (mib float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, fmt.Errorf("read what a function has mapped: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var from, to uint64
		var permissions, offset, device, inode, name string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %s %s", &from, &to, &permissions, &offset, &device, &inode, &name); n < 7 {
			continue
		}
		if permissions == "r--s" && (strings.HasPrefix(name, "/memfd:") || strings.HasPrefix(name, "/anon_hugepage")) {
			mib += float64(to-from) / (1 << 20)
		}
	}
	return mib, nil
}

// mbufsOf reads a node's counts of mbufs, 0 if the node does not use DPDK.
func mbufsOf(b *testbed.Harness) (all, held uint64, err error) {
	text, err := b.Metrics()
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, "penstock_port_mbufs{") {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read the node's metrics: %s: %w", line, err)
		}
		all += uint64(n)
		if !strings.Contains(name, "free") {
			held += uint64(n)
		}
	}
	return all, held, nil
}

// nodeTraffic is one model's requests from one camera.
type nodeTraffic struct {
	model    *nodeModel
	camera   camera
	requests []*request
	flying   map[uint32]*flying
	next     uint32
	report   *DPDKNodeTraffic
	endToEnd []time.Duration
	stages   [5][]time.Duration
	batches  float64
}

type flying struct {
	picture int
	since   time.Time
}

// request is a picture as consecutive datagrams: all have size bytes except the last.
type request struct {
	bytes []byte
	size  int
}

func newRequest(picture []byte) *request {
	r := &request{size: wire.HeaderSize + wire.DefaultFragmentBytes}
	fragments := (len(picture) + wire.DefaultFragmentBytes - 1) / wire.DefaultFragmentBytes
	for i := range fragments {
		fragment := picture[i*wire.DefaultFragmentBytes : min((i+1)*wire.DefaultFragmentBytes, len(picture))]
		h := wire.FragmentHeader(wire.TypeData, 0, len(picture), wire.DefaultFragmentBytes, i)
		b := make([]byte, wire.HeaderSize+len(fragment))
		h.Put(b)
		copy(b[wire.HeaderSize:], fragment)
		r.bytes = append(r.bytes, b...)
	}
	return r
}

func (r *request) fragments() int { return (len(r.bytes) + r.size - 1) / r.size }

func (r *request) fragment(i int) []byte { return r.bytes[i*r.size : min((i+1)*r.size, len(r.bytes))] }

func (r *request) number(id uint32) {
	for at := 0; at < len(r.bytes); at += r.size {
		binary.LittleEndian.PutUint32(r.bytes[at+4:], id)
	}
}

// answerPatience is how long to wait for an answer.
const answerPatience = 2 * time.Second

func (t *nodeTraffic) measure(ctx context.Context, o *DPDKNodeOptions) (n DPDKNodeFunction, err error) {
	n = DPDKNodeFunction{Model: t.model.name, PictureBytes: len(t.model.pictures[0])}
	for _, p := range t.model.pictures {
		t.requests = append(t.requests, newRequest(p))
	}
	n.Fragments = t.requests[0].fragments()
	t.flying, t.next = map[uint32]*flying{}, rand.Uint32()
	// During warm-up addresses are resolved, memory is touched and batches grow.
	var warm DPDKNodeTraffic
	if err := t.during(ctx, &warm, 1, 0, o.Alone/4); err != nil {
		return n, err
	}
	if warm.Requests == 0 {
		return n, fmt.Errorf("no answer: %+v", warm)
	}
	if err := t.during(ctx, &n.Alone, 1, idleGap, o.Alone); err != nil {
		return n, err
	}
	if err := t.during(ctx, &warm, o.InFlight, 0, o.Loaded/4); err != nil {
		return n, err
	}
	return n, t.during(ctx, &n.Loaded, o.InFlight, 0, o.Loaded)
}

// during keeps that many requests in flight for length, and then waits for the last
// answers. It pauses after each completed request.
func (t *nodeTraffic) during(ctx context.Context, report *DPDKNodeTraffic, inFlight int, pause, length time.Duration) error {
	*report = DPDKNodeTraffic{InFlight: inFlight}
	t.report, t.endToEnd, t.stages, t.batches = report, nil, [5][]time.Duration{}, 0
	begin := time.Now()
	end := begin.Add(length)
	for {
		now := time.Now()
		sending := now.Before(end) && ctx.Err() == nil
		if !sending && len(t.flying) == 0 {
			break
		}
		for sending && len(t.flying) < inFlight {
			if err := t.send(); err != nil {
				return err
			}
		}
		b, err := t.camera.receive(time.Now().Add(10 * time.Millisecond))
		if err != nil {
			return err
		}
		if b == nil {
			t.giveUp(time.Now())
			continue
		}
		ended, err := t.ended(b, time.Now())
		if err != nil {
			return err
		}
		if ended && pause > 0 {
			time.Sleep(pause)
		}
	}
	report.Seconds = time.Since(begin).Seconds()
	report.ImagesPerSecond = float64(report.Requests) / report.Seconds
	report.BytesPerSecond = report.ImagesPerSecond * float64(len(t.model.pictures[0]))
	report.MeanBatch = t.batches / float64(max(report.Requests, 1))
	report.EndToEnd = micros(t.endToEnd)
	for i, dst := range []*Micros{&report.Aggregate, &report.Queue, &report.Gather, &report.Infer, &report.Reply} {
		*dst = micros(t.stages[i])
	}
	return context.Cause(ctx)
}

func (t *nodeTraffic) send() error {
	id := t.next
	t.next++
	picture := int(id % nodePictures)
	r := t.requests[picture]
	r.number(id)
	t.flying[id] = &flying{picture, time.Now()}
	return t.camera.send(r)
}

// ended records an answer. It returns false if the datagram answers no request in flight.
func (t *nodeTraffic) ended(b []byte, now time.Time) (bool, error) {
	h, result, payload, err := wire.DecodeResult(b)
	if errors.Is(err, wire.ErrType) {
		return false, nil // a NACK: lost requests time out
	}
	if err != nil {
		return false, fmt.Errorf("read answer: %w", err)
	}
	f := t.flying[h.RequestID]
	if f == nil {
		return false, nil
	}
	delete(t.flying, h.RequestID)
	switch {
	case h.Count != 1:
		return false, fmt.Errorf("the answer has %d pieces, want 1", h.Count)
	case result.Status != wire.StatusOK:
		t.report.Refused++
		return true, nil
	}
	t.report.Requests++
	if !t.model.isRight(f.picture, answer.Answer{Kind: result.Kind, Payload: payload}) {
		t.report.Wrong++
	}
	t.batches += float64(result.Batch)
	t.endToEnd = append(t.endToEnd, now.Sub(f.since))
	for i, d := range []time.Duration{result.Aggregate, result.Queue, result.Gather, result.Infer, result.Reply} {
		t.stages[i] = append(t.stages[i], d)
	}
	return true, nil
}

// giveUp ends requests that have waited too long.
func (t *nodeTraffic) giveUp(now time.Time) {
	for id, f := range t.flying {
		if now.Sub(f.since) > answerPatience {
			delete(t.flying, id)
			t.report.Unanswered++
		}
	}
}
