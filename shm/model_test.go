package shm

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// publication is what the model knows of a slot that is out.
type publication struct {
	at where
	// generation is the owner that reported the stage.
	generation uint32
	payload    uint64
}

type where int

const (
	waiting  where = iota // published, not taken
	held                  // taken by the owner
	started               // taken and started
	finished              // completed, not flushed
	answered              // flushed
	left                  // pending when its owner released the ring or died
	lost                  // started when its owner died
)

// channelModel is a simple model: a map of what is out. The channel must agree
// with it through publications, withdrawals, hand-overs and deaths.
type channelModel struct {
	*pair
	owner      *Consumer
	generation uint32

	out map[uint32]*publication
	// stale are slots that the owner holds from a publication that was
	// withdrawn.
	stale map[uint32]bool
	dead  map[uint32]bool // generations
	// began counts publications that began, ended those that ended.
	began, ended int
	sequence     uint64
}

func newChannelModel(t failer) *channelModel {
	m := &channelModel{
		pair: makePair(t, Geometry{Slots: 8, MaxFragments: 1, ResultBytes: 8, PoolBytes: 192}),
		out:  map[uint32]*publication{}, stale: map[uint32]bool{}, dead: map[uint32]bool{},
	}
	m.succeed(t)
	return m
}

// at returns the slots in one of the states, sorted.
func (m *channelModel) at(states ...where) (slots []uint32) {
	for slot, p := range m.out {
		if slices.Contains(states, p.at) {
			slots = append(slots, slot)
		}
	}
	slices.Sort(slots)
	return slots
}

// available is what a Take must find: the waiting slots that the owner does not
// hold.
func (m *channelModel) available() []uint32 {
	return slices.DeleteFunc(m.at(waiting), func(slot uint32) bool { return m.stale[slot] })
}

// succeed makes a new owner, which recovers.
func (m *channelModel) succeed(t failer) {
	m.generation++
	m.owner = m.attach(t, m.generation)
	m.owner.pool.patience = 0
	m.channel.SetEpoch(m.generation)
	acquire(t, m.owner)
	got := m.owner.Recover(nil)
	for _, slot := range m.at(left) {
		if !slices.Contains(got, slot) {
			t.Fatalf("pending slot %d was not recovered: %v", slot, got)
		}
	}
	for _, slot := range got {
		p := m.out[slot]
		if p == nil || p.at != left && p.at != waiting {
			t.Fatalf("slot %d was recovered, but is %+v", slot, p)
		}
		*p = publication{at: held, generation: m.generation}
	}
}

// leave ends the owner: the next owner recovers what it held.
func (m *channelModel) leave(dies bool) {
	for _, p := range m.out {
		switch {
		case p.at == held:
			p.at = left
		case p.at == finished && !dies:
			p.at = answered
		case p.at == started || p.at == finished:
			p.at = lost
		}
	}
	clear(m.stale)
}

func (m *channelModel) draw(t *rapid.T, slots []uint32) uint32 {
	if len(slots) == 0 {
		t.Skip("no such slot")
	}
	return rapid.SampledFrom(slots).Draw(t, "slot")
}

func (m *channelModel) publishOne(t *rapid.T) {
	slot := rapid.Uint32Range(0, m.g.Slots-1).Draw(t, "slot")
	m.channel.Publish(slot)
	if m.out[slot] == nil {
		m.out[slot] = &publication{at: waiting}
		m.began++
	}
}

func (m *channelModel) takeSome(t *rapid.T) {
	want := m.available()
	dst := make([]uint32, rapid.IntRange(0, int(m.g.Slots)).Draw(t, "room"))
	got := dst[:m.owner.Take(dst)]
	if len(got) != min(len(dst), len(want)) {
		t.Fatalf("took %v of %v, with room for %d", got, want, len(dst))
	}
	for _, slot := range got {
		if !slices.Contains(want, slot) {
			t.Fatalf("took %v, available were %v", got, want)
		}
		if m.out[slot].at != waiting {
			t.Fatalf("took slot %d twice", slot)
		}
		*m.out[slot] = publication{at: held, generation: m.generation}
	}
}

func (m *channelModel) startOne(t *rapid.T) {
	slot := m.draw(t, m.at(held))
	m.owner.Start([]uint32{slot})
	m.out[slot].at = started
}

func (m *channelModel) completeOne(t *rapid.T) {
	m.complete(t, m.draw(t, m.at(held, started)))
}

// complete answers a slot with a unique payload. If there is no room for that, it answers without one.
func (m *channelModel) complete(t *rapid.T, slot uint32) {
	p := m.out[slot]
	p.payload = 0
	if rapid.Bool().Draw(t, "payload") {
		if buffer := m.owner.ResultBuffer(slot); buffer != nil {
			m.sequence++
			p.payload = m.sequence
			binary.LittleEndian.PutUint64(buffer, p.payload)
		} else {
			m.flush(t)
		}
	}
	m.owner.Complete(slot, Result{Length: 8, ModelVersion: slot})
	p.at = finished
}

func (m *channelModel) completeStale(t *rapid.T) {
	var slots []uint32
	for slot := range m.stale {
		slots = append(slots, slot)
	}
	slices.Sort(slots)
	slot := m.draw(t, slots)
	m.owner.Complete(slot, Result{})
	delete(m.stale, slot)
}

func (m *channelModel) flush(t *rapid.T) {
	m.owner.Flush()
	for _, slot := range m.at(finished) {
		m.out[slot].at = answered
	}
}

func (m *channelModel) receive(t *rapid.T) {
	dst := make([]uint32, rapid.IntRange(1, int(m.g.Slots)).Draw(t, "room"))
	must := m.at(answered)
	scans := m.channel.harvest != harvested || m.channel.back.tail.Load()-m.channel.replyHead > m.g.Slots
	n, err := m.channel.Receive(dst, Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, slot := range dst[:n] {
		// A completed slot that is not flushed may come early: the manager
		// scans the stages if the replies wrapped around.
		p := m.out[slot]
		if p == nil || p.at != answered && p.at != finished && p.at != lost {
			t.Fatalf("received slot %d, which is %+v", slot, p)
		}
		var payload []byte
		if p.payload != 0 {
			payload = binary.LittleEndian.AppendUint64(nil, p.payload)
		}
		if got := m.channel.Result(slot).ModelVersion; got != slot {
			t.Fatalf("result of slot %d is that of %d", slot, got)
		}
		if got := m.channel.ResultBytes(slot); !bytes.Equal(got, payload) {
			t.Fatalf("payload of slot %d is % x, want % x", slot, got, payload)
		}
		delete(m.out, slot)
		m.ended++
	}
	if n < len(dst) {
		for _, slot := range must {
			if p := m.out[slot]; p != nil && scans && m.dead[p.generation] {
				p.at = lost // a scan leaves out what dead processes did
			} else if p != nil {
				t.Fatalf("answered slot %d was not received: %v", slot, dst[:n])
			}
		}
	}
}

func (m *channelModel) withdraw(t *rapid.T) {
	slot := m.draw(t, m.at(waiting, held, started, finished, answered, left, lost))
	if err := m.channel.Withdraw(slot); err != nil {
		t.Fatal(err)
	}
	if at := m.out[slot].at; at == held || at == started {
		m.stale[slot] = true
	}
	delete(m.out, slot)
	m.ended++
}

// withdrawAndPublish withdraws and publishes one slot until the ring has wrapped around.
func (m *channelModel) withdrawAndPublish(t *rapid.T) {
	slot := m.draw(t, m.at(waiting))
	for range m.g.Slots + 1 {
		if err := m.channel.Withdraw(slot); err != nil {
			t.Fatal(err)
		}
		m.channel.Publish(slot)
	}
}

func (m *channelModel) handOver(t *rapid.T) {
	m.owner.Release()
	for _, slot := range m.at(started) {
		// An owner completes what it has started before it releases.
		t.Fatalf("slot %d is started", slot)
	}
	m.leave(false)
	m.owner.Close()
	m.succeed(t)
}

func (m *channelModel) die(t *rapid.T) {
	dead := m.generation
	m.dead[dead] = true
	m.owner.Close()
	m.leave(true)
	if !m.channel.Disown(dead) {
		t.Fatal("the dead owner was not disowned")
	}
	m.succeed(t)
}

// check compares the visible state of channel and model.
func (m *channelModel) check(t *rapid.T) {
	for slot := range m.g.Slots {
		stage, generation := m.channel.Stage(slot)
		p := m.out[slot]
		want := StageNone
		switch {
		case p == nil:
		case p.at == waiting:
			// An overtaken Take may have found it and not returned it yet.
			if stage == StagePending && generation == m.generation {
				continue
			}
		case p.at == held || p.at == left:
			want = StagePending
		default:
			want = StageStarted
		}
		if stage != want || want != StageNone && generation != p.generation {
			t.Fatalf("slot %d is %v of %d, want %v: %+v", slot, stage, generation, want, p)
		}
	}
	if owner := m.channel.Owner(); owner != m.generation {
		t.Fatalf("owner %d, want %d", owner, m.generation)
	}
}

func TestChannelModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newChannelModel(t)
		defer m.close()
		defer func() { m.owner.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"publish":        m.publishOne,
			"take":           m.takeSome,
			"start":          m.startOne,
			"complete":       m.completeOne,
			"complete stale": m.completeStale,
			"flush":          m.flush,
			"receive":        m.receive,
			"withdraw":       m.withdraw,
			"wander":         m.withdrawAndPublish,
			"die":            m.die,
			"hand over": func(t *rapid.T) {
				if len(m.at(started)) > 0 || len(m.stale) > 0 {
					t.Skip("a batch is running")
				}
				m.handOver(t)
			},
			"": m.check,
		})
		// In the end every publication ends, once.
		m.die(t)
		for len(m.available()) > 0 {
			m.takeSome(t)
		}
		for _, slot := range m.at(held) {
			m.complete(t, slot)
		}
		m.flush(t)
		for len(m.at(answered)) > 0 {
			m.receive(t)
		}
		for _, slot := range m.at(lost) {
			if err := m.channel.Withdraw(slot); err != nil {
				t.Fatal(err)
			}
			delete(m.out, slot)
			m.ended++
		}
		if len(m.out) > 0 || m.began != m.ended {
			t.Fatalf("%d publications began, %d ended: %v", m.began, m.ended, m.out)
		}
	})
}
