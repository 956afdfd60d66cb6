// Package fault is the policy for a device that fails under everybody: a kernel's
// illegal access under MPS ends the processes of all inference functions at once.
// All shadows are woken; which function, if any, is held back for a while, so that
// one whose model always faults does not take the others down for ever, is decided
// here. It is pure: no clock, no I/O.
//
// The function whose process says first that the device is lost is blamed: its own
// kernel is what it was waiting for. That is a guess, so one fault is forgiven. A
// second within window holds the function back for as long as is configured: its
// requests are refused, the others go on. When it comes back, one more fault within
// window is enough, and each further time is twice as long, up to longest times the
// first; that is forgotten when it did well for as long as the longest. Where the
// device fails while a function is held back, that one did not do it: it still sits
// out its time (two functions may fault, and taking turns they would keep the node
// down), but when it comes back one fault is forgiven again.
package fault

import (
	"maps"
	"slices"
	"time"
)

// window is how long a fault is remembered.
const window = time.Minute

// longest is how many times the first time the longest hold lasts.
const longest = 16

// Guard remembers who was blamed. Times are durations since any fixed start. It is
// not safe for concurrent use.
type Guard struct {
	// Hold is for how long a function is held back the first time; 0: nobody ever is.
	Hold    time.Duration
	records map[string]*record
}

type record struct {
	suspect  bool          // it was blamed, at blamed
	blamed   time.Duration // when last, or when it came back from being held
	held     time.Duration // until when; 0: not held back
	released time.Duration // when it came back
	next     time.Duration // how long the next time is
	cleared  bool          // the device failed while it was held back
}

// Verdict is what a fault leads to.
type Verdict struct {
	// Blamed is the function whose doing it is taken for.
	Blamed string
	// Held is for how long it is held back; 0 where it is not.
	Held time.Duration
}

// Fault judges a fault that reporters, functions, said first; where several did at
// once, one that is under suspicion already, else the first of them, is blamed.
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
	case r.held != 0: // the last word of a process that is not gone yet
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

// Release names those whose time is up, sorted; they are no longer held back.
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

// Forget drops what is known of a function: it was removed, or runs another model.
func (g *Guard) Forget(name string) { delete(g.records, name) }
