// Package fault is the policy for a device that fails under all processes. Under MPS, an
// illegal access of one kernel ends the processes of all inference functions at once. All
// shadows are woken. This package decides which function, if any, is held back for a while,
// so that a function whose model always faults does not end the others forever. It is pure:
// no clock, no I/O.
//
// The function whose process reports the loss of the device first is blamed: it was waiting
// for its own kernel. That is a guess, so one fault is forgiven. A second fault within window
// holds the function back for the configured time: its requests are refused, and the other
// functions continue. After its return, one more fault within window is enough to hold it
// back again. Each further time is twice as long, up to longest times the first. The times
// start over when the function has had no fault for as long as the longest.
//
// If the device fails while a function is held back, that function is not to blame. It still
// stays held back until its time is over: otherwise two functions that fault could keep the
// node down by taking turns. After its return, one fault is forgiven again.
package fault

import (
	"maps"
	"slices"
	"time"
)

// window is how long a fault is remembered.
const window = time.Minute

// longest is the max time of holding back, as a multiple of the first time.
const longest = 16

// Guard remembers which functions were blamed. Times are durations since any fixed start. It
// is not safe for concurrent use.
type Guard struct {
	// Hold is how long a function is held back the first time; 0 disables holding back.
	Hold    time.Duration
	records map[string]*record
}

type record struct {
	suspect  bool          // it was blamed, at the time in blamed
	blamed   time.Duration // last blame, or last return from being held back
	held     time.Duration // end of the time held back; 0: not held back
	released time.Duration // last return
	next     time.Duration // length of the next time held back
	cleared  bool          // the device failed while it was held back
}

// Verdict is the consequence of a fault.
type Verdict struct {
	// Blamed is the function that is considered the cause.
	Blamed string
	// Held is how long it is held back; 0 if it is not.
	Held time.Duration
}

// Fault judges a fault. reporters are the functions that reported it first. If several did at
// once, it blames one that is already under suspicion, else the first of them.
func (g *Guard) Fault(now time.Duration, reporters []string) Verdict {
	for _, r := range g.records {
		r.cleared = r.cleared || r.held != 0
		r.suspect = r.suspect && now-r.blamed <= window
	}
	suspect := slices.IndexFunc(reporters, func(name string) bool {
		r := g.records[name]
		return r != nil && r.suspect
	})
	if len(reporters) == 0 {
		return Verdict{}
	}
	v := Verdict{Blamed: reporters[max(0, suspect)]}
	r := g.records[v.Blamed]
	if r == nil {
		if g.records == nil {
			g.records = map[string]*record{}
		}
		r = &record{next: g.Hold}
		g.records[v.Blamed] = r
	}
	switch {
	case g.Hold == 0:
	case r.held != 0: // a late report of a process that still exists
	case r.suspect:
		v.Held, r.held, r.cleared = r.next, now+r.next, false
		r.next = min(2*r.next, longest*g.Hold)
	case now-r.released > longest*g.Hold:
		r.next = g.Hold
	}
	r.suspect, r.blamed = true, now
	return v
}

// Held reports whether a function is held back, and until when.
func (g *Guard) Held(name string) (until time.Duration, held bool) {
	if r := g.records[name]; r != nil {
		return r.held, r.held != 0
	}
	return 0, false
}

// Release returns the functions whose time is over, sorted; they are no longer held back.
func (g *Guard) Release(now time.Duration) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(g.records)) {
		r := g.records[name]
		if r.held == 0 || now < r.held {
			continue
		}
		out = append(out, name)
		r.suspect = !r.cleared
		r.held, r.blamed, r.released = 0, now, now
	}
	return out
}

// Forget drops the record of a function that was removed, or runs another model.
func (g *Guard) Forget(name string) { delete(g.records, name) }
