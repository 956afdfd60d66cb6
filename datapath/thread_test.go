package datapath

import (
	"maps"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm/cpuset"
)

// Each thread of the data path has a place to run, also those of a function that is added later.
func TestLockThread(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	newHarness(t, 2) // a receive thread and two reply threads
	added := newHarness(t, 3)
	const threads = 3 + 4
	added.eventually("there is a place for each thread, and some to spare", func() bool { return runtime.GOMAXPROCS(0) >= threads+spareProcs })
}

func TestRaiseProcess(t *testing.T) {
	niceness := func() map[int]int {
		threads, err := cpuset.Threads()
		must.OK(t, err)
		all := map[int]int{}
		for _, id := range threads {
			if nice, err := niceOf(id); err == nil {
				all[id] = nice
			}
		}
		return all
	}

	// Ignore the first thread of the process: it keeps the data path's priority if an earlier
	// test's goroutine happened to lock it.
	own := slices.Max(slices.Collect(maps.Values(niceness())))
	if own <= processNice {
		t.Fatalf("every thread has a nice value of %d or less: run this test with one above %d", own, processNice)
	}

	// A thread of the data path keeps its priority.
	id, end, ended := make(chan int), make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		defer lockThread()()
		id <- unix.Gettid()
		<-end
	}()
	first := <-id
	defer func() {
		close(end)
		<-ended
		for range 2 { // restore it for other tests
			for id := range niceness() {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, own)
			}
		}
	}()
	had := niceness()
	RaiseProcess()
	want := processNice
	if had[first] != threadNice {
		want = own // without the right, everything stays as it was
	}
	for id, nice := range niceness() {
		switch {
		case id == first && nice != had[first]:
			t.Errorf("the data path's thread has nice %d, want %d still", nice, had[first])
		case id != first && nice != want && had[id] > want:
			t.Errorf("thread %d of the process has nice %d, want %d", id, nice, want)
		}
	}
	made := make(chan int)
	go func() { // locked, and never unlocked: it has its own thread
		runtime.LockOSThread()
		nice, _ := niceOf(unix.Gettid())
		made <- nice
	}()
	if nice := <-made; nice != want {
		t.Errorf("a thread that came later has nice %d, want %d", nice, want)
	}
}
