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
	// files are the file with turns per level and that with turns for all levels, nil until a process needs it. Which
	// one a process needs may change with the device. A process that has begun keeps its file.
	files   map[bool]*shm.Turns
	holders map[int]*turnHolder // by process id
}

// turnHolder is a process with an entry in a file, nil if all entries were in use. The members of a worker are one
// process.
type turnHolder struct {
	of             *shm.Turns
	entry, members int
	overdue        bool // its turn was once passed on because others waited too long
}

// join gives a process an entry, and another member of it the same one. The error wraps shm.ErrNoEntry if the process
// takes no turns.
func (t *turns) join(pid int, perLevel bool) (*turnHolder, error) {
	if h := t.holders[pid]; h != nil {
		h.members++
		return h, nil
	}
	if t.files[perLevel] == nil {
		file, err := shm.NewTurns("penstock-turns", perLevel)
		if err != nil {
			return nil, err
		}
		t.files[perLevel] = file
	}
	h := &turnHolder{of: t.files[perLevel], members: 1}
	var err error
	if h.entry, err = h.of.Join(); err != nil {
		h.of = nil
	}
	t.holders[pid] = h
	return h, err
}

// leave records that a process or a member has ended.
func (t *turns) leave(pid int) {
	h := t.holders[pid]
	if h == nil {
		return
	}
	if h.members--; h.members > 0 {
		return
	}
	if h.of != nil {
		h.of.Leave(h.entry)
	}
	delete(t.holders, pid)
}

// watch passes on turns that do not move. It returns a process that had such a turn if that is the first time; 0
// otherwise.
func (t *turns) watch(now int64) (pid int) {
	for _, file := range t.files {
		entry, overdue := file.Watch(now)
		if !overdue {
			continue
		}
		for holder, h := range t.holders {
			if h.of == file && h.entry == entry && !h.overdue {
				h.overdue, pid = true, holder
			}
		}
	}
	return pid
}

// close frees the turns. Processes keep their mappings.
func (t *turns) close() {
	for _, file := range t.files {
		file.Close()
	}
	clear(t.holders) // a process may leave after the device
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
		h, err := s.turns.join(pid, s.prioritized())
		switch {
		case errors.Is(err, shm.ErrNoEntry):
			s.log.Warn().Err(err).Int("pid", pid).Msg("process takes no turns on the GPU")
		case err != nil:
			return a, err
		case h.of != nil:
			a.Turn, a.Files = &h.entry, append(a.Files, h.of.File())
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
