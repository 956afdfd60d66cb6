package guest

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTerms(t *testing.T) {
	const gib = 1 << 30
	all := terms{free: 20 * gib, context: 512 * mib, guests: 2 * gib, workers: 3 * gib, restart: 1536 * mib}
	for _, c := range []struct {
		name    string
		terms   terms
		request int64
		want    int64
		refused string
	}{
		{"no functions", terms{free: gib}, 0, gib, ""},
		{"all terms", all, 0, 13 * gib, ""},
		{"request", all, gib, gib, ""},
		{"largest request", all, 13 * gib, 13 * gib, ""},
		{
			"request too large", all, 14 * gib, 0,
			"--memory is 14336 MiB, and functions leave less: free 20480 - own context 512 - other guests 2048 - workers 3072 - restart of a function 1536 = 13312 MiB; use",
		},
		{"one byte too large", all, 13*gib + 1, 0, "--memory"},
		{"rounding", terms{free: gib + mib - 1, workers: 1}, 0, gib - mib, ""},
		{"nothing left", terms{free: gib, restart: gib}, 0, 0, "no GPU memory is left for it: free 1024 - own context 0 - other guests 0 - workers 0 - restart of a function 1024 = 0 MiB; stop"},
		{"less than nothing", terms{free: gib, restart: 2 * gib}, mib, 0, "no GPU memory"},
		{"full GPU", terms{}, 0, 0, "no GPU memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.terms.limit(c.request)
			if got != c.want || (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("limit %d, %v; want %d, %q", got, err, c.want, c.refused)
			}
		})
	}
}

// TestMemory runs guests on a GPU of which functions leave 6 GiB.
func TestMemory(t *testing.T) {
	const gib = 1 << 30
	d := mps
	d.ContextBytes, d.RestartBytes, d.WorkerBytes = 512*mib, gib, map[int]int64{1: 2 * gib}
	var mu sync.Mutex
	usage := Usage{FreeBytes: 8*gib + 512*mib, Processes: map[int]int64{1: gib + 512*mib}}
	known := true
	d.Memory = func() (Usage, bool) {
		mu.Lock()
		defer mu.Unlock()
		return usage, known
	}
	const show = "echo limit=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.; read line"
	memory := func(bytes int64) func(*Command) {
		return func(c *Command) { c.MemoryBytes, c.Stdin = bytes, pipe(t) }
	}

	s := listen(t, Options{}, d)
	first := runScript(t, s, show, memory(0), func(c *Command) { c.Name = "first" })
	first.line(t, "limit=0=6656M.")
	if list := s.list(); list[0].LimitBytes != 6*gib {
		t.Errorf("listed as %+v", list)
	}
	if held := s.Held(""); held != "" {
		t.Errorf("a guest without memory: %s", held)
	}

	// Memory that a guest has asked for counts, until the guest has taken it.
	second := runScript(t, s, show, memory(4*gib))
	second.line(t, "limit=0=4608M.")
	refused := runScript(t, s, show, memory(3*gib))
	if refused.end(t); refused.err == nil || !strings.Contains(refused.err.Error(), "other guests 4608 - workers 1024 - restart of a function 1024 = 1536 MiB") {
		t.Errorf("got %v, want a refusal with the terms", refused.err)
	}
	pids := map[string]int{}
	for _, g := range s.list() {
		pids[g.Name] = g.PID
	}
	mu.Lock()
	usage = Usage{FreeBytes: 3 * gib, Processes: map[int]int64{1: gib + 512*mib, pids["first"]: gib, pids["sh"]: 4*gib + 512*mib}}
	mu.Unlock()
	third := runScript(t, s, show, memory(0))
	third.line(t, "limit=0=1024M.")
	if want := "sh 4608 MiB, first 1024 MiB; `penstock guest stop`"; !strings.Contains(s.Held(""), want) {
		t.Errorf("held: %q, want %q", s.Held(""), want)
	}

	mu.Lock()
	known = false
	mu.Unlock()
	unlimited := runScript(t, s, show, memory(0))
	unlimited.line(t, "memory is unknown")
	unlimited.line(t, "limit=.")
}

// tightGroups have no limits, and no process leaves them.
type tightGroups struct{}

func (tightGroups) Make(name string, _ int64, _ int) (Group, []error, error) {
	return Marked{name[strings.LastIndexByte(name, '-')+1:]}, nil, nil
}

// TestMemoryEnforced lets guests have more than their limit, as programs can that remove it from their environment.
func TestMemoryEnforced(t *testing.T) {
	const gib = 1 << 30
	d := mps
	d.ContextBytes = 512 * mib
	var mu sync.Mutex
	processes := map[int]int64{}
	d.Memory = func() (Usage, bool) {
		mu.Lock()
		defer mu.Unlock()
		return Usage{FreeBytes: 8 * gib, Processes: maps.Clone(processes)}, true
	}
	s := listen(t, Options{Groups: tightGroups{}}, d)
	start := func(name string) *running {
		r := runScript(t, s, "echo runs; read line", func(c *Command) { c.Name, c.MemoryBytes, c.Stdin = name, gib, pipe(t) })
		r.line(t, "runs")
		return r
	}
	above, within, uncounted := start("above"), start("within"), start("uncounted")
	pids := map[string]int{}
	for _, g := range s.list() {
		pids[g.Name] = g.PID
	}
	mu.Lock()
	processes = map[int]int64{pids["within"]: 2 * gib, pids["above"]: 2*gib + 1, pids["uncounted"]: -1}
	mu.Unlock()

	above.end(t)
	const why = "it has 2048 MiB of GPU memory, and its limit is 1024 MiB, plus 1024 MiB per process"
	if above.result.Signal != unix.SIGKILL || !strings.Contains(above.output, why) {
		t.Errorf("got %+v, %q; want it killed: %s", above.result, above.output, why)
	}
	for _, g := range s.list() {
		if want := map[string][]string{"uncounted": {"memory"}}[g.Name]; !slices.Equal(g.NotEnforced, want) {
			t.Errorf("%s: not enforced: %q, want %q", g.Name, g.NotEnforced, want)
		}
	}
	for _, r := range []*running{within, uncounted} {
		select {
		case <-r.done:
			t.Errorf("a guest ended: %v, %s", r.result, r.output)
		default:
		}
	}
}
