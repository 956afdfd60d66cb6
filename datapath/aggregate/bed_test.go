package aggregate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// New makes the only aggregator of a function.
func New(config Config, memory []byte, table Table) *Aggregator {
	return NewSeveral(1, config, memory, table)[0]
}

var _ Table = (*shm.Table)(nil)

// failer is *testing.T, *rapid.T, or that of *testing.F.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// paper is a table that remembers what was written to it.
type paper struct {
	fragments [][]shm.Fragment
	requests  []shm.Request
}

func newPaper(slots, fragments int) *paper {
	p := &paper{requests: make([]shm.Request, slots)}
	for range slots {
		p.fragments = append(p.fragments, make([]shm.Fragment, fragments))
	}
	return p
}

func (p *paper) Fragments(slot uint32) []shm.Fragment  { return p.fragments[slot] }
func (p *paper) SetRequest(slot uint32, r shm.Request) { p.requests[slot] = r }

// harness is the test harness: an aggregator with a slab that knows the holder of
// each byte.
type harness struct {
	t      failer
	now    int64
	memory []byte
	held   []bool
	bytes  uint64 // held
	next   int
	table  *paper
	config Config
	a      *Aggregator
	events Events
}

const (
	testRequest  = 1000
	testFragment = 100
	testCount    = testRequest / testFragment
)

func newHarness(t failer, change func(c *Config)) *harness {
	t.Helper()
	c := Config{
		Slots: 64, RequestBytes: testRequest, MaxFragments: 2 * testCount, MinFragmentBytes: testFragment,
		SLO: 100 * time.Millisecond, NACKAfter: 2 * time.Millisecond,
	}
	if change != nil {
		change(&c)
	}
	b := &harness{t: t, now: 1_000_000_000, memory: make([]byte, 256<<10), table: newPaper(c.Slots, c.MaxFragments), config: c.withDefaults()}
	b.held = make([]bool, len(b.memory))
	b.a = New(c, b.memory, b.table)
	return b
}

// land puts a datagram into the slab as a source does. If at is above 0, the
// datagram is in two runs, with at bytes in the first.
func (b *harness) land(from netip.AddrPort, datagram []byte, at int) ingest.Datagram {
	b.t.Helper()
	put := func(data []byte) ingest.Span {
		b.t.Helper()
		for tries := 0; slices.Contains(b.held[min(b.next, len(b.held)):min(b.next+len(data), len(b.held))], true) || b.next+len(data) > len(b.memory); tries++ {
			if b.next += 64; b.next+len(data) > len(b.memory) {
				b.next = 0
			}
			if tries > len(b.memory) {
				b.t.Fatalf("test slab is full")
			}
		}
		s := ingest.Span{Offset: uint64(b.next), Length: uint32(len(data))}
		copy(b.memory[b.next:], data)
		for i := range data {
			b.held[b.next+i] = true
		}
		b.bytes += uint64(len(data))
		b.next += len(data)
		return s
	}
	d := ingest.Datagram{From: from}
	if at <= 0 || at >= len(datagram) {
		d.First = put(datagram)
		return d
	}
	d.First = put(datagram[:at])
	b.next += 64
	d.Rest = put(datagram[at:])
	return d
}

// add passes a batch to the aggregator now.
func (b *harness) add(batch ...ingest.Datagram) *Events {
	b.t.Helper()
	b.events.Reset()
	b.a.Add(b.now, batch, &b.events)
	b.settle()
	return &b.events
}

// pass lets time pass, in the steps that NextDeadline asks for, and returns all
// events.
func (b *harness) pass(d time.Duration) *Events {
	b.t.Helper()
	b.events.Reset()
	end := b.now + int64(d)
	for next := b.a.NextDeadline(); next != 0 && next <= end; next = b.a.NextDeadline() {
		b.now = max(b.now, next)
		b.a.Expire(b.now, &b.events)
		if again := b.a.NextDeadline(); again != 0 && again <= b.now {
			b.t.Fatalf("Expire(%d) leaves something to do at %d", b.now, again)
		}
	}
	b.now = end
	b.settle()
	return &b.events
}

func (b *harness) end(slot uint32, status wire.Status, payload string) wire.Result {
	b.t.Helper()
	b.events.Reset()
	result := wire.Result{Status: status}
	if payload != "" {
		result.Kind = wire.KindRaw
	}
	if !b.a.End(b.now, slot, &result, []byte(payload), &b.events) {
		b.t.Fatalf("End(%d) = false", slot)
	}
	b.settle()
	result.Cookie = 0
	b.takeObjective(&result)
	return result
}

// takeObjective checks the objective of an answer, and removes it.
func (b *harness) takeObjective(r *wire.Result) {
	b.t.Helper()
	if r.Objective != b.a.config.SLO {
		b.t.Fatalf("answer says an objective of %v, want %v", r.Objective, b.a.config.SLO)
	}
	r.Objective = 0
}

func (b *harness) answerEarly(slot uint32) wire.Result {
	b.t.Helper()
	b.events.Reset()
	result := wire.Result{Status: wire.StatusLate}
	if !b.a.AnswerEarly(b.now, slot, &result) {
		b.t.Fatalf("AnswerEarly(%d) = false", slot)
	}
	b.settle()
	return result
}

func (b *harness) free(slot uint32) bool {
	b.t.Helper()
	b.events.Reset()
	ok := b.a.Free(b.now, slot, &b.events)
	b.settle()
	return ok
}

// settle releases the spans of the events. It checks and removes the answers'
// cookies and objectives, and checks the invariants.
func (b *harness) settle() {
	b.t.Helper()
	for _, answers := range [][]Answer{b.events.Reported, b.events.Again} {
		for i := range answers {
			a := &answers[i]
			if none := local(a.To) || b.a.common.needsToken(); a.Cookie != 0 && none || !none && !b.a.common.cookies.proves(b.a.now, a.To, a.Cookie) {
				b.t.Fatalf("cookie %x is not one of %v", a.Cookie, a.To)
			}
			a.Cookie = 0
			b.takeObjective(&a.Result)
		}
	}
	for _, s := range b.events.Release {
		for i := s.Offset; i < s.Offset+uint64(s.Length); i++ {
			if !b.held[i] {
				b.t.Fatalf("byte %d of the slab is released and not held", i)
			}
			b.held[i] = false
			b.memory[i] = 0xdd // any further read returns garbage
		}
		b.bytes -= uint64(s.Length)
	}
	b.events.Release = b.events.Release[:0]
	if err := b.a.Check(); err != nil {
		b.t.Fatalf("%v", err)
	}
	if got := b.a.Stats().HeldBytes; got != b.bytes {
		b.t.Fatalf("aggregator holds %d bytes of the slab, %d are held", got, b.bytes)
	}
}

// assemble copies a complete request out of the slab by its descriptors.
func (b *harness) assemble(slot uint32) []byte {
	b.t.Helper()
	r := b.table.requests[slot]
	out, covered := make([]byte, r.Bytes), 0
	for _, p := range b.table.fragments[slot][:r.Fragments] {
		if p.Slab != 0 {
			b.t.Errorf("descriptor %+v is of slab %d", p, p.Slab)
		}
		covered += copy(out[p.Place:], b.memory[p.Offset:p.Offset+uint64(p.Length)])
	}
	if covered != len(out) {
		b.t.Errorf("descriptors of slot %d cover %d bytes of %d", slot, covered, len(out))
	}
	return out
}

// want compares a part of the events.
func want[T any](b *harness, what string, got, want T) {
	b.t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		b.t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// outsider is a client that must prove its address (RFC 5737).
var outsider = netip.MustParseAddrPort("192.0.2.1:5000")

// address returns a client on this machine, which needs no proof.
func address(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(n)}), uint16(5000+n/256))
}

// picture returns the payload of a request.
func picture(id uint32, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i*7 + i>>8 + int(id)*31)
	}
	return out
}

// fragment describes a datagram of the tests, valid or not.
type fragment struct {
	id, total, size, index int
	again, padded          bool
	shed                   bool // cut after what precedes the payload
	extension              *wire.Extension
	change                 func(h *wire.Header)
}

func (p fragment) datagram() []byte {
	if p.total == 0 {
		p.total = testRequest
	}
	if p.size == 0 {
		p.size = testFragment
	}
	h := wire.FragmentHeader(wire.TypeData, uint32(p.id), p.total, p.size, p.index)
	if p.again {
		h.Flags |= wire.FlagRetransmitted
	}
	if p.padded {
		h.Flags |= wire.FlagPadded
	}
	if p.extension != nil {
		h.Flags |= wire.FlagExtension
	}
	payload := picture(uint32(p.id), p.total)[h.Offset:][:h.Length]
	if p.change != nil {
		p.change(&h)
	}
	out := make([]byte, max(wire.DatagramSize(&h), wire.PayloadOffset(&h)+len(payload)))
	h.Put(out)
	if p.extension != nil {
		p.extension.Put(out[wire.HeaderSize:])
	}
	copy(out[wire.PayloadOffset(&h):], payload)
	if p.shed {
		out = out[:wire.PayloadOffset(&h)]
	}
	return out
}

// send passes fragments of one client in one batch.
func (b *harness) send(from netip.AddrPort, fragments ...fragment) *Events {
	b.t.Helper()
	var batch []ingest.Datagram
	for _, p := range fragments {
		d := b.land(from, p.datagram(), 0)
		d.Shed = p.shed
		batch = append(batch, d)
	}
	return b.add(batch...)
}

// all returns every fragment of a request, except some.
func all(id int, but ...int) (fragments []fragment) {
	for i := range testCount {
		if !slices.Contains(but, i) {
			fragments = append(fragments, fragment{id: id, index: i})
		}
	}
	return fragments
}

// whole sends a complete request, and returns its slot.
func (b *harness) whole(from netip.AddrPort, id int) uint32 {
	b.t.Helper()
	e := b.send(from, all(id)...)
	if len(e.Complete) != 1 {
		b.t.Fatalf("request %d: slots %v became whole; told %+v", id, e.Complete, e.Reported)
	}
	return e.Complete[0]
}

// atEnd fails the test unless the aggregator, left alone, releases everything.
func (b *harness) atEnd() {
	b.t.Helper()
	for slot := range b.a.slots {
		if b.a.slots[slot].state == stateComplete {
			b.end(uint32(slot), wire.StatusOK, "")
		}
		b.free(uint32(slot))
	}
	b.pass(time.Hour)
	b.add() // drops remembered requests
	b.a.Credit(address(0))
	s := b.a.Stats()
	if s.Gathering != 0 || s.InFlight != 0 || s.HeldBytes != 0 || s.Remembered != 0 || s.Clients != 0 {
		b.t.Errorf("left over: %+v", s)
	}
	if s.Begun != s.Complete+s.Incomplete+s.Evicted {
		b.t.Errorf("%d requests began, %d whole, %d incomplete, %d evicted", s.Begun, s.Complete, s.Incomplete, s.Evicted)
	}
	if got := b.a.NextDeadline(); got != 0 {
		b.t.Errorf("something is to be done at %d", got)
	}
}

// onBed runs a test on a new harness, and checks that nothing is left over.
func onBed(t *testing.T, change func(c *Config), test func(b *harness)) {
	t.Helper()
	b := newHarness(t, change)
	test(b)
	b.atEnd()
}
