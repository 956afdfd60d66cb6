package manager

import (
	"errors"

	"github.com/penstock/penstock/shm"
)

// On a GPU without MPS the processes take turns (shm.Turns), if functions have guarantees. The
// processes pass the turn on by themselves. The manager gives each process an entry, and passes on the
// turn of a process that has ended or hangs.

// turns are the processes that take turns. The control loop owns it.
type turns struct {
	shared  *shm.Turns          // nil until a process takes turns
	entries map[int]*turnHolder // by process id
}

// turnHolder is a process with an entry. The members of a worker are one process.
type turnHolder struct {
	entry, members int
	overdue        bool // its turn was once passed on because others waited too long
}

// takesTurns reports whether processes take turns. With the driver's time slices as a baseline to
// compare with, they do not.
func (m *Manager) takesTurns() bool {
	return m.onGPU() && !m.device.mps && m.cfg.Guarantees() && !m.cfg.Lab.TimeSlicing
}

// join gives a process, or another member of it, an entry.
func (t *turns) join(pid int) (entry int, err error) {
	if h := t.entries[pid]; h != nil {
		h.members++
		return h.entry, nil
	}
	if t.shared == nil {
		if t.shared, err = shm.NewTurns("penstock-turns"); err != nil {
			return 0, err
		}
		t.entries = map[int]*turnHolder{}
	}
	if entry, err = t.shared.Join(); err == nil {
		t.entries[pid] = &turnHolder{entry: entry, members: 1}
	}
	return entry, err
}

// leave records that a process or a member has ended.
func (t *turns) leave(pid int) {
	h := t.entries[pid]
	if h == nil {
		return
	}
	if h.members--; h.members == 0 {
		t.shared.Leave(h.entry)
		delete(t.entries, pid)
	}
}

// watch passes on a turn that does not move. It returns the process that had the turn if that is the
// first time; 0 otherwise.
func (t *turns) watch(now int64) (pid int) {
	if t.shared == nil {
		return 0
	}
	entry, overdue := t.shared.Watch(now)
	if !overdue {
		return 0
	}
	for pid, h := range t.entries {
		if h.entry == entry && !h.overdue {
			h.overdue = true
			return pid
		}
	}
	return 0
}

// close frees the turns. Processes keep their mappings.
func (t *turns) close() {
	if t.shared != nil {
		t.shared.Close()
	}
}

// watchTurns passes on a turn that does not move.
func (m *Manager) watchTurns() {
	if pid := m.turns.watch(shm.Now()); pid != 0 {
		m.log.Warn().Int("pid", pid).Dur("after_ms", shm.TurnPatience).
			Msg("a process keeps the GPU while others wait; their batches now run next to its batch")
	}
}

// joinTurns returns the entry of a process that takes turns, nil if it takes none.
func (m *Manager) joinTurns(pid int) (*int, error) {
	if !m.takesTurns() {
		return nil, nil
	}
	entry, err := m.turns.join(pid)
	if errors.Is(err, shm.ErrNoEntry) {
		m.log.Warn().Err(err).Int("pid", pid).Msg("process takes no turns on the GPU")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &entry, nil
}
