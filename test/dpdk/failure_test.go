package dpdk

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"golang.org/x/sys/unix"
)

// TestLinkDown takes the camera's end of the cable down for a while.
func TestLinkDown(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			r := d.start(t, l, setup{})
			r.load(t, "20", time.Second).right(t)
			for range 2 {
				must.OK(t, run("ip", "link", "set", "cam0", "down"))
				time.Sleep(500 * time.Millisecond)
				must.OK(t, run("ip", "link", "set", "cam0", "up"))
				// The kernel removes IPv6 addresses when the link goes down; IPv4's stay.
				wait.For(t, "the node to answer again", func() bool { return ping(node4, 56, 200*time.Millisecond) == nil })
				r.load(t, "20", time.Second).right(t)
			}
			nodetest.Settled(t, r.Node, "fn")
		})
	}
}

// giveUp drops a request that has begun and is never completed. A quarter of the objective, 15 s, is the default.
const giveUp = "aggregate: {deadline: 2s}"

// TestPortReplaced deletes the interface under the node, and creates it
// again with other Ethernet addresses. The node continues to run, releases what it held,
// and uses the interface again as soon as it is back. The node itself creates a TAP again.
func TestPortReplaced(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			r := d.start(t, l, setup{bytes: large, up: giveUp})
			for round := range 2 {
				h := newHost(t, address4)
				h.resolve()
				h.ask(1, nodetest.Picture(large, 1))
				h.send(h.picture(2, nodetest.Picture(large, 2))[:50]...) // begun, and never completed
				if d.name == "tap" {
					l.node.must(t, "ip", "link", "del", "br0")
					l.node.must(t, "ip", "link", "del", "dtap0")
					// DPDK still sets the address of a tap that exists already. bridge sets another one.
					wait.For(t, "the node to use a new tap", func() bool { return strings.Count(r.Log(), "DPDK port is back") == round+1 })
					l.bridge(t, "dtap0")
				} else {
					l.node.must(t, "ip", "link", "del", "node0")
					wait.For(t, "the node to miss it", func() bool { return nodetest.Metric(t, r.Node, "penstock_port_link_up") == 0 })
					nodetest.Settled(t, r.Node, "fn")
					l.layCable(t)
				}
				wait.For(t, "the node to answer again", func() bool { return ping(node4, 56, 200*time.Millisecond) == nil })
				r.load(t, "20", time.Second).right(t)
				nodetest.Settled(t, r.Node, "fn")
				select {
				case <-r.Ended():
					t.Fatalf("round %d: the node ended:\n%s", round, r.Log())
				default:
				}
			}
			if err := r.Stop(); err != nil {
				t.Errorf("the node does not drain: %v", err)
			}
		})
	}
}

// TestDrainWithoutPort stops a node whose interface has disappeared.
func TestDrainWithoutPort(t *testing.T) {
	l := newLaboratory(t)
	r := devices[0].start(t, l, setup{bytes: large, up: giveUp})
	h := newHost(t, address4)
	h.resolve()
	h.ask(1, nodetest.Picture(large, 1))
	h.send(h.picture(2, nodetest.Picture(large, 2))[:50]...)
	l.node.must(t, "ip", "link", "del", "node0")
	wait.For(t, "the node to miss it", func() bool { return nodetest.Metric(t, r.Node, "penstock_port_link_up") == 0 })
	if err := r.Stop(); err != nil {
		t.Errorf("the node does not drain: %v", err)
	}
}

// TestManagerKilled kills the manager in the middle of traffic.
func TestManagerKilled(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			r := d.start(t, l, setup{})
			r.load(t, "20", time.Second).right(t)
			h := newHost(t, address4)
			h.resolve()
			h.send(h.picture(9, nodetest.Picture(small, 9))[:1]...)
			must.OK(t, syscall.Kill(nodetest.Child(t, r.Node, "manager"), syscall.SIGKILL))
			r.Kill()
			if d.name == "tap" {
				wait.For(t, "the tap to go with its owner", func() bool { return l.node.run("ip", "link", "show", "dtap0") != nil })
				l.node.must(t, "ip", "link", "del", "br0")
			}
			again := d.start(t, l, setup{})
			again.load(t, "20", time.Second).right(t)
			nodetest.Settled(t, again.Node, "fn")
		})
	}
}

// TestHugePageFiles runs a node on huge pages, kills it, and starts it
// again. The pages and their files must be free.
func TestHugePageFiles(t *testing.T) {
	l := newLaboratory(t)
	const wanted = 160 // pages of 2 MiB: for a node's 256 MiB, and for DPDK itself
	dir, before := hugePages(t, wanted)
	for i := range 3 {
		r := l.start(t, setup{device: devices[0].port, more: []string{"memory: 256MiB"}})
		r.load(t, "20", time.Second).right(t)
		if free := freePages(t); free > before-64 {
			t.Errorf("%d of %d huge pages are free while the node runs", free, before)
		}
		if i == 2 {
			must.OK(t, r.Stop())
		} else {
			must.OK(t, syscall.Kill(nodetest.Child(t, r.Node, "manager"), syscall.SIGKILL))
			r.Kill()
		}
		wait.For(t, "the processes to end", func() bool { return len(nodetest.Processes(r.Dir)) == 0 })
		wait.For(t, "the huge pages to be free again", func() bool { return freePages(t) >= before })
		entries, err := os.ReadDir(dir)
		must.OK(t, err)
		if len(entries) > 0 {
			t.Errorf("files are left in %s: %v", dir, entries)
		}
	}
}

const nrHugePages = "/proc/sys/vm/nr_hugepages"

// hugePages reserves that many more pages for this test, and mounts them where EAL looks.
// It returns how many are free then.
func hugePages(t *testing.T, wanted int) (dir string, free int) {
	t.Helper()
	had, err := os.ReadFile(nrHugePages)
	if err != nil {
		t.Skipf("not on this machine: this kernel has no huge pages: %v", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(had)))
	must.OK(t, err)
	must.OK(t, os.WriteFile(nrHugePages, []byte(strconv.Itoa(n+wanted)), 0))
	t.Cleanup(func() { os.WriteFile(nrHugePages, had, 0) })
	if free = freePages(t); free < wanted {
		t.Skipf("not on this machine: it has memory for %d huge pages, want %d", free, wanted)
	}
	// Only this test's processes see the mount.
	dir = filepath.Join(t.TempDir(), "huge")
	must.OK(t, os.Mkdir(dir, 0o700))
	must.OK(t, unix.Mount("nodev", dir, "hugetlbfs", 0, "pagesize=2M"))
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	return dir, free
}

func freePages(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	must.OK(t, err)
	fmt.Sscan(string(text), &n)
	return n
}

// TestPortErrors starts nodes that cannot run.
func TestPortErrors(t *testing.T) {
	for name, c := range map[string]struct {
		setup setup
		want  string
	}{
		"no such interface": {setup{device: "net_af_packet0,iface=nothere", more: []string{ordinaryPages}}, "nothere"},
		"no such card":      {setup{device: "0000:99:00.0", more: []string{ordinaryPages}}, "penstock doctor"},
		"no huge pages":     {setup{device: devices[0].port, more: []string{"memory: 64GiB"}}, "huge pages"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLaboratory(t)
			_, err := l.try(t, c.setup)
			if err == nil {
				t.Fatal("the node came up")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the node said nothing of %q:\n%v", c.want, err)
			}
			if strings.Contains(err.Error(), "panic") || strings.Contains(err.Error(), "goroutine ") {
				t.Errorf("the node panicked:\n%v", err)
			}
		})
	}
}

// TestWithoutDPDK builds one, and gives it a configuration that
// needs DPDK.
func TestWithoutDPDK(t *testing.T) {
	l := newLaboratory(t)
	plain := filepath.Join(t.TempDir(), "penstock")
	must.OK(t, run("go", "build", "-o", plain, "../../cmd/penstock"))
	text, _ := setup{device: devices[0].port, more: []string{ordinaryPages}}.config(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	for _, args := range [][]string{{"up", "--config", file, "--runtime-dir", t.TempDir()}, {"doctor", "--config", file}} {
		var out []byte
		var err error
		l.node.Do(func() { out, err = exec.Command(plain, args...).CombinedOutput() })
		if err == nil || !strings.Contains(string(out), "make build-dpdk") || !strings.Contains(string(out), "apt-get install libdpdk-dev") {
			t.Errorf("penstock %s: %v\n%s", args[0], err, out)
		}
	}
}
