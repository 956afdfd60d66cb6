package sharing

import (
	"errors"
	"os"

	"github.com/penstock/penstock/shm"
)

// On a GPU the processes take turns (shm.Turns), if functions have guarantees. The
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

// join gives a process, or another member of it, an entry.
func (t *turns) join(pid int, perLevel bool) (entry int, err error) {
	if h := t.entries[pid]; h != nil {
		h.members++
		return h.entry, nil
	}
	if t.shared == nil {
		if t.shared, err = shm.NewTurns("penstock-turns", perLevel); err != nil {
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

// Admission is what a process gets to share the device with others.
type Admission struct {
	// Turn is its entry in the turns, nil if it takes none.
	Turn *int
	// Busy: the last two files are the busy word and its locks.
	Busy bool
	// Files are for the process. Close closes those that the caller no longer needs.
	Files []*os.File
}

// Admit admits a process. Leave ends that.
func (s *Sharing) Admit(pid int) (a Admission, err error) {
	if s.takesTurns() {
		entry, err := s.turns.join(pid, s.prioritized())
		switch {
		case errors.Is(err, shm.ErrNoEntry):
			s.log.Warn().Err(err).Int("pid", pid).Msg("process takes no turns on the GPU")
		case err != nil:
			return a, err
		default:
			a.Turn, a.Files = &entry, append(a.Files, s.turns.shared.File())
		}
	}
	if s.onGPU() {
		busy := s.busy.files()
		a.Busy, a.Files = len(busy) > 0, append(a.Files, busy...)
	}
	return a, nil
}

// Close frees what only the process needs.
func (a *Admission) Close() {
	if a.Busy {
		a.Files[len(a.Files)-1].Close()
	}
}

// Leave records that a process, or a member of it, has ended.
func (s *Sharing) Leave(pid int) { s.turns.leave(pid) }
