package cpushare

import (
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/shm"
)

// budgetTick is the interval at which budgets reads the CPU time of the processes. A process
// that overdraws its balance is demoted at most that much later.
const budgetTick = 20 * time.Millisecond

// prioritizer gives a process its level. Level Demoted yields to all other processes of the
// node.
type prioritizer interface {
	Prioritize(budget.Level) error
}

// budgets holds processes on the CPUs to their guarantees. It charges each process for its
// CPU time, and demotes a process that has used up its balance (package budget). Any
// goroutine may call its methods.
type budgets struct {
	cpus int
	log  zerolog.Logger
	now  func() int64                         // shm.Now
	used func(pid int) (time.Duration, error) // CPU time of all threads so far

	// onlyWhenBusy: while the CPUs have time left, demote no process. It is for mechanisms
	// that make a demoted process wait.
	onlyWhenBusy bool

	mu        sync.Mutex
	spenders  map[string]*spender
	sampledAt int64         // when sample was last called
	stop      chan struct{} // ends run; nil while no process has a guarantee
}

// busy is the part of the CPUs' time at which they count as busy.
const busy = 0.9

// spender is a process with a guarantee.
type spender struct {
	pid      int
	priority prioritizer
	level    budget.Level // the level of its guaranteed work
	balance  budget.Balance
	used     time.Duration // at the last call of sample
	spent    time.Duration // part of the CPUs' time, at the last call of sample
	at       budget.Level  // the level that it runs at
	total    time.Duration // CPU time since it started
	demoted  time.Duration // the part of total at level Demoted
}

func newBudgets(cpus int, log zerolog.Logger) *budgets {
	return &budgets{cpus: cpus, log: log, now: shm.Now, used: cpuTimeOf, spenders: map[string]*spender{}}
}

// set gives a process its terms, the first time or again.
func (b *budgets) set(name string, pid int, t control.Terms, p prioritizer) error {
	now := b.now()
	// Save up at least one tick: a burst that is shorter than a tick is not worth a
	// demotion, which lasts as long. A process without a guarantee saves nothing.
	part, saved := t.GuaranteePercent/100, time.Duration(t.BalanceNanos)
	if part > 0 {
		saved = max(saved, budgetTick)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spenders[name]
	if s == nil {
		used, err := b.used(pid)
		if err != nil {
			return err
		}
		s = &spender{pid: pid, priority: p, level: t.Level, balance: budget.NewBalance(now, part, saved), used: used}
		if err := s.run(s.due(now)); err != nil {
			return err
		}
		b.spenders[name] = s
		if b.stop == nil {
			b.stop = make(chan struct{})
			go b.run(b.stop)
		}
		return nil
	}
	s.balance.Set(now, part, saved)
	s.level = t.Level
	if s.at == budget.Demoted || s.at == s.level {
		return nil
	}
	return s.run(s.level)
}

// due is the level that the balance allows.
func (s *spender) due(now int64) budget.Level {
	if s.balance.Guaranteed(now) {
		return s.level
	}
	return budget.Demoted
}

// run moves the process to a level. After an error its level stays as it was, and the next
// sample tries again.
func (s *spender) run(l budget.Level) error {
	if err := s.priority.Prioritize(l); err != nil {
		return err
	}
	s.at = l
	return nil
}

func (b *budgets) remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.spenders, name)
	if len(b.spenders) == 0 && b.stop != nil {
		close(b.stop)
		b.stop = nil
	}
}

// spent returns the CPU time of a process on all CPUs, and the part of it beyond its
// guarantee.
func (b *budgets) spent(name string) (total, demoted time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.spenders[name]; s != nil {
		return s.total, s.demoted
	}
	return 0, 0
}

// demoted reports whether a process has used up its balance.
func (b *budgets) demoted(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.spenders[name]
	return s != nil && s.at == budget.Demoted
}

func (b *budgets) run(stop <-chan struct{}) {
	tick := time.NewTicker(budgetTick)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			b.sample()
		}
	}
}

// sample charges each process for the CPU time since the last call, and moves it between its
// level and Demoted.
func (b *budgets) sample() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	all := time.Duration(0)
	for _, s := range b.spenders {
		s.spent = 0
		if used, err := b.used(s.pid); err == nil { // after an error: the process has ended, and remove follows
			s.spent = (used - s.used) / time.Duration(b.cpus)
			s.used = used
			all += s.spent
		}
	}
	idle := b.onlyWhenBusy && float64(all) < busy*float64(now-b.sampledAt)
	b.sampledAt = now
	for name, s := range b.spenders {
		spent := s.spent
		s.total += spent
		if s.at == budget.Demoted {
			s.demoted += spent
		} else {
			s.balance.Charge(now, spent)
		}
		at := s.due(now)
		if idle {
			at = s.level
		}
		if at == s.at {
			continue
		}
		if err := s.run(at); err != nil {
			b.log.Debug().Err(err).Str("process", name).Int("priority", int(at)).Msg("cannot change priority of process")
		}
	}
}

// cpuTimeOf reads the CPU-time clock of a process, as clock_getcpuclockid(3) names it.
func cpuTimeOf(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED, include/linux/posix-timers.h
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(pid)<<3|schedClock, &t); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
