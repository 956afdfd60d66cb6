package shm

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/futex"
)

// Processes that share a GPU run the batches of one level one after the other. All of them can write
// a file of turns. Per level it has a word that names the process whose turn it is, a bitmap of the processes
// that wait, and an entry per process. On a GPU without priorities between processes the batches of all levels
// share one set of these (NewTurns).
//
//	process                                            process that has the turn
//	Take     1. the turn is free: one compare-and-swap
//	         2. else write the entry, set the bit
//	         3. try again, sleep on the entry's bell
//	                                            <───── Release: name the best waiting entry, ring
//	Release  clear the bit, pass the turn on or free it
//
// The owner word also counts its changes. So a compare-and-swap fails if the turn has passed on since.
//
// A process that gives up its wait clears its bit, then reads the owner word. A process that passes the
// turn on writes the owner word, then reads the bit. At least one of the two sees the other's write
// and passes the turn on. So no turn stays with a process that does not want it.
//
// A faulty process can write any word. The others check each index, bound each loop, and sleep at most
// maxTurnSleep before they look again. The manager passes on the turn of a process that has ended. It also passes on
// a turn that one process keeps while others wait, whatever that process writes in its own entry (Turns.Watch). So
// a faulty process can delay batches or make several run at once, and nothing worse.

// TurnEntries is the max number of processes that take turns.
const TurnEntries = 256

// TurnLevels is the number of levels: 0 is that of demoted batches.
const TurnLevels = 6

// One level of a file of turns; the file has 1 or TurnLevels of them. Each part begins a cache line.
const (
	atTurnOwner   = 0 * lineBytes // u64, changes<<32 | entry+1, where entry+1 is 0 while the turn is free
	atTurnWaiting = 1 * lineBytes // bitmap of entries
	atTurnTenant  = 2 * lineBytes // turnTenant
	atTurnEntries = 3 * lineBytes // one line per entry
	turnsBytes    = atTurnEntries + TurnEntries*lineBytes
)

// turnEntry is what a process says about the batch that waits.
type turnEntry struct {
	bell     atomic.Uint32 // futex: the turn is this process's
	level    atomic.Uint32
	deadline atomic.Int64
	turns    atomic.Uint32 // that the process has had
	_        [lineBytes - 20]uint8
}

// turnTenant is the process that had the last turn, and since when no other one had a turn.
type turnTenant struct {
	entry atomic.Uint32 // entry+1
	_     [4]uint8
	since atomic.Int64 // nanoseconds of Now
}

// turnWords are the words of the file of turns.
type turnWords struct {
	owner   *atomic.Uint64
	waiting []atomic.Uint64
	tenant  *turnTenant
	entries []turnEntry
}

// turnLevels returns the words of each level.
func turnLevels(mem []byte) (levels []turnWords) {
	for ; len(mem) >= turnsBytes; mem = mem[turnsBytes:] {
		levels = append(levels, turnsOf(mem[:turnsBytes]))
	}
	return levels
}

func turnsOf(mem []byte) turnWords {
	return turnWords{
		owner:   word64(mem, atTurnOwner),
		waiting: view[atomic.Uint64](mem, atTurnWaiting, TurnEntries/64),
		tenant:  &view[turnTenant](mem, atTurnTenant, 1)[0],
		entries: view[turnEntry](mem, atTurnEntries, TurnEntries),
	}
}

// freeTurn stands for the owner of a free turn, and for the best of no waiting entries.
const freeTurn = -1

func turnOwner(word uint64) (entry int) { return int(uint32(word)) - 1 }

// nextTurn returns the owner word that follows a word.
func nextTurn(word uint64, entry int) uint64 { return (word>>32+1)<<32 | uint64(uint32(entry+1)) }

// Rank is a batch's place among those that wait: the highest Level is first, and of one level the
// earliest Deadline.
type Rank struct {
	Level    uint32
	Deadline int64 // nanoseconds of Now
}

// Before reports whether the batch goes first.
func (r Rank) Before(other Rank) bool {
	if r.Level != other.Level {
		return r.Level > other.Level
	}
	return r.Deadline < other.Deadline
}

func (w *turnWords) waits(entry int) bool { return w.waiting[entry/64].Load()>>(entry%64)&1 != 0 }

func (w *turnWords) wait(entry int) { w.waiting[entry/64].Or(1 << (entry % 64)) }

func (w *turnWords) stopWaiting(entry int) { w.waiting[entry/64].And(^uint64(1 << (entry % 64))) }

// best returns the first of the waiting entries other than one, and its rank.
func (w *turnWords) best(other int) (best int, first Rank) {
	best = freeTurn
	for i := range w.waiting {
		for set := w.waiting[i].Load(); set != 0; set &= set - 1 {
			entry := 64*i + bits.TrailingZeros64(set)
			if entry == other {
				continue
			}
			e := &w.entries[entry]
			rank := Rank{e.level.Load(), e.deadline.Load()}
			if best == freeTurn || rank.Before(first) {
				best, first = entry, rank
			}
		}
	}
	return best, first
}

// pass gives the turn to the first waiting entry, or frees it. from is the owner word that the caller
// read. If it has changed since, the turn is not the caller's to pass on.
func (w *turnWords) pass(from uint64) {
	for range 2 * TurnEntries { // a peer could keep an endless loop busy
		next, _ := w.best(freeTurn)
		if next == freeTurn && turnOwner(from) == freeTurn {
			return
		}
		to := nextTurn(from, next)
		if !w.owner.CompareAndSwap(from, to) {
			return
		}
		from = to
		if next == freeTurn {
			continue // a process that has just begun to wait may have seen the turn taken
		}
		if w.waits(next) {
			futex.Ring(&w.entries[next].bell)
			return
		}
	}
}

// leave makes an entry want no turn. It passes on the turn if the entry has it.
func (w *turnWords) leave(entry int) {
	w.stopWaiting(entry)
	if word := w.owner.Load(); turnOwner(word) == entry {
		w.pass(word)
	}
}

// Turns is the manager's end of a file of turns. One goroutine calls its methods.
type Turns struct {
	region *Region
	levels []watchedTurns
	used   [TurnEntries]bool
}

// watchedTurns are the turns of one level.
type watchedTurns struct {
	turnWords
	// since is when Watch first read this owner word while processes waited. Later words have the same entry, and no other
	// entry has had more turns.
	since  int64
	stuck  uint64
	others uint32
}

// NewTurns makes a file of turns, for each of TurnLevels levels by itself or for all levels together.
// /proc/PID/maps shows the name.
func NewTurns(name string, perLevel bool) (*Turns, error) {
	levels := 1
	if perLevel {
		levels = TurnLevels
	}
	region, err := Create(name, levels*turnsBytes, Options{Writable: true})
	if err != nil {
		return nil, fmt.Errorf("make turns: %w", err)
	}
	t := &Turns{region: region}
	for _, w := range turnLevels(region.Bytes()) {
		t.levels = append(t.levels, watchedTurns{turnWords: w})
	}
	return t, nil
}

// File is for the processes, which write it. Turns owns it; it is open until Close.
func (t *Turns) File() *os.File { return t.region.File() }

// ErrNoEntry is returned by Turns.Join if TurnEntries processes take turns.
var ErrNoEntry = errors.New("all entries are in use")

// Join reserves an entry for a process.
func (t *Turns) Join() (entry int, err error) {
	for entry, used := range t.used {
		if !used {
			t.used[entry] = true
			return entry, nil
		}
	}
	return 0, fmt.Errorf("reserve one of %d turn entries: %w", TurnEntries, ErrNoEntry)
}

// Leave frees the entry of a process that has ended, and passes on its turns.
func (t *Turns) Leave(entry int) {
	t.used[entry] = false
	for i := range t.levels {
		t.levels[i].leave(entry)
	}
}

// TurnPatience is how long a process may keep a turn while others wait. A longer batch shares the GPU
// with the next one. Batches of processes with short objectives are shorter than TurnPatience.
const TurnPatience = 250 * time.Millisecond

// Watch passes on turns of entries that have kept them for TurnPatience while others waited. It then
// returns such an entry, and true, if one batch has lasted that long. It does not return that of a demoted batch for which
// higher levels left no time. It also passes on the turns of entries without a process. The caller calls it several times
// per TurnPatience.
func (t *Turns) Watch(now int64) (entry int, overdue bool) {
	for i := range t.levels {
		kept, long := t.levels[i].watch(now, &t.used)
		if demoted := i == 0 && len(t.levels) > 1; long && !demoted {
			entry, overdue = kept, true
		}
	}
	return entry, overdue
}

func (w *watchedTurns) watch(now int64, inUse *[TurnEntries]bool) (entry int, overdue bool) {
	word := w.owner.Load()
	entry = turnOwner(word)
	used := entry >= 0 && entry < TurnEntries && inUse[entry]
	waiting, _ := w.best(entry)
	others := w.turnsBut(entry, inUse)
	switch {
	case waiting == freeTurn:
		w.since = 0
		return entry, false
	case w.since == 0 || entry != turnOwner(w.stuck) || others != w.others:
		w.since, w.stuck, w.others = now, word, others
		return entry, false
	case used && now-w.since < int64(TurnPatience):
		return entry, false
	}
	w.since = 0
	for i, used := range inUse {
		if !used || i == entry {
			w.stopWaiting(i)
		}
	}
	for from, tries := word, 0; turnOwner(from) == entry && tries < TurnEntries; tries++ { // the process may change it meanwhile
		w.pass(from)
		from = w.owner.Load()
	}
	return entry, used && word == w.stuck
}

// turnsBut counts the turns that all entries but one have had.
func (w *turnWords) turnsBut(entry int, inUse *[TurnEntries]bool) (sum uint32) {
	for i, used := range inUse {
		if used && i != entry {
			sum += w.entries[i].turns.Load()
		}
	}
	return sum
}

// Close unmaps the file. Processes keep their mappings.
func (t *Turns) Close() error { return t.region.Close() }

// Turn is a process's entry in a level of a file of turns. One goroutine at a time calls its methods, except for Sleep.
type Turn struct {
	words turnWords
	entry int
}

// ProcessTurns are the turns of a process: one for each level, or one for all.
type ProcessTurns struct {
	region *Region
	Turns  []*Turn
}

// OpenTurns maps a file of turns in a process that has that entry. It takes ownership of the file.
func OpenTurns(f *os.File, entry int) (*ProcessTurns, error) {
	if entry < 0 || entry >= TurnEntries {
		return nil, errors.Join(fmt.Errorf("map turns: entry %d: want 0 to %d", entry, TurnEntries-1), f.Close())
	}
	size := turnsBytes
	if info, err := f.Stat(); err == nil && info.Size() >= TurnLevels*turnsBytes {
		size = TurnLevels * turnsBytes
	}
	region, err := Map(f, size, true)
	if err != nil {
		return nil, fmt.Errorf("map turns: %w", err)
	}
	p := &ProcessTurns{region: region}
	for _, w := range turnLevels(region.Bytes()) {
		p.Turns = append(p.Turns, &Turn{words: w, entry: entry})
	}
	return p, nil
}

// Close unmaps the file. A process that has a turn, or waits for one, calls Release first.
func (p *ProcessTurns) Close() error { return p.region.Close() }

// maxTurnSleep bounds one sleep of a process that waits for its turn.
const maxTurnSleep = time.Millisecond

// Take waits for the turn until a time of Now, and reports whether the process has it. After false the
// process still waits: it calls Take or Ask again, or Release.
func (t *Turn) Take(r Rank, until int64) bool {
	for {
		ok, bell := t.Ask(r)
		if ok || Now() >= until {
			return ok
		}
		t.Sleep(bell, until)
	}
}

// Ask takes the turn if the process may have it. If not, the process waits from now on, and bell is for
// Sleep. It calls Ask again, or Release.
func (t *Turn) Ask(r Rank) (ok bool, bell uint32) {
	if t.takeFree() {
		return true, 0
	}
	t.wait(r)
	bell = t.words.entries[t.entry].bell.Load()
	if turnOwner(t.words.owner.Load()) == t.entry {
		t.occupy(Now())
		return true, 0
	}
	return t.takeFree(), bell
}

// wait makes the process wait with a batch of that rank.
func (t *Turn) wait(r Rank) {
	e := &t.words.entries[t.entry]
	e.level.Store(r.Level)
	e.deadline.Store(r.Deadline)
	t.words.wait(t.entry)
}

// Sleep waits until the process that asked may have the turn, at most until a time of Now, and not for long. Any
// goroutine may call it at any time.
func (t *Turn) Sleep(bell uint32, until int64) {
	futex.Wait(&t.words.entries[t.entry].bell, bell, min(until, Now()+int64(maxTurnSleep)))
}

// takeFree takes the turn if it is free.
func (t *Turn) takeFree() bool {
	word := t.words.owner.Load()
	if turnOwner(word) != freeTurn || !t.words.owner.CompareAndSwap(word, nextTurn(word, t.entry)) {
		return false
	}
	t.occupy(Now())
	return true
}

// occupy notes that this process has a turn.
func (t *Turn) occupy(now int64) {
	t.words.entries[t.entry].turns.Add(1)
	if tenant := t.words.tenant; tenant.entry.Load() != uint32(t.entry+1) {
		tenant.since.Store(now)
		tenant.entry.Store(uint32(t.entry + 1))
	}
}

// aloneAfter is how long no other process must have had a turn.
const aloneAfter = time.Second

// Alone reports whether no other process waits or has had a turn lately.
func (t *Turn) Alone(now int64) bool {
	tenant := t.words.tenant
	if tenant.entry.Load() != uint32(t.entry+1) || now-tenant.since.Load() < int64(aloneAfter) {
		return false
	}
	return !t.Awaited()
}

// Awaited reports whether another process waits.
func (t *Turn) Awaited() bool {
	other, _ := t.words.best(t.entry)
	return other != freeTurn
}

// First reports whether no batch of another process that waits goes before one of that rank.
func (t *Turn) First(r Rank) bool {
	other, first := t.words.best(t.entry)
	return other == freeTurn || !first.Before(r)
}

// Pass ends a batch of a process that waits with another one, of that rank. If that one goes first, the process
// keeps the turn: it calls Ask, or Release.
func (t *Turn) Pass(r Rank) {
	t.wait(r)
	if word := t.words.owner.Load(); turnOwner(word) == t.entry {
		t.words.pass(word)
	}
}

// Release ends the process's turn, or its wait for one.
func (t *Turn) Release() { t.words.leave(t.entry) }
