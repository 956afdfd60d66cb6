package guest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Usage is how much memory of a GPU is free, and how much each process has.
type Usage struct {
	FreeBytes int64
	Processes map[int]int64 // by process id; -1: the driver does not count it
}

// of returns the memory of some processes together, -1 if it is unknown. contexts is how many of them have any, and
// counted reports whether the driver counts that of each.
func (u Usage) of(pids []int) (sum int64, contexts int, counted bool) {
	sum, counted = -1, true
	for _, pid := range pids {
		switch bytes, ok := u.Processes[pid]; {
		case ok && bytes >= 0:
			sum = max(0, sum) + bytes
			contexts++
		case ok:
			counted = false
		}
	}
	return sum, contexts, counted
}

// terms say how much GPU memory a guest may have so that functions get theirs. All are in bytes.
type terms struct {
	free    int64
	context int64 // of the guest itself
	guests  int64 // that others have asked for, and not yet taken
	workers int64 // that workers may take, and have not yet
	restart int64 // for one more process of the largest function
}

const mib = 1 << 20

// mibs are the terms in MiB. It rounds the free memory down and the others up. The printed terms then never
// look as if a refused guest would fit.
func (t terms) mibs() (free, context, guests, workers, restart, limit int64) {
	up := func(bytes int64) int64 { return (bytes + mib - 1) / mib }
	free, context, guests, workers, restart = t.free/mib, up(t.context), up(t.guests), up(t.workers), up(t.restart)
	return free, context, guests, workers, restart, max(0, free-context-guests-workers-restart)
}

// limitBytes is what the guest may have.
func (t terms) limitBytes() int64 {
	_, _, _, _, _, limit := t.mibs()
	return limit * mib
}

// reservedBytes is what guests that take turns must leave free.
func (t terms) reservedBytes() int64 { return t.guests + t.workers + t.restart }

func (t terms) String() string {
	free, context, guests, workers, restart, limit := t.mibs()
	return fmt.Sprintf("free %d - own context %d - other guests %d - workers %d - restart of a function %d = %d MiB", free, context, guests, workers, restart, limit)
}

// limit returns the limit of a guest that asks for some memory, or for all that it may have.
func (t terms) limit(requestBytes int64) (int64, error) {
	limit := t.limitBytes()
	switch {
	case limit == 0:
		return 0, fmt.Errorf("no GPU memory is left for it: %v; stop other guests", t)
	case requestBytes > limit:
		return 0, fmt.Errorf("--memory is %d MiB, and functions leave less: %v; use a smaller value, or stop other guests", requestBytes/mib, t)
	}
	return cmp.Or(requestBytes, limit), nil
}

// termsLocked returns the terms for one more guest on a device.
func (s *Server) termsLocked(p *part, u Usage) terms {
	t := terms{free: u.FreeBytes, context: p.ContextBytes, restart: p.RestartBytes}
	for pid, limit := range p.WorkerBytes {
		t.workers += max(0, limit+p.ContextBytes-max(0, u.Processes[pid]))
	}
	for _, g := range s.guests {
		if g.on == p && g.device == InMPS && !g.request.Swap && g.request.MemoryBytes > 0 {
			t.guests += max(0, g.request.MemoryBytes+p.ContextBytes-max(0, g.usedBytes))
		}
	}
	return t
}

// measure reads a GPU's memory, and what each of its guests has of it. ok is false if it is unknown.
func (s *Server) measure(p *part) (u Usage, ok bool) {
	s.mu.Lock()
	read := p.Memory
	guests := slices.DeleteFunc(slices.Clone(s.guests), func(g *guest) bool { return g.on != p })
	groups := make([]Group, len(guests))
	for i, g := range guests {
		groups[i] = g.group
	}
	s.mu.Unlock()
	if read == nil {
		return Usage{}, false
	}

	u, ok = read()
	pids := make([][]int, len(guests))
	for i, group := range groups {
		pids[i] = group.PIDs()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for i, g := range guests {
		g.usedBytes, g.contexts, g.counted = u.of(pids[i])
		g.counted = g.counted && ok
	}
	return u, ok
}

// contextsPerProcess says how much memory each process may have in addition to its guest's limit. One context is its own,
// and the other is for what the driver allocates without counting it, such as kernels.
const contextsPerProcess = 2

// enforce ends guests inside MPS of a device that have more GPU memory than their limit. Without it a program could remove the
// limit of MPS from its environment, leave MPS, or take the limit once per process.
func (s *Server) enforce(p *part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return
	}
	for _, g := range s.guests {
		extra := contextsPerProcess * p.ContextBytes
		if g.on != p || g.device != InMPS || g.limitBytes == 0 || g.killed || g.usedBytes <= g.limitBytes+int64(g.contexts)*extra {
			continue
		}
		s.o.Log.Warn().Str("guest", g.name).Int64("used_bytes", g.usedBytes).Int64("limit_bytes", g.limitBytes).Msg("guest exceeds its limit of GPU memory; ending it")
		why := fmt.Sprintf("it has %d MiB of GPU memory, and its limit is %d MiB, plus %d MiB per process", g.usedBytes/mib, g.limitBytes/mib, extra/mib)
		s.handlers.Go(func() { s.kill(g, why) })
	}
}

// notEnforcedLocked says what a guest can evade: see control.GuestStatus.
func (g *guest) notEnforcedLocked() (list []string) {
	if g.leaves {
		list = append(list, "end")
	}
	watched := g.device == OnCPU || g.counted
	if g.limitBytes > 0 && (g.leaves || !watched) || g.device == InMPS && g.request.Swap {
		list = append(list, "memory")
	}
	return list
}

// measureEvery is the time between two measurements while guests run.
const measureEvery = time.Second

// watch measures what guests have, for Held. It enforces their limits, and tells the swap server what to leave free.
func (s *Server) watch() {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.closes:
			return
		case <-ticker.C:
		}
		s.measureAll()
	}
}

// measureAll begins to measure the devices with guests, unless a driver has yet to answer.
func (s *Server) measureAll() *sync.WaitGroup {
	var done sync.WaitGroup
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.parts {
		if p.measuring || s.countLocked(p) == 0 {
			continue
		}
		p.measuring = true
		done.Go(func() {
			if u, ok := s.measure(p); ok {
				s.reserve(p, u)
				s.enforce(p)
			}
			s.mu.Lock()
			p.measuring = false
			s.mu.Unlock()
		})
	}
	return &done
}

// reserve tells the swap server of a device what to leave free.
func (s *Server) reserve(p *part, u Usage) {
	s.mu.Lock()
	bytes := s.termsLocked(p, u).reservedBytes()
	s.mu.Unlock()
	p.swap.reserve(bytes)
}

// Held says which guests of a device have how much of its memory, the largest first. It is empty if none is known
// to have any. It does not wait for the driver, so the figures may be a second old.
func (s *Server) Held(device string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	guests := slices.DeleteFunc(slices.Clone(s.guests), func(g *guest) bool { return g.on.Name != device || g.usedBytes < mib })
	if len(guests) == 0 {
		return ""
	}
	slices.SortStableFunc(guests, func(a, b *guest) int { return cmp.Compare(b.usedBytes, a.usedBytes) })
	const enough = 5
	var list []string
	for _, g := range guests[:min(len(guests), enough)] {
		list = append(list, fmt.Sprintf("%s %d MiB", g.name, g.usedBytes/mib))
	}
	if more := len(guests) - enough; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("guests have GPU memory: %s; `penstock guest stop` frees it", strings.Join(list, ", "))
}
