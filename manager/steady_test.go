package manager

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/manager/share"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// steadyServer is a function on a CPU under a quota that is reckoned: a request runs at full
// speed until a millisecond of quota is used up, and at its share's pace from there on; the
// scheduler's tick lets longer ones overrun. Times are seconds.
type steadyServer struct {
	in         *instance
	cpu, rate  float64 // CPU time of a request, requests a second
	random     *rand.Rand
	next, free float64   // the next request, when the one that runs ends
	quota, at  float64   // what is left of it, and since when
	waiting    []float64 // when they were whole
	counted    int
	inTime     int
	share      float64
	moves      int
}

// run serves until a time.
func (s *steadyServer) run(until float64) {
	for {
		for s.next <= until && (s.next <= s.free || len(s.waiting) == 0) {
			s.in.tally.arrive(s.request(s.next))
			s.waiting = append(s.waiting, s.next)
			s.free = max(s.free, s.next)
			s.next += s.random.ExpFloat64() / s.rate
		}
		if len(s.waiting) == 0 || s.free > until {
			return
		}
		s.serve(s.waiting[0])
		s.waiting = s.waiting[1:]
	}
}

func (s *steadyServer) request(whole float64) shm.Request {
	return shm.Request{FirstPiece: int64(whole*1e9) - int64(200*time.Microsecond), Whole: int64(whole * 1e9)}
}

// serve answers the oldest request, late if it cannot make it.
func (s *steadyServer) serve(whole float64) {
	const tick, fresh = 0.004, 0.001
	part, objective := s.in.pair.Share()/100, s.in.f.slo.Seconds()
	s.quota = min(fresh, s.quota+(s.free-s.at)*part)
	work := s.cpu * math.Exp(0.1*s.random.NormFloat64())
	end := s.free + min(work, max(0, s.quota)) + max(0, work-s.quota)/part
	s.at, s.counted = s.free, s.counted+1
	if end > whole+objective {
		s.in.tally.answer(s.request(whole), shm.Result{Status: uint8(wire.StatusLate)}, int64(s.free*1e9), lateFactor*s.in.f.slo)
		return
	}
	if s.quota = 0; work > fresh {
		s.quota = -tick / 2 * s.random.Float64()
	}
	result := shm.Result{Status: uint8(wire.StatusOK), Batch: 1, Dispatched: int64(s.free * 1e9), Inferred: int64(end * 1e9)}
	s.in.tally.answer(s.request(whole), result, int64(end*1e9), lateFactor*s.in.f.slo)
	s.inTime++
	s.at, s.free = end, end
}

// Under a load that stays, shares that were found stay: what moves them is chance, and each
// change costs a process's start.
func TestASteadyLoadMovesFewShares(t *testing.T) {
	const (
		interval = 500 * time.Millisecond
		looks    = 1200
		settled  = 240
		seeds    = 4
	)
	moves, counted, inTime := 0, 0, 0
	for seed := range uint64(seeds) {
		b := newNode(t, "cpu", nil, "governor")
		b.log = zerolog.Nop()
		b.cfg.Shares.Interval, b.cfg.Shares.HoldDown = interval, 4*time.Second
		var err error
		if b.shares, err = share.NewController(shareConfig(b.cfg.Shares)); err != nil {
			t.Fatal(err)
		}
		var servers []*steadyServer
		start := time.Since(b.started).Seconds()
		for i, f := range []struct {
			name      string
			slo       time.Duration
			cpu, rate float64
		}{{"face", 25 * time.Millisecond, 0.0022, 80}, {"fashion", 10 * time.Millisecond, 0.00035, 275}, {"detect", 400 * time.Millisecond, 0.055, 2.4}} {
			if err := b.add(configs.Function{Name: f.name, Instances: 1, SLO: f.slo, Change: configs.ChangeInPlace}); err != nil {
				t.Fatal(err)
			}
			b.turns()
			in := b.instance(f.name, 0)
			in.log, in.cpuPerRequest = zerolog.Nop(), duration(f.cpu)
			in.tally.ladder = []int{1}
			servers = append(servers, &steadyServer{in: in, cpu: f.cpu, rate: f.rate, random: rand.New(rand.NewPCG(seed, uint64(i))), next: start, free: start, at: start})
		}
		for look := 1; look <= looks; look++ {
			now := start + float64(look)*interval.Seconds()
			for _, s := range servers {
				s.run(now)
			}
			b.tune(b.started.Add(duration(now)))
			b.turns()
			for _, s := range servers {
				if look == settled {
					s.moves, s.counted, s.inTime = 0, 0, 0
				}
				if got := s.in.pair.Share(); got != s.share {
					s.share = got
					s.moves++
				}
			}
		}
		for _, s := range servers {
			t.Logf("seed %d: %s %.1f %%, %d changes, %.2f %% in time", seed, s.in.f.name, s.share, s.moves, 100*float64(s.inTime)/float64(s.counted))
			moves, counted, inTime = moves+s.moves, counted+s.counted, inTime+s.inTime
		}
	}
	minutes := seeds * (looks - settled) * interval.Minutes()
	perMinute, within := float64(moves)/minutes, 100*float64(inTime)/float64(counted)
	t.Logf("%.1f changes a minute, %.2f %% in time", perMinute, within)
	if perMinute > 11 || within < 97.5 {
		t.Errorf("%.1f changes a minute and %.2f %% in time, want 11 at most and 97.5 at least", perMinute, within)
	}
}
