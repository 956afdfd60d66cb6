// Package mpstest is a suite for package mps on a machine with a GPU and NVIDIA's
// MPS. It checks what the package assumes about the daemon, its server and its
// clients.
//
//	func TestMain(m *testing.M) { mpstest.Child(); … }
//	func TestMPS(t *testing.T)  { mpstest.Run(t) }
package mpstest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/procstat"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/orchestrator/mps"
)

// role is the environment variable that selects the role of a process of the
// suite.
const role = "PENSTOCK_MPSTEST"

// Child runs this process in the role that Run started it for, a client or an
// owner that crashes, and then does not return. In any other process it does
// nothing. A test binary must call it first.
func Child() {
	switch os.Getenv(role) {
	case "client":
		client()
	case "owner":
		owner()
	}
}

// Run runs the suite.
func Run(t *testing.T) {
	s, err := nvml.Open()
	must.OK(t, err)
	devices, err := s.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatalf("devices %v, %v", devices, err)
	}
	b := &harness{session: s, uuid: devices[0].UUID}
	for _, x := range []struct {
		name string
		run  func(*testing.T, *harness)
	}{
		{"AClientIsQuickAndHasItsShare", shares},
		{"ADaemonIsFoundAgainAfterAKilledOwner", adopted},
		{"AFaultIsOverWhenTheLastClientHasEnded", fault},
		{"AServerThatIsKilledIsStartedAgain", server},
		{"ADaemonThatIsKilledIsStartedAgain", daemon},
		{"KilledClientsLeaveNoMemory", memory},
		{"ItQuitsThoughAClientStays", quits},
		{"TryLeavesNothing", tried},
	} {
		t.Run(x.name, func(t *testing.T) { x.run(t, b) })
	}
}

// harness is the harness: the machine.
type harness struct {
	session nvml.Session
	uuid    string
}

// node is a runtime folder with a daemon.
type node struct {
	*mps.Daemon
	t      *testing.T
	b      *harness
	dir    string
	closed bool
}

func (b *harness) options(dir string) mps.Options {
	return mps.Options{Dir: dir, UUID: b.uuid, Session: b.session, Log: zerolog.Nop()}
}

// start starts a daemon, and checks after the test that nothing of it remains.
func (b *harness) start(t *testing.T, dir string) *node {
	t.Helper()
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "mps"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	began := time.Now()
	d, err := mps.Start(context.Background(), b.options(dir))
	must.OK(t, err)
	t.Logf("started in %v: %+v", time.Since(began).Round(time.Millisecond), d.State())
	n := &node{Daemon: d, t: t, b: b, dir: dir}
	t.Cleanup(func() {
		if !n.closed {
			d.Close()
		}
		if t.Failed() {
			for _, name := range []string{"control.log", "server.log"} {
				text, _ := os.ReadFile(filepath.Join(d.Environment()["CUDA_MPS_LOG_DIRECTORY"], name))
				t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
			}
		}
	})
	return n
}

func (n *node) close() {
	n.t.Helper()
	s := n.State()
	n.closed = true
	began := time.Now()
	if err := n.Close(); err != nil {
		n.t.Error(err)
	}
	n.t.Logf("closed in %v", time.Since(began).Round(time.Millisecond))
	for _, pid := range []int{s.Daemon, s.Server} {
		if pid != 0 && runs(pid) {
			n.t.Errorf("process %d lives on", pid)
		}
	}
}

// runs reports whether a process is alive; a zombie is not.
func runs(pid int) bool {
	stat, _ := procstat.Read(pid)
	return !stat.Ended()
}

func (n *node) until(what string, is func(mps.State) bool) mps.State {
	n.t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		if s := n.State(); is(s) {
			return s
		}
		select {
		case <-n.Changes():
		case <-deadline:
			n.t.Fatalf("never: %s; it is %+v", what, n.State())
		}
	}
}

// opened is a client's report about its context.
type opened struct {
	PID     int
	SMs     int
	MPS     bool
	Init    time.Duration // cuInit
	Context time.Duration // from the process's start until it has its context
	Err     string
}

// process is a client.
type process struct {
	opened
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Scanner
}

// spawn starts a client and does not wait for its context.
func (n *node) spawn(settings ...string) *process {
	n.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=client")
	for name, value := range n.Environment() {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, settings...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must.OK(n.t, err)
	out, err := cmd.StdoutPipe()
	must.OK(n.t, err)
	must.OK(n.t, cmd.Start())
	p := &process{cmd: cmd, stdin: in, out: bufio.NewScanner(out)}
	n.t.Cleanup(func() { p.kill() })
	return p
}

// wait waits for the client's context.
func (n *node) wait(p *process) *process {
	n.t.Helper()
	if !p.out.Scan() {
		n.t.Fatal("a client said nothing")
	}
	if err := json.Unmarshal(p.out.Bytes(), &p.opened); err != nil {
		n.t.Fatalf("a client said %q", p.out.Text())
	}
	return p
}

// open starts a client that has its context.
func (n *node) open(settings ...string) *process {
	n.t.Helper()
	p := n.wait(n.spawn(settings...))
	if p.Err != "" {
		n.t.Fatalf("client: %s", p.Err)
	}
	return p
}

// do makes a client do something and returns CUDA's code, 0 for success.
func (p *process) do(what string) int {
	fmt.Fprintln(p.stdin, what)
	if !p.out.Scan() {
		return -1
	}
	code, _ := strconv.Atoi(p.out.Text())
	return code
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// client is a client's main function. It opens a context, reports the outcome, and
// executes the commands on standard input.
func client() {
	runtime.LockOSThread()
	began := time.Now()
	o := opened{PID: os.Getpid()}
	say := func(err error) bool {
		if err != nil {
			o.Err = err.Error()
		}
		json.NewEncoder(os.Stdout).Encode(o)
		return err == nil
	}
	d, err := cuda.Find("cuda")
	o.Init = time.Since(began)
	if err != nil {
		say(err)
		os.Exit(1)
	}
	c, err := d.OpenContext()
	if err == nil {
		err = c.Bind()
	}
	o.Context = time.Since(began)
	if err == nil {
		if p, e := d.Properties(); e == nil {
			o.MPS = p.MPS
		}
		o.SMs, err = c.SMs()
	}
	if !say(err) {
		os.Exit(1)
	}
	const bytes = 64 << 20
	var memory cuda.Pointer
	var s cuda.Stream
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var err error
		switch lines.Text() {
		case "work":
			if memory == 0 {
				if memory, err = c.Allocate(bytes); err == nil {
					s, err = c.NewStream()
				}
			}
			if err == nil {
				err = s.Set(memory, 1, bytes)
			}
			if err == nil {
				err = s.Synchronize()
			}
		case "allocate":
			_, err = c.Allocate(1 << 30)
		case "fault":
			err = doFault(c)
		}
		fmt.Println(codeOf(err))
	}
	os.Exit(0)
}

// badPTX writes to an unmapped address.
const badPTX = `.version 7.0
.target sm_70
.address_size 64
.visible .entry bad(.param .u64 p) {
	.reg .u64 a;
	.reg .u32 v;
	ld.param.u64 a, [p];
	mov.u32 v, 1;
	st.global.u32 [a], v;
	ret;
}
`

func doFault(c *cuda.Context) error {
	m, err := c.Load([]byte(badPTX))
	if err != nil {
		return err
	}
	f, err := m.Function("bad")
	if err != nil {
		return err
	}
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	args := cuda.NewArgs(8)
	args.SetUint64(0, 16)
	if err := f.Launch([3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, s, args); err != nil {
		return err
	}
	return s.Synchronize()
}

func codeOf(err error) int {
	if err == nil {
		return 0
	}
	var e *cuda.Error
	if errors.As(err, &e) {
		return int(e.Code)
	}
	return -2
}

// owner is an owner's main function. It starts a daemon in the folder of its
// argument and waits until it is killed.
func owner() {
	var b harness
	b.uuid = os.Getenv(role + "_UUID")
	d, err := mps.Start(context.Background(), b.options(os.Getenv(role+"_DIR")))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(d.State())
	select {}
}

func shares(t *testing.T, b *harness) {
	n := b.start(t, "")
	server := n.State().Server
	if server == 0 {
		t.Error("no server runs before the first client, whose context would wait for one")
	}
	whole := n.open()
	t.Logf("first client: %+v", whole.opened)
	if again := n.State().Server; again != server {
		t.Errorf("the first client made server %d replace server %d", again, server)
	}
	if !whole.MPS {
		t.Error("it is no client of MPS")
	}
	for _, percent := range []int{10, 30, 60, 100} {
		p := n.open(fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percent))
		exact := float64(whole.SMs*percent) / 100
		if float64(p.SMs) < exact-2 || float64(p.SMs) > exact+2 {
			t.Errorf("%d %% of %d multiprocessors are %d", percent, whole.SMs, p.SMs)
		}
		t.Logf("%d %%: %d multiprocessors, context after %v", percent, p.SMs, p.Context.Round(time.Millisecond))
		p.kill()
	}
	// The daemon lists its clients.
	if code := whole.do("work"); code != 0 {
		t.Errorf("work: %d", code)
	}
	clients, err := n.Clients(context.Background())
	if err != nil || !slices.Equal(clients, []mps.Client{{PID: whole.PID, Server: n.State().Server}}) {
		t.Errorf("clients %+v, %v; want %d", clients, err, whole.PID)
	}
	list, err := b.session.Processes(b.uuid)
	i := slices.IndexFunc(list, func(p nvml.Process) bool { return p.PID == whole.PID })
	if err != nil || i < 0 || !list[i].MPS || list[i].UsedBytes < 64<<20 {
		t.Errorf("NVML lists %+v, %v", list, err)
	}
	pid, others, ok := mps.Running(context.Background(), n.dir, b.uuid)
	if !ok || pid != n.State().Daemon || len(others) != 1 {
		t.Errorf("seen from elsewhere: daemon %d, clients %v, %v", pid, others, ok)
	}
	whole.kill()
	n.close()
}

func adopted(t *testing.T, b *harness) {
	dir, err := os.MkdirTemp("", "mps")
	must.OK(t, err)
	defer os.RemoveAll(dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=owner", role+"_DIR="+dir, role+"_UUID="+b.uuid)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.OK(t, err)
	var left mps.State
	must.OK(t, json.NewDecoder(out).Decode(&left))
	cmd.Process.Kill()
	cmd.Wait()
	if !runs(left.Daemon) || !runs(left.Server) {
		t.Error("it died with its owner")
	}
	n := b.start(t, dir)
	if s := n.State(); s.Daemon != left.Daemon || s.Server != left.Server {
		t.Errorf("found %+v, was %+v", s, left)
	}
	n.open().kill()
	n.close()
}

func fault(t *testing.T, b *harness) {
	n := b.start(t, "")
	idle, faulty := n.open(), n.open()
	before := n.State()
	began := time.Now()
	if code := faulty.do("fault"); code != 700 {
		t.Errorf("an illegal address: %d, want 700", code)
	}
	t.Logf("the fault was seen after %v", time.Since(began).Round(time.Millisecond))
	asked := time.Now()
	h, err := n.Health(context.Background())
	t.Logf("health %v, %v, asked for %v", h, err, time.Since(asked).Round(time.Microsecond))
	if h != mps.Fault || err != nil {
		t.Error("the server does not tell of the fault")
	}
	faulty.kill()
	// While the idle one lives, no new client gets a context; package cuda retries
	// for two seconds.
	next := n.spawn()
	time.Sleep(500 * time.Millisecond)
	killed := time.Now()
	idle.kill()
	reaped := time.Since(killed)
	if n.wait(next); next.Err != "" {
		t.Errorf("a client that waited: %s", next.Err)
	}
	t.Logf("idle client reaped %v after its kill, a waiting one had a context %v after it", reaped.Round(time.Millisecond), time.Since(killed).Round(time.Millisecond))
	if h, err := n.Health(context.Background()); h != mps.Well || err != nil {
		t.Errorf("health afterwards %v, %v", h, err)
	}
	if s := n.State(); s.Server != before.Server || s.Losses != 0 {
		t.Errorf("it is %+v, was %+v", s, before)
	}
	if code := next.do("work"); code != 0 {
		t.Errorf("work: %d", code)
	}
	next.kill()

	// All at the same time, as after a fault on a node.
	old := []*process{n.open(), n.open(), n.open(), n.open()}
	began = time.Now()
	old[0].do("fault")
	seen := time.Since(began)
	var fresh []*process
	for range old {
		fresh = append(fresh, n.spawn())
	}
	for _, p := range old {
		p.kill()
	}
	dead := time.Since(began)
	for _, p := range fresh {
		if n.wait(p); p.Err != "" {
			t.Errorf("a new client: %s", p.Err)
		}
	}
	t.Logf("four clients: fault seen after %v, all dead after %v, four new contexts after %v", seen.Round(time.Millisecond), dead.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	for _, p := range fresh {
		p.kill()
	}
	n.close()
}

func server(t *testing.T, b *harness) {
	n := b.start(t, "")
	old := n.open()
	old.do("work")
	before := n.State()
	began := time.Now()
	syscall.Kill(before.Server, syscall.SIGKILL)
	lost := n.until("the loss is seen", func(s mps.State) bool { return s.Losses == 1 })
	seen := time.Since(began)
	if lost.Serving {
		t.Error("it serves, with no server")
	}
	fresh := n.spawn()
	s := n.until("there is another server", func(s mps.State) bool { return s.Server != 0 && s.Server != before.Server })
	up := time.Since(began)
	if n.wait(fresh); fresh.Err != "" || !fresh.MPS {
		t.Errorf("a new client: %+v", fresh.opened)
	}
	t.Logf("the server's death was seen after %v, another active after %v, a new context after %v", seen.Round(time.Microsecond), up.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if s.Daemon != before.Daemon {
		t.Error("the daemon is another")
	}
	if code := old.do("work"); code != 806 {
		t.Errorf("an old client's work: %d, want 806", code)
	}
	old.kill()
	fresh.kill()
	n.close()
}

func daemon(t *testing.T, b *harness) {
	n := b.start(t, "")
	old := n.open()
	before := n.State()
	began := time.Now()
	syscall.Kill(before.Daemon, syscall.SIGKILL)
	n.until("it says that it does not serve", func(s mps.State) bool { return !s.Serving && s.Losses == 1 })
	seen := time.Since(began)
	s := n.until("it serves again", func(s mps.State) bool { return s.Serving && s.Server != 0 })
	up := time.Since(began)
	fresh := n.open()
	if !fresh.MPS || s.Daemon == before.Daemon || s.Server == before.Server || runs(before.Server) {
		t.Errorf("it is %+v, was %+v; a new client: %+v", s, before, fresh.opened)
	}
	t.Logf("the daemon's death was seen after %v, it serves again after %v, a new context after %v", seen.Round(time.Microsecond), up.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if code := old.do("work"); code == 0 {
		t.Error("an old client works on")
	}
	old.kill()
	fresh.kill()
	n.close()
}

func memory(t *testing.T, b *harness) {
	n := b.start(t, "")
	used := func() int64 {
		u, err := b.session.Usage(b.uuid)
		must.OK(t, err)
		return u.UsedBytes
	}
	n.open().kill() // allocates what the server keeps until it exits
	before := used()
	const rounds = 20
	var longest time.Duration
	for range rounds {
		p := n.open()
		if code := p.do("allocate"); code != 0 {
			t.Fatalf("allocate: %d", code)
		}
		if held := used() - before; held < 1<<30 {
			t.Fatalf("it holds %d MiB", held>>20)
		}
		p.kill()
		died := time.Now()
		for used() > before+64<<20 {
			if time.Since(died) > 2*time.Second {
				t.Fatalf("%d MiB are held two seconds after its end", (used()-before)>>20)
			}
			time.Sleep(time.Millisecond)
		}
		longest = max(longest, time.Since(died))
	}
	after := used()
	t.Logf("%d clients of 1 GiB killed: %d MiB used before, %d after; free %v after their ends at most", rounds, before>>20, after>>20, longest)
	if after > before+16<<20 {
		t.Errorf("%d MiB are left", (after-before)>>20)
	}
	n.close()
}

func quits(t *testing.T, b *harness) {
	n := b.start(t, "")
	p := n.open()
	n.close() // quit waits for clients, but only until its deadline
	p.kill()
}

func tried(t *testing.T, b *harness) {
	began := time.Now()
	if err := mps.Try(context.Background(), b.options("")); err != nil {
		t.Error(err)
	}
	t.Logf("tried in %v", time.Since(began).Round(time.Millisecond))
	if s := mps.Strangers("/nowhere", b.uuid); len(s) > 0 {
		t.Logf("daemons on this machine: %v", s)
	}
}
