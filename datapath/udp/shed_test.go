package udp

import (
	"testing"
	"time"
)

// plant models a receiver and its socket as a fluid: what is offered, taken and waiting.
type plant struct {
	s              shedding
	now            int64
	takes, offered float64 // bytes/ns
	found          sight
	waiting        float64
	bytes          float64
	drops          float64
	cut            float64
	cutOf          float64 // of so many shed messages one is cut; 0: none
	news           []Overrun
}

const (
	plantRoom    = 64 << 20
	plantMessage = 64_000
	plantTakes   = 3.6 // GB/s
)

func newPlant(offered float64) *plant {
	return &plant{s: shedding{room: plantRoom}, now: 1e9, takes: plantTakes, offered: offered * plantTakes}
}

// run lets time pass, and takes each sample that is due.
func (p *plant) run(d time.Duration) {
	for until := p.now + int64(d); p.now < until; {
		p.now += int64(lookEvery)
		accepted := 1.
		if p.s.on {
			accepted = float64(p.s.steps()) / filterSteps
		}
		come := p.offered * float64(lookEvery)
		shed := come * (1 - accepted) / plantMessage
		if p.cutOf > 0 {
			p.cut += shed / p.cutOf
			shed -= shed / p.cutOf
		}
		p.drops += shed
		p.waiting += come * accepted
		took := min(p.waiting, p.takes*float64(lookEvery))
		p.waiting -= took
		p.bytes += took
		if over := p.waiting - plantRoom; over > 0 {
			p.drops += over / plantMessage
			p.waiting = plantRoom
		}
		if p.waiting == 0 {
			p.found.emptied = true
		}
		p.look()
	}
}

// look makes the receiver take a sample.
func (p *plant) look() {
	p.found.waiting, p.found.bytes = int(p.waiting), uint64(p.bytes)
	p.found.messages, p.found.drops = uint64(p.bytes/plantMessage), uint32(uint64(p.drops))
	p.found.cut = uint64(p.cut)
	if news := p.s.look(p.now, p.found); news.Lasted != 0 {
		p.news = append(p.news, news)
	}
	p.found.emptied = false
}

func TestShedExcess(t *testing.T) {
	for _, offered := range []float64{1.1, 1.25, 1.5, 2, 3, 8} {
		p := newPlant(offered)
		p.run(300 * time.Millisecond)
		if !p.s.on {
			t.Errorf("%v times what it takes: nothing is shed", offered)
			continue
		}
		before := p.bytes
		for range 100 {
			p.run(5 * time.Millisecond)
			if most := 2 * plantTakes * float64(keptBacklog); p.waiting > most {
				t.Errorf("%v times what it takes: %.1f ms of it wait, want at most %.1f", offered, p.waiting/plantTakes/1e6, most/plantTakes/1e6)
				break
			}
		}
		if got, can := p.bytes-before, plantTakes*500e6; got < 0.95*can {
			t.Errorf("%v times what it takes: it gets %.0f %% of what it could take, want 95", offered, 100*got/can)
		}
	}
}

// Of each request the first of three messages is cut, the others are dropped. The offered
// rate is still known.
func TestWhatIsCutCountsAsOffered(t *testing.T) {
	p := newPlant(2)
	p.cutOf = 3
	p.run(300 * time.Millisecond)
	for range 100 {
		p.run(5 * time.Millisecond)
		if got, want := p.s.offered/p.s.all, p.offered; got < 0.95*want || got > 1.05*want {
			t.Fatalf("offered is thought to be %.2f of what it takes, want %.2f", got/plantTakes, want/plantTakes)
		}
	}
}

// Dropped datagrams of a few bytes count as much as the average message. A flood of them
// makes the offered rate seem higher than it is. The receiver is then found idle, and its
// estimated capacity grows.
func TestShedFlood(t *testing.T) {
	for _, flood := range []float64{50e3, 300e3, 1e6} { // datagrams per second
		p := newPlant(1.5)
		p.run(300 * time.Millisecond)
		before := p.bytes
		for range 1000 {
			if p.s.steps() < filterSteps {
				p.drops += flood * lookEvery.Seconds()
			}
			p.run(lookEvery)
		}
		if got, can := p.bytes-before, plantTakes*2e9; got < 0.8*can {
			t.Errorf("with %.0f dropped datagrams a second it gets %.0f %% of what it could take, want 80", flood, 100*got/can)
		}
	}
}

// A burst may fill half of the buffer, however long it takes to arrive.
func TestShedSlowBurst(t *testing.T) {
	for burst, want := range map[float64]bool{0.5: false, 0.8: true} {
		p := newPlant(0.3)
		p.run(20 * time.Millisecond)
		p.offered = burst*plantRoom/20e6 + plantTakes
		p.run(20 * time.Millisecond)
		p.offered = 0.3 * plantTakes
		p.run(100 * time.Millisecond)
		if p.s.on != want {
			t.Errorf("a burst of 20 ms that fills %v of the buffer: shedding is %v, want %v", burst, p.s.on, want)
		}
	}
}

func TestShedNothing(t *testing.T) {
	p := newPlant(0.95)
	p.run(2 * time.Second)
	if p.s.on {
		t.Error("requests are shed of a receiver that takes them all")
	}
}

func TestShedBurst(t *testing.T) {
	for name, burst := range map[string]float64{"half of the buffer": plantRoom / 2.1, "all of it": plantRoom} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(0.3)
			p.run(20 * time.Millisecond)
			p.waiting += burst
			p.look()
			p.run(100 * time.Millisecond)
			if p.s.on || p.waiting > 0 {
				t.Errorf("shedding %v with %.0f bytes waiting, want neither", p.s.on, p.waiting)
			}
		})
	}
}

// A receiver that did not run for a while finds its buffer full. That says nothing about its
// capacity.
func TestShedAfterAbsence(t *testing.T) {
	p := newPlant(0.3)
	p.run(20 * time.Millisecond)
	p.waiting = plantRoom
	p.now += int64(staleAfter) + 1
	p.drops += 1000
	p.look()
	p.run(100 * time.Millisecond)
	if p.s.on {
		t.Error("requests are shed after a pause")
	}
}

func TestShedProbe(t *testing.T) {
	p := newPlant(2)
	p.run(300 * time.Millisecond)
	p.now += int64(staleAfter) + 1
	p.look()
	if got := p.s.steps(); !p.s.on || got != filterSteps {
		t.Fatalf("after a pause %d of %d are let in (shedding %v), want all and true", got, filterSteps, p.s.on)
	}
	p.run(300 * time.Millisecond)
	if got := p.s.steps(); got > filterSteps*6/10 {
		t.Errorf("a while after the pause %d of %d are let in, want about half", got, filterSteps)
	}
}

func TestShedEndsOnRecovery(t *testing.T) {
	p := newPlant(2)
	p.run(300 * time.Millisecond)
	p.offered = 0.5 * plantTakes
	p.run(200 * time.Millisecond)
	if got := p.s.steps(); got != filterSteps {
		t.Errorf("0.2 s after the overrun %d of %d are let in, want all", got, filterSteps)
	}
	if !p.s.on {
		t.Error("the overrun has ended at once: it may come back")
	}
	p.run(calmAfter)
	if p.s.on {
		t.Errorf("it is still shedding %v after the overrun", calmAfter)
	}
}

// If a receiver took nothing while its buffer was full, the estimate of its capacity must not
// stay at zero.
func TestShedEndsAfterStall(t *testing.T) {
	p := newPlant(1.5)
	p.run(20 * time.Millisecond)
	p.takes = 0
	p.run(100 * time.Millisecond)
	p.takes, p.offered = plantTakes, plantTakes/2
	p.run(time.Second)
	if got := p.s.steps(); got != filterSteps {
		t.Errorf("a second later %d of %d are let in, want all", got, filterSteps)
	}
}

// Everything that arrives may be shed: then nothing is taken, and there are no messages to
// measure.
func TestShedEndsWhenIdle(t *testing.T) {
	p := newPlant(50)
	p.run(300 * time.Millisecond)
	p.offered = 0
	p.run(200*time.Millisecond + calmAfter)
	if p.s.on {
		t.Error("it is still shedding")
	}
}

func TestOverrunReports(t *testing.T) {
	p := newPlant(2)
	p.run(time.Second)
	if len(p.news) != 1 || p.news[0].Ended || p.news[0].Shed < 0.4 || p.news[0].Shed > 0.8 {
		t.Fatalf("told %+v, want once that about half is shed", p.news)
	}
	p.offered = 0
	p.run(2 * time.Second)
	if len(p.news) != 2 || !p.news[1].Ended || p.news[1].Lasted < 1800*time.Millisecond || p.news[1].Lasted > 2500*time.Millisecond {
		t.Errorf("told %+v, want the end of an overrun of 2 s, too", p.news)
	}
}

// A receiver that seldom runs may sample in time only when the overrun begins and when it is
// over.
func TestOverrunUnreported(t *testing.T) {
	p := newPlant(2)
	for !p.s.on {
		p.run(lookEvery)
	}
	p.offered, p.waiting, p.found.emptied = 0, 0, true
	p.now += int64(staleAfter) + 1
	p.look()
	for range 2 {
		p.run(lookEvery)
		p.now += int64(calmAfter)
		p.look()
	}
	p.run(lookEvery)
	if p.s.on || len(p.news) != 0 {
		t.Errorf("shedding %v, told %+v, want neither", p.s.on, p.news)
	}
}

// The kernel's count of drops has 32 bits.
func TestDropsMayWrap(t *testing.T) {
	p := newPlant(2)
	p.drops = 1<<32 - 1000
	p.look()
	p.run(300 * time.Millisecond)
	if got := p.s.steps(); got < filterSteps*4/10 || got > filterSteps*6/10 {
		t.Errorf("%d of %d are let in, want about half", got, filterSteps)
	}
	if p.drops < 1<<32 {
		t.Fatal("nothing wrapped")
	}
}

// If a receiver's capacity drops from one moment to the next, less is let in; if the capacity
// recovers, more is let in.
func TestSheddingFollowsTheReceiver(t *testing.T) {
	p := newPlant(1.5)
	for _, takes := range []float64{plantTakes, plantTakes / 3, plantTakes} {
		p.takes = takes
		p.run(600 * time.Millisecond)
		before := p.bytes
		p.run(100 * time.Millisecond)
		if got := p.bytes - before; got < 0.95*takes*100e6 {
			t.Errorf("of %.1f GB/s that it takes it gets %.1f", takes, got/100e6)
		}
		if p.waiting > 2*takes*float64(keptBacklog) {
			t.Errorf("at %.1f GB/s, %.1f ms of it wait", takes, p.waiting/takes/1e6)
		}
	}
}
