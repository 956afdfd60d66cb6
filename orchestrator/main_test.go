package orchestrator

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/grouptest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/orchestrator/guest"
	"github.com/penstock/penstock/orchestrator/keeper"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// patience bounds every wait for a real process. Only a process that hangs takes that
// long.
const patience = 30 * time.Second

// TestMain runs this binary as a child of the orchestrator, or as an orchestrator, if a
// test started it as one.
func TestMain(m *testing.M) {
	syscall.Umask(0o022) // keeps the tests' runtime folders private, even if the umask lets the group write
	sandbox.MaybeLaunch()
	guest.MaybeLaunch()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "if":
			os.Exit(workerMain())
		case "child":
			os.Exit(childMain(os.Args[2:]))
		case "confined":
			os.Exit(confinedMain(os.Args[2]))
		case "prepare":
			os.Exit(prepareMain(os.Args[2:]))
		case "probe":
			os.Exit(probeMain(os.Args[2:]))
		case "weights":
			os.Exit(weightServerMain(os.Args[2:]))
		case "orchestrate":
			os.Exit(orchestrateMain(os.Args[2]))
		}
	}
	runclock.Process() // ticks until the process ends
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1) // starts a goroutine, which stays
	signal.Stop(signals)
	before := goroutines()
	code := m.Run()
	if code == 0 {
		code = leftovers(before)
	}
	os.Exit(code)
}

// leftovers reports goroutines, children and groups that the tests left behind.
func leftovers(goroutinesBefore int) int {
	complain := func(what string, n func() int) int {
		if !wait.Within(5*time.Second, func() bool { return n() <= 0 }) {
			fmt.Printf("%d %s are left\n", n(), what)
			return 1
		}
		return 0
	}
	return complain("goroutines", func() int { return goroutines() - goroutinesBefore }) |
		complain("children", func() int { return len(children()) }) |
		complain("control groups", func() int { return len(grouptest.Of(os.Getpid())) })
}

func goroutines() int { return runtime.NumGoroutine() }

// children lists the processes whose parent is this process.
func children() []int {
	var pids []int
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, name := range tasks {
		b, _ := os.ReadFile(name)
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// childMain is the process of an inference function. It only behaves, or misbehaves, as
// its arguments say.
func childMain(how []string) int {
	is := func(s string) bool { return slices.Contains(how, s) }
	switch {
	case is("exit3"):
		fmt.Fprintln(os.Stderr, "cannot open model.onnx")
		return 3
	case is("panic"):
		var none []int
		_ = none[len(how)]
	case is("hang"):
		signal.Ignore(syscall.SIGTERM)
		forever()
	case is("future"): // as if built from a later version
		link := os.NewFile(control.ChildFD, "link")
		fmt.Fprintf(link, `{"version":%d,"pid":%d,"state":"starting","mood":"good"}`+"\n", control.Version+1, os.Getpid())
		forever()
	case is("nonsense"):
		fmt.Fprintln(os.NewFile(control.ChildFD, "link"), "hello")
		forever()
	}
	child, err := control.OpenChild()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if is("ignoreTERM") {
		signal.Ignore(syscall.SIGTERM)
	}
	if is("family") { // a separate process that holds the pipes
		sleep := exec.Command("sleep", "1000")
		sleep.Stdout, sleep.Stderr = os.Stdout, os.Stderr
		if err := sleep.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		os.WriteFile(how[len(how)-1], []byte(strconv.Itoa(sleep.Process.Pid)), 0o600)
	}
	reason := ""
	if is("greedy") {
		reason = greed(how[len(how)-1])
	}
	if is("escapes") {
		left, err := escape()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		text, _ := json.Marshal(left)
		reason = string(text)
	}
	fmt.Println("hello from", child.Start().IF)
	said, woken := control.Notice{State: control.Loaded, Reason: reason}, false
	child.Notify(said)
	for o := range child.Orders() {
		switch o.Do {
		case control.DoWake:
			if is("prepares") {
				child.Notify(control.Notice{State: control.Linking, Prepare: true})
				answer := <-child.Orders()
				_, err := os.ReadFile(filepath.Join(child.Start().Prepared, "entry"))
				fmt.Printf("prepared %q %q %v\n", answer.Do, answer.Failed, err)
				if os.WriteFile(filepath.Join(child.Start().Prepared, "mine"), nil, 0o600) == nil {
					fmt.Println("it writes prepared models")
				}
			}
			if is("gpu") {
				n, err := onGPU(child.Start(), o)
				if err != nil {
					child.Notify(control.Notice{State: control.Failed, Reason: err.Error()})
					return 1
				}
				child.Notify(n)
				child.Notify(control.Notice{State: control.Active})
				said, woken = n, true
				said.State = control.Active
				continue
			}
			woken = true
			for _, s := range []control.State{control.Linking, control.Ready, control.Active} {
				said = control.Notice{State: s, Reason: allowed()}
				child.Notify(said)
			}
			if is("crash") {
				syscall.Kill(os.Getpid(), syscall.SIGSEGV)
			}
			if is("hog") {
				hog()
			}
			if is("spin") {
				for range 2 * runtime.NumCPU() {
					go func() {
						for n := 0; ; n++ {
						}
					}()
				}
			}
		case control.DoReport:
			said.Woken = woken
			child.Notify(said)
		case control.DoDrain:
			child.Notify(control.Notice{State: control.Draining})
			child.Close()
			return 0
		}
	}
	if is("stay") { // even if no other process is left: only the parent's death can end it
		forever()
	}
	return 1
}

// onGPU uses the device as libml does, and reports what it found.
func onGPU(start control.Start, wake control.Order) (control.Notice, error) {
	for name, value := range wake.Environment {
		os.Setenv(name, value)
	}
	d, err := cuda.Find("cuda")
	if err != nil {
		return control.Notice{}, err
	}
	p, err := d.Properties()
	if err != nil {
		return control.Notice{}, err
	}
	n := control.Notice{State: control.Ready, SMs: p.SMs, SMGroups: wake.SMGroups, Reason: fmt.Sprintf("MPS %v", p.MPS)}
	if start.WeightsSocket != "" {
		fmt.Println("weights at", start.WeightsSocket)
	}
	if len(wake.SMGroups) > 0 {
		n.SMs = 0
	}
	for _, g := range wake.SMGroups {
		n.SMs += start.GroupSMs[g]
	}
	return n, nil
}

// hog allocates memory until the kernel refuses.
func hog() {
	const step = 16 << 20
	for {
		block := make([]byte, step)
		for i := 0; i < step; i += 4096 {
			block[i] = 1
		}
		largePages = append(largePages, block)
	}
}

var largePages [][]byte

// forever hangs without looking like a deadlock to the runtime.
func forever() {
	for {
		unix.Pause()
	}
}

// allowed returns the CPUs that this process may run on.
func allowed() string {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if l, ok := strings.CutPrefix(s.Text(), "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(l)
		}
	}
	return "?"
}

// orchestrateMain runs an orchestrator in a separate process.
func orchestrateMain(options string) int {
	var o Options
	var plain plainOptions
	if err := json.Unmarshal([]byte(options), &plain); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	plain.to(&o)
	o.Log, o.Self = zerolog.New(os.Stderr), os.Args[0]
	if plain.Kept {
		k, err := keeper.Connect(os.NewFile(3, "keeper"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		o.Keeper = k
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// plainOptions is the part of Options that can be passed to another process.
type plainOptions struct {
	Dir       string
	Mechanism string
	Kept      bool // descriptor 3 is a keeper
	Sandbox   bool
	Prepared  string
	Cache     string
	// ProbeTimeout is patience if it is 0.
	ProbeTimeout time.Duration
}

// to fills in deadlines that only a process that hangs misses. A test that waits for
// such a process sets a shorter one.
func (p plainOptions) to(o *Options) {
	o.Dir, o.Mechanism = p.Dir, p.Mechanism
	o.Prepared, o.Cache, o.probeTimeout = p.Prepared, p.Cache, cmp.Or(p.ProbeTimeout, patience)
	if p.Sandbox {
		u, err := sandbox.FindUser("")
		if err != nil {
			panic(err)
		}
		o.Sandbox = &Sandbox{User: u}
	}
	o.limits = defaultLimits
	o.limits.handshake, o.limits.load, o.limits.drain, o.limits.term = patience, patience, patience, patience
}

// buffer is a log that can be read while it is written.
type buffer struct{ journal }

func (b *buffer) has(s string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Contains(b.text, []byte(s))
}
