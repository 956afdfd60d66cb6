package dpdk

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// TestSeveralQueuesOnSeveralCores polls one queue on each of two CPUs, or both on the only
// CPU. There are two functions, and frames of several clients' pictures arrive
// interleaved. The frames of one picture may arrive on different queues; the function
// assembles them.
func TestSeveralQueuesOnSeveralCores(t *testing.T) {
	l := newLaboratory(t)
	cpus := []int{0, min(1, runtime.NumCPU()-1)}
	r := devices[0].start(t, l, setup{
		bytes:     large,
		more:      []string{"queues: 2", fmt.Sprintf("lcores: [%d, %d]", cpus[0], cpus[1])},
		functions: []string{"{name: other, model: CARD, port: 9001, share_percent: 40}"},
	})
	if got := pollers(t, nodetest.Child(t, r.Node, "manager")); len(got) != 2 || got[0] != fmt.Sprint(cpus[0]) || got[1] != fmt.Sprint(cpus[1]) {
		t.Errorf("frames are polled by threads on the CPUs %v, want one on each of %v", got, cpus)
	}
	var hosts []*host
	for i := range 4 {
		hosts = append(hosts, newHost(t, netip.AddrPortFrom(address4.Addr(), port+uint16(i%2))))
		hosts[i].resolve()
	}
	for id := range uint32(5) {
		var fragments [][][]byte
		for i, h := range hosts {
			fragments = append(fragments, h.picture(id, nodetest.Picture(large, int(id)*10+i)))
		}
		for fragment := range fragments[0] {
			for i, h := range hosts {
				h.send(fragments[i][fragment])
			}
		}
		for i, h := range hosts {
			h.expect(id, nodetest.Picture(large, int(id)*10+i))
		}
	}
	r.load(t, "20", time.Second).right(t)
	nodetest.Settled(t, r.Node, "fn")
}

// TestSeveralQueues has one function behind two queues. It has a thread and
// an aggregator for each, and its clients are divided among them. Fragments of many
// clients' pictures arrive interleaved, some of them out of order. Each picture must be
// answered once and correctly.
func TestSeveralQueues(t *testing.T) {
	l := newLaboratory(t)
	r := devices[0].start(t, l, setup{bytes: large, more: []string{"queues: 2"}})
	const clients, each = 8, 3
	var hosts []*host
	for range clients {
		h := newHost(t, address4)
		h.resolve()
		hosts = append(hosts, h)
	}
	for id := range uint32(each) {
		var fragments [][][]byte
		for i, h := range hosts {
			p := h.picture(id, nodetest.Picture(large, int(id)*clients+i))
			if i%2 == 1 {
				slices.Reverse(p)
			}
			fragments = append(fragments, p)
		}
		for fragment := range fragments[0] {
			for i, h := range hosts {
				h.send(fragments[i][fragment])
			}
		}
		for i, h := range hosts {
			h.expect(id, nodetest.Picture(large, int(id)*clients+i))
		}
	}
	if f := nodetest.Settled(t, r.Node, "fn"); f.Accepted != clients*each {
		t.Errorf("%d pictures were accepted, %d were sent", f.Accepted, clients*each)
	}
	r.load(t, "40", time.Second).right(t)
	nodetest.Settled(t, r.Node, "fn")
}

// pollers returns the CPUs on which the polling threads of a process may run, in order of
// their lcores.
func pollers(t *testing.T, pid int) (cpus []string) {
	t.Helper()
	for lcore := 1; ; lcore++ {
		found := false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		must.OK(t, err)
		for _, task := range tasks {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()))
			if err != nil || !strings.Contains(string(text), fmt.Sprintf("Name:\trte-worker-%d\n", lcore)) {
				continue
			}
			_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:\t")
			list, _, _ := strings.Cut(rest, "\n")
			cpus, found = append(cpus, list), true
		}
		if !found {
			return cpus
		}
	}
}
