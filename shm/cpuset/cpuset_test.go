package cpuset

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func allowed(t *testing.T) []int {
	t.Helper()
	cpus, err := Allowed()
	must.OK(t, err)
	if len(cpus) == 0 || !slices.IsSorted(cpus) {
		t.Fatalf("this thread may run on %v", cpus)
	}
	return cpus
}

// where returns what each of this process's threads may run on.
func where(t *testing.T) map[int]string {
	t.Helper()
	threads, err := Threads()
	must.OK(t, err)
	found := map[int]string{}
	for _, id := range threads {
		if cpus, err := OfThread(id); err == nil {
			found[id] = Format(cpus)
		} else if !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	return found
}

func TestPin(t *testing.T) {
	all := allowed(t)
	if len(all) < 2 {
		t.Skipf("not on this machine: one CPU, %v, is allowed: whoever is pinned to it was there", all)
	}
	// Threads that exist before Pin: their goroutines hold them until the end.
	const others = 4
	ended := make(chan struct{})
	ids := make(chan int)
	for range others {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ids <- unix.Gettid()
			<-ended
		}()
	}
	var made []int
	for range others {
		made = append(made, <-ids)
	}
	t.Cleanup(func() {
		close(ended)
		if err := Pin(all); err != nil {
			t.Error(err)
		}
	})
	for _, cpus := range [][]int{all[len(all)-1:], all, all[:1]} {
		must.OK(t, Pin(cpus))
		found := where(t)
		for id, list := range found {
			if list != Format(cpus) {
				t.Errorf("thread %d may run on %s, want %v", id, list, cpus)
			}
		}
		for _, id := range made {
			if found[id] == "" {
				t.Errorf("thread %d is not among %v", id, found)
			}
		}
		must.OK(t, Pin(nil))
		if now := allowed(t); !slices.Equal(now, cpus) {
			t.Errorf("pinned to none it may run on %v, want %v still", now, cpus)
		}
	}
}

func TestPinThread(t *testing.T) {
	all := allowed(t)
	if len(all) < 2 {
		t.Skipf("not on this machine: one CPU, %v, is allowed", all)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	t.Cleanup(func() {
		if err := Pin(all); err != nil {
			t.Error(err)
		}
	})
	must.OK(t, PinThread(0, all[:1]))
	own, others := unix.Gettid(), 0
	for id, list := range where(t) {
		if want := Format(all); id != own && list == want {
			others++
		}
	}
	if now := allowed(t); !slices.Equal(now, all[:1]) || others == 0 {
		t.Errorf("this thread may run on %v, want %v; %d others on all", now, all[:1], others)
	}
}

func TestMissingCPUs(t *testing.T) {
	for _, cpu := range []int{-1, limit, limit - 1} {
		if cpu == limit-1 && slices.Contains(allowed(t), cpu) {
			continue
		}
		for what, err := range map[string]error{"Pin": Pin([]int{cpu}), "PinThread": PinThread(0, []int{cpu})} {
			if !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s to CPU %d: %v, want EINVAL", what, cpu, err)
			}
		}
	}
	const nobody = 1<<31 - 1 // more than any kernel.pid_max
	if err := PinThread(nobody, allowed(t)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("pin a thread that there is not: %v, want ESRCH", err)
	}
}

func TestParse(t *testing.T) {
	for list, want := range map[string][]int{
		"": nil, "0": {0}, "3-3": {3}, "0-3,8": {0, 1, 2, 3, 8}, "8,0-1": {0, 1, 8}, "2-4,3": {2, 3, 4}, "8191": {8191},
	} {
		if got, err := Parse(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", list, got, err, want)
		}
	}
	const noCPU, order = "want a CPU or a range of CPUs, like 0-15", "want CPUs from 0 to 8191, the lower first"
	for list, want := range map[string]string{
		"x": noCPU, ",": noCPU, "1,": noCPU, "-1": noCPU, "1-": noCPU, "1-2-3": noCPU, "0x1": noCPU, " 1": noCPU, "+1": noCPU,
		"99999999999999999999": noCPU, "3-1": order, "8192": order, "0-2147483647": order,
	} {
		if got, err := Parse(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want that it %s", list, got, err, want)
		}
	}
}

func TestFormat(t *testing.T) {
	for want, cpus := range map[string][]int{"": nil, "7": {7}, "0-1": {0, 1}, "0,2-4,9": {0, 2, 3, 4, 9}} {
		if got := Format(cpus); got != want {
			t.Errorf("%v is written %q, want %q", cpus, got, want)
		}
	}
}

func TestFormatParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOfDistinct(rapid.IntRange(0, 40), rapid.ID[int]).Draw(t, "cpus")
		slices.Sort(cpus)
		if got, err := Parse(Format(cpus)); err != nil || !slices.Equal(got, cpus) {
			t.Fatalf("%v is written %q and read %v, %v", cpus, Format(cpus), got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("0-3,8")
	f.Add("8191,1-")
	f.Fuzz(func(t *testing.T, list string) {
		cpus, err := Parse(list)
		if err != nil {
			return
		}
		if again, err := Parse(Format(cpus)); err != nil || !slices.Equal(again, cpus) {
			t.Errorf("%q is %v, then %v, %v", list, cpus, again, err)
		}
	})
}
