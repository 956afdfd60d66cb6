package orchestrator

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/keeper"
)

// A worker is a process of the operating system that hosts processes of several functions, its
// members. For the supervisor a member is a process like any other.
//
//   - spawn takes a process of the worker that may read the member's model, or starts one.
//   - order uses the worker's link, with the member's name.
//   - signal orders the member to drain. If the member has not ended memberTimeout after SIGKILL, the
//     whole worker is killed.
//   - A member exits with its last notice, or with its worker.
//
// The sandbox fixes which files a process may read. If a new member's model is not among them, a newer
// process takes over. The old one is superseded: it takes no more members, and the manager replaces
// those that it has.
//
// A worker ends with its last member. Its note has the notes of its members, so another
// orchestrator resumes them as it resumes processes.

// memberTimeout is the max time from SIGKILL for a member to its end. Its calls cannot be
// interrupted without the worker's other members.
const memberTimeout = 2 * time.Second

// workerTimeout is the max time for a worker without members to end.
const workerTimeout = 5 * time.Second

// workers are the processes of workers. Any goroutine may call its methods.
type workers struct {
	s *execSpawner

	mu    sync.Mutex       // guards what follows, and the members of all hosts
	hosts map[string]*host // that have not been forgotten, by the keeper's id
	last  uint32           // the last generation of a host
}

// host is one process of a worker.
type host struct {
	*execProcess
	w     *workers
	ended chan struct{} // closed when the process has exited

	// w.mu guards what follows.
	saved   savedWorker
	members map[string]*member
	closing bool   // it takes no more members
	culprit string // the member for whose sake it was killed
}

// member is a process in a worker.
type member struct {
	*host
	id  string
	out chan event
	// gone is closed when the events are no longer read.
	gone chan struct{}

	// w.mu guards what follows.
	end    *exit // how it ended; nil while it runs
	sent   bool  // end was sent, or is about to be
	killed bool  // the orchestrator sent SIGKILL
}

// savedWorker is the note of a worker's process.
type savedWorker struct {
	Worker     string                     `json:"worker"`
	Generation uint32                     `json:"worker_generation"`
	Device     string                     `json:"device"` // as control.Start.Device
	Reads      []string                   `json:"reads"`  // files and folders that it may read; nil: all
	Superseded bool                       `json:"superseded,omitempty"`
	Members    map[string]json.RawMessage `json:"members"`
	Counters   cgroup.Counters            `json:"counters"`
}

// workerKey names a worker where other processes are named by their function. No function's name
// has a colon.
func workerKey(name string, generation uint32) key { return key{"worker:" + name, 0, generation} }

// spawn starts a member.
func (w *workers) spawn(sp spec) (process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for h := w.hostLocked(&sp); h != nil; h = w.hostLocked(&sp) {
		if m, err := h.beginLocked(&sp); err == nil {
			return m, nil
		}
		// It has ended, which is about to be reported, or it hangs.
		h.closing = true
		h.execProcess.signal(syscall.SIGKILL)
	}
	h, err := w.startLocked(sp)
	if err != nil {
		return nil, err
	}
	m, err := h.beginLocked(&sp)
	if err != nil {
		return nil, fmt.Errorf("start %v in worker %s: %w", sp.key, sp.worker, err)
	}
	return m, nil
}

// beginLocked starts a member in this process. It writes the note first: another orchestrator must know each
// member that the worker may have, and the worker reports one that it never had as ended.
func (h *host) beginLocked(sp *spec) (*member, error) {
	m := h.addLocked(sp.key.String(), sp.note)
	h.saveLocked()
	if err := h.link.Order(control.Order{Do: control.DoStart, Member: m.id, Start: &sp.start}); err != nil {
		h.dropLocked(m)
		return nil, err
	}
	return m, nil
}

// hostLocked returns a process that can take a member; nil if there is none.
func (w *workers) hostLocked(sp *spec) *host {
	for _, h := range w.hosts {
		if h.takesLocked(sp.worker, sp.start.Device) && h.mayRead(sp) {
			return h
		}
	}
	return nil
}

// takesLocked reports whether this is the process that hosts new members of a worker.
func (h *host) takesLocked(worker, device string) bool {
	return h.saved.Worker == worker && h.saved.Device == device && !h.closing && !h.saved.Superseded
}

// mayRead reports whether the process may read what a new member needs.
func (h *host) mayRead(sp *spec) bool {
	return sp.confined == nil || !slices.ContainsFunc(sp.reads, func(path string) bool { return !covers(h.saved.Reads, path) })
}

// covers reports whether a path is among files and folders, or below one of these folders.
func covers(allowed []string, path string) bool {
	if slices.Contains(allowed, path) {
		return true
	}
	real, err := filepath.EvalSymlinks(path) // the sandbox allows files, not their names
	if err != nil {
		return false
	}
	return slices.ContainsFunc(allowed, func(folder string) bool {
		folder, err := filepath.EvalSymlinks(folder)
		return err == nil && (real == folder || strings.HasPrefix(real, strings.TrimSuffix(folder, "/")+"/"))
	})
}

// startLocked starts a process that can take the member.
func (w *workers) startLocked(sp spec) (*host, error) {
	w.last++
	h := w.newHost(savedWorker{Worker: sp.worker, Generation: w.last, Device: sp.start.Device})
	sp.key = workerKey(sp.worker, w.last)
	sp.start = control.Start{Worker: sp.worker, CPUs: sp.start.CPUs, Device: sp.start.Device, GroupSMs: sp.start.GroupSMs, WorkerLimits: sp.start.WorkerLimits}
	if sp.confined != nil {
		h.saved.Reads = sp.confined.Read
		sp.confined.Private = privateFolder(w.s.dir, sp.key)
	}
	sp.note = h.saved.encode()
	p, err := w.s.start(sp)
	if err != nil {
		return nil, err
	}
	h.saved.Counters = p.kernel
	for _, old := range w.hosts {
		if old.takesLocked(sp.worker, sp.start.Device) {
			old.saved.Superseded = true
			old.saveLocked()
			old.log.Info().Msg("a newer process of the worker takes over: this one may not read a new member's model")
		}
	}
	w.followLocked(h, p)
	return h, nil
}

func (w *workers) newHost(saved savedWorker) *host {
	if saved.Members == nil {
		saved.Members = map[string]json.RawMessage{}
	}
	return &host{w: w, saved: saved, members: map[string]*member{}, ended: make(chan struct{})}
}

// followLocked adds a worker's process, and passes on what it reports.
func (w *workers) followLocked(h *host, p *execProcess) {
	p.log = w.s.log.With().Str("worker", h.saved.Worker).Int("pid", p.pid()).Logger()
	h.execProcess = p
	w.hosts[p.held.ID] = h
	go p.run()
	go func() {
		for e := range p.out {
			h.forward(e)
		}
	}()
}

func (h *host) addLocked(id string, note json.RawMessage) *member {
	m := &member{host: h, id: id, out: make(chan event), gone: make(chan struct{})}
	h.members[id] = m
	h.saved.Members[id] = note
	return m
}

// dropLocked drops a member that has ended. A worker without members ends.
func (h *host) dropLocked(m *member) {
	delete(h.members, m.id)
	delete(h.saved.Members, m.id)
	h.closeLocked()
	h.forgetLocked()
}

// forward passes on an event of the worker.
func (h *host) forward(e event) {
	switch {
	case e.notice != nil && e.notice.Exited:
		h.memberExited(e.notice)
	case e.notice != nil && e.notice.Member != "":
		h.w.mu.Lock()
		m := h.members[e.notice.Member]
		runs := m != nil && m.end == nil
		h.w.mu.Unlock()
		if runs {
			m.send(e)
		}
	case e.broken != nil:
		h.log.Warn().Err(e.broken).Msg("worker broke the protocol; killing it")
		h.execProcess.signal(syscall.SIGKILL)
	case e.exit != nil:
		h.exited(*e.exit)
	}
}

// memberExited ends a member that has ended by itself. The last one ends together with its worker.
func (h *host) memberExited(n *control.Notice) {
	h.w.mu.Lock()
	m := h.members[n.Member]
	if m == nil || m.end != nil {
		h.w.mu.Unlock()
		return
	}
	m.end = &exit{}
	if n.State == control.Failed {
		m.end.code, m.end.tail = 1, []string{n.Reason}
	}
	m.sent = !h.closeLocked()
	send := m.sent
	h.w.mu.Unlock()
	if send {
		m.exit()
	}
}

// exited ends the members that have not ended before their worker.
func (h *host) exited(e exit) {
	h.w.mu.Lock()
	h.closing = true
	var rest []*member
	for _, m := range h.members {
		if m.end == nil {
			m.end = h.endLocked(m, e)
		}
		if !m.sent {
			m.sent = true
			rest = append(rest, m)
		}
	}
	h.w.mu.Unlock()
	close(h.ended)
	for _, m := range rest {
		m.exit()
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.forgetLocked()
}

// endLocked returns how a member ended whose worker ended so.
func (h *host) endLocked(m *member, e exit) *exit {
	if h.culprit != "" && h.culprit != m.id {
		e.tail = append([]string{fmt.Sprintf("worker %s was killed because its member %s did not end", h.saved.Worker, h.culprit)}, e.tail...)
	}
	return &e
}

// closeLocked ends a worker whose members have all ended. It reports whether it did.
func (h *host) closeLocked() bool {
	for _, m := range h.members {
		if m.end == nil {
			return false
		}
	}
	if h.closing {
		return false
	}
	h.closing = true
	go func() {
		if h.link.Order(control.Order{Do: control.DoDrain}) != nil {
			h.execProcess.signal(syscall.SIGKILL)
		}
	}()
	time.AfterFunc(workerTimeout, func() { h.execProcess.signal(syscall.SIGKILL) })
	return true
}

// forgetLocked drops a worker that has ended, when its members are forgotten.
func (h *host) forgetLocked() {
	select {
	case <-h.ended:
	default:
		return
	}
	if len(h.members) == 0 && h.w.hosts[h.held.ID] == h {
		delete(h.w.hosts, h.held.ID)
		h.keeper.Forget(h.held.ID)
	}
}

// encode returns the note as JSON.
func (n *savedWorker) encode() json.RawMessage {
	b, err := json.Marshal(n)
	if err != nil {
		panic(fmt.Sprintf("encode note of worker %s: %v", n.Worker, err)) // it consists of strings and valid JSON
	}
	return b
}

// saveLocked writes the worker's note.
func (h *host) saveLocked() { h.execProcess.note(h.saved.encode()) }

// resume takes over a worker that another orchestrator started, and returns its members. A worker
// without members ends.
func (w *workers) resume(p *keeper.Process, saved savedWorker) ([]heldProcess, error) {
	const shook = true
	c, err := w.s.watch(p, workerKey(saved.Worker, saved.Generation), shook)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()

	w.last, c.kernel = max(w.last, saved.Generation), saved.Counters
	h := w.newHost(saved)
	var list []heldProcess
	for _, id := range slices.Sorted(maps.Keys(saved.Members)) {
		m := h.addLocked(id, saved.Members[id])
		list = append(list, heldProcess{id: p.ID, note: saved.Members[id], age: time.Since(p.Started), exited: p.Exited, held: p, member: m})
	}
	w.followLocked(h, c)
	h.closeLocked()
	return list, nil
}

// drop ends the member's worker, and waits for its end. The member's events need not be read.
func (m *member) drop(patience time.Duration) {
	close(m.gone)
	m.execProcess.signal(syscall.SIGTERM)
	late := time.AfterFunc(patience, func() { m.execProcess.signal(syscall.SIGKILL) })
	defer late.Stop()
	<-m.ended
	m.forget()
}

func (m *member) send(e event) {
	select {
	case m.out <- e:
	case <-m.gone:
	}
}

// exit sends the member's last event.
func (m *member) exit() {
	m.send(event{exit: m.end})
	close(m.out)
}

// isSuperseded reports whether a newer process of the worker should host the member.
func (m *member) isSuperseded() bool {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	return m.saved.Superseded
}

func (m *member) events() <-chan event { return m.out }

func (m *member) order(o control.Order) error {
	o.Member = m.id
	return m.link.Order(o)
}

// signal asks the member to end. It kills the worker if the member does not follow SIGKILL.
func (m *member) signal(sig syscall.Signal) {
	m.w.mu.Lock()
	again := m.killed
	m.killed = m.killed || sig == syscall.SIGKILL
	m.w.mu.Unlock()
	if again {
		return
	}
	go func() {
		if m.order(control.Order{Do: control.DoDrain}) != nil {
			m.killWorker()
		}
	}()
	if sig == syscall.SIGKILL {
		time.AfterFunc(memberTimeout, m.killWorker)
	}
}

// killWorker kills the worker of a member that has not ended.
func (m *member) killWorker() {
	m.w.mu.Lock()
	runs := m.end == nil
	if runs && m.culprit == "" {
		m.culprit = m.id
	}
	m.w.mu.Unlock()
	if runs {
		m.execProcess.signal(syscall.SIGKILL)
	}
}

func (m *member) note(note json.RawMessage) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.saved.Members[m.id] = note
	m.saveLocked()
}

func (m *member) forget() {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.dropLocked(m)
	select {
	case <-m.ended:
	default:
		m.saveLocked()
	}
}
