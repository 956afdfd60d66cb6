package bench

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
)

// trainScript is the guest on a GPU.
//
//go:embed train.py
var trainScript []byte

// Guest compares a function next to a guest with the same function alone, and the guest with itself alone.
// Each list has a value per round; a round is one node.
type Guest struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	Model   string          `json:"model"`
	Rate    float64         `json:"rate"`    // requests per second
	Seconds float64         `json:"seconds"` // of a measurement
	Own     bool            `json:"own"`     // the guest runs outside MPS
	Command []string        `json:"command"`
	Alone   GuestFunction   `json:"function_alone"`
	Beside  GuestFunction   `json:"function_beside_guest"`
	// GuestAlone and GuestBeside are the guest's steps per second, without and with the function's load.
	GuestAlone  []float64 `json:"guest_alone_per_s"`
	GuestBeside []float64 `json:"guest_beside_function_per_s"`
	// Idle is the part of the device that the function alone leaves.
	Idle []float64 `json:"idle"`
	// P99Ratio is the function's median p99 next to the guest / alone. GuestRatio is the guest's
	// median rate next to the function / (alone × idle).
	P99Ratio   float64 `json:"p99_ratio"`
	GuestRatio float64 `json:"guest_ratio"`
}

// GuestFunction has the results of the function.
type GuestFunction struct {
	Within []float64 `json:"within_percent"`
	P50    []float64 `json:"p50_ms"`
	P99    []float64 `json:"p99_ms"`
}

// GuestOptions say what RunGuest measures.
type GuestOptions struct {
	Setup
	Model    string
	Rate     float64
	Duration time.Duration
	Rounds   int
	Own      bool
	Memory   string // limit of the guest, as --memory of `penstock run`
	Python   string // runs the training on a GPU
	Batch    int    // of the training
	// Command, if not empty, is the guest instead. It prints lines `steps N`.
	Command []string
}

// guestPatience bounds the time until a guest has made its first steps. PyTorch may take a minute to load.
const guestPatience = 5 * time.Minute

// guestWarmUp is how many steps a guest makes before it is measured.
const guestWarmUp = 10

// minIdle is the smallest part of a device that counts as idle. Other programs may leave nothing.
const minIdle = 0.01

// RunGuest measures the guest alone, the function alone, and both, Rounds times.
func RunGuest(ctx context.Context, o GuestOptions) (Guest, error) {
	r := Guest{Machine: o.Machine, Device: o.Device, Model: o.Model, Rate: o.Rate, Seconds: o.Duration.Seconds(), Own: o.Own}
	if _, err := o.Card(o.Model); err != nil {
		return r, err
	}
	dir, err := testbed.NewDir()
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	if r.Command, err = o.guestCommand(dir); err != nil {
		return r, err
	}
	for round := range o.Rounds {
		if err := o.round(ctx, fmt.Sprintf("round %d of %d", round+1, o.Rounds), uint64(round+1), &r); err != nil {
			return r, err
		}
	}
	beside, _, _ := Spread(r.Beside.P99)
	alone, _, _ := Spread(r.Alone.P99)
	r.P99Ratio = beside / alone
	steps, _, _ := Spread(r.GuestBeside)
	stepsAlone, _, _ := Spread(r.GuestAlone)
	idle, _, _ := Spread(r.Idle)
	r.GuestRatio = steps / (stepsAlone * max(idle, minIdle))
	return r, nil
}

// guestCommand returns the guest's command. On a GPU it writes the training into dir.
func (o *GuestOptions) guestCommand(dir string) ([]string, error) {
	switch {
	case len(o.Command) > 0:
		return o.Command, nil
	case o.Device == configs.DeviceCPU:
		return []string{o.Lab, "burn"}, nil
	}
	python, err := exec.LookPath(o.Python)
	if err != nil {
		return nil, fmt.Errorf("find Python for the training: %w; --python names another", err)
	}
	if out, err := exec.Command(python, "-c", "import torch").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return nil, fmt.Errorf("import torch in %s: %w: %s; --python names another", python, err, lines[len(lines)-1])
	}
	script := filepath.Join(dir, "train.py")
	if err := os.WriteFile(script, trainScript, 0o600); err != nil {
		return nil, fmt.Errorf("write training: %w", err)
	}
	return []string{python, script, strconv.Itoa(o.Batch)}, nil
}

// round adds the values of one node. The sandbox is off, so that a guest inside MPS keeps this user.
func (o *GuestOptions) round(ctx context.Context, name string, seed uint64, r *Guest) error {
	config := deviceAndModels(&o.Setup) + fmt.Sprintf("sandbox: off\nfunctions: [{name: fn, model: %q, port: 0}]\n", o.Model)
	starting, cancel := context.WithTimeoutCause(ctx, guestPatience, errors.New("the function had no ready process"))
	defer cancel()
	o.Printf("%s: start node", name)
	n, err := node.Start(starting, node.Options{Binary: o.Binary, Config: config})
	if err != nil {
		return err
	}
	defer n.Kill()

	o.Printf("%s: function alone", name)
	if err := testbed.Pause(ctx, 2*time.Second); err != nil {
		return err
	}
	if err := o.load(ctx, n, seed, 2*time.Second, nil); err != nil { // warm up
		return err
	}
	idle, err := o.idle(n)
	if err != nil {
		return err
	}
	if err := o.load(ctx, n, seed, o.Duration, &r.Alone); err != nil {
		return fmt.Errorf("function alone: %w", err)
	}
	left, err := idle()
	if err != nil {
		return err
	}
	r.Idle = append(r.Idle, left)

	o.Printf("%s: guest alone", name)
	g, err := o.startGuest(ctx, n.Dir, r.Command)
	if err != nil {
		return err
	}
	defer g.kill()
	from := g.read()
	if err := testbed.Pause(ctx, o.Duration); err != nil {
		return err
	}
	rate, err := g.rate(from)
	if err != nil {
		return fmt.Errorf("guest alone: %w", err)
	}
	r.GuestAlone = append(r.GuestAlone, rate)

	o.Printf("%s: both", name)
	from = g.read()
	if err := o.load(ctx, n, seed, o.Duration, &r.Beside); err != nil {
		return fmt.Errorf("function next to the guest: %w", err)
	}
	if rate, err = g.rate(from); err != nil {
		return fmt.Errorf("guest next to the function: %w", err)
	}
	r.GuestBeside = append(r.GuestBeside, rate)
	if err := g.stop(); err != nil {
		return err
	}
	return n.Stop()
}

// load sends requests to the function, and adds the results to to, if it is not nil.
func (o *GuestOptions) load(ctx context.Context, n *node.Node, seed uint64, duration time.Duration, to *GuestFunction) error {
	sharing := SharingOptions{Setup: o.Setup, Duration: duration}
	report, err := sharing.runLoad(ctx, n.Dir, map[string]float64{"fn": o.Rate}, seed)
	if err != nil || to == nil {
		return err
	}
	if len(report.Functions) != 1 || report.Functions[0].OK == 0 {
		return errors.New("the function answered no request")
	}
	f := &report.Functions[0]
	to.Within, to.P50, to.P99 = append(to.Within, f.WithinSLO), append(to.P50, f.P50Millis), append(to.P99, f.P99Millis)
	return nil
}

// idle starts to measure the device. The returned function returns the part of it that was idle since.
func (o *GuestOptions) idle(n *node.Node) (func() (float64, error), error) {
	if o.Device == configs.DeviceCPU {
		before, err := readCPUs()
		return func() (float64, error) {
			after, err := readCPUs()
			return float64(after.idle-before.idle) / math.Max(1, float64(after.total-before.total)), err
		}, err
	}
	used := func() (float64, error) {
		f, err := n.Function("fn")
		if err == nil && f.Guarantee == nil {
			err = errors.New("read use of the GPU: the function has no guarantee")
		}
		if err != nil {
			return 0, err
		}
		return f.Guarantee.UsedSeconds, nil
	}
	before, err := used()
	began := time.Now()
	return func() (float64, error) {
		after, err := used()
		return 1 - (after-before)/time.Since(began).Seconds(), err
	}, err
}

// cpuTicks are times of CPUs.
type cpuTicks struct{ idle, total int64 }

// readCPUs reads the times of the functions' CPUs, which guests run on, from /proc/stat (proc_stat(5)).
func readCPUs() (t cpuTicks, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, fmt.Errorf("read CPU times: %w", err)
	}
	_, cpus := orchestrator.IFCPUs(0, orchestrator.Near{})
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		const counted = 8 // the others are in the first two
		if len(fields) <= counted || !slices.ContainsFunc(cpus, func(cpu int) bool { return fields[0] == fmt.Sprintf("cpu%d", cpu) }) {
			continue
		}
		for i, field := range fields[1 : 1+counted] {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return t, fmt.Errorf("read CPU times: %w", err)
			}
			t.total += n
			if i == 3 || i == 4 { // idle, iowait
				t.idle += n
			}
		}
	}
	return t, nil
}

// guestRun is a guest that runs.
type guestRun struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // how it ended; valid once ended is closed

	mu     sync.Mutex
	last   progress
	stderr []string // its last lines
}

// progress is what a guest has printed last.
type progress struct {
	steps int64
	at    time.Time
}

// startGuest runs a command as a guest, and waits for its first steps.
func (o *GuestOptions) startGuest(ctx context.Context, dir string, command []string) (*guestRun, error) {
	args := []string{"run", "--runtime-dir", dir}
	if o.Own {
		args = append(args, "--own")
	}
	if o.Memory != "" {
		args = append(args, "--memory", o.Memory)
	}
	g := &guestRun{cmd: exec.CommandContext(ctx, o.Binary, append(append(args, "--"), command...)...), ended: make(chan struct{})}
	g.cmd.Cancel = func() error { return g.cmd.Process.Signal(syscall.SIGTERM) }
	stdout, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	stderr, err := g.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start guest: %w", err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { g.follow(stdout) })
	readers.Go(func() { g.complain(stderr) })
	go func() {
		defer close(g.ended)
		readers.Wait()
		g.err = g.cmd.Wait()
	}()

	late := time.After(guestPatience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for g.read().steps < guestWarmUp {
		select {
		case <-tick.C:
		case <-g.ended:
			return nil, g.failed()
		case <-late:
			g.kill()
			return nil, fmt.Errorf("start guest: fewer than %d steps after %v: %w", guestWarmUp, guestPatience, g.failed())
		}
	}
	return g, nil
}

// follow reads the guest's steps.
func (g *guestRun) follow(stdout io.Reader) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		text, ok := strings.CutPrefix(lines.Text(), "steps ")
		if n, err := strconv.ParseInt(text, 10, 64); ok && err == nil {
			g.mu.Lock()
			g.last = progress{steps: n, at: time.Now()}
			g.mu.Unlock()
		}
	}
}

// complain keeps the last lines of standard error.
func (g *guestRun) complain(stderr io.Reader) {
	const kept = 5
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		g.mu.Lock()
		g.stderr = append(g.stderr, lines.Text())
		g.stderr = g.stderr[max(0, len(g.stderr)-kept):]
		g.mu.Unlock()
	}
}

func (g *guestRun) read() progress {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// rate returns the steps per second since from. It waits for a step: on a busy machine a guest may get no
// time for seconds.
func (g *guestRun) rate(from progress) (float64, error) {
	to := g.read()
	for deadline := time.Now().Add(guestPatience); to.steps <= from.steps; to = g.read() {
		select {
		case <-g.ended:
			return 0, g.failed()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return 0, g.failed()
		}
	}
	return float64(to.steps-from.steps) / to.at.Sub(from.at).Seconds(), nil
}

// failed says why the guest makes no progress.
func (g *guestRun) failed() error {
	select {
	case <-g.ended:
	default:
		return errors.New("the guest made no step")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Errorf("the guest ended: %w: %s", errors.Join(errors.New("too early"), g.err), strings.Join(g.stderr, "; "))
}

// stop ends the guest as Ctrl-C does.
func (g *guestRun) stop() error {
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return g.failed()
	}
	select {
	case <-g.ended:
		return nil
	case <-time.After(guestPatience):
		g.kill()
		return errors.New("stop guest: it does not follow SIGTERM")
	}
}

func (g *guestRun) kill() {
	_ = g.cmd.Process.Kill() // it may have ended
	<-g.ended
}

// Burn keeps all CPUs busy, and prints `steps N`, until ctx ends. It is the guest on a CPU.
func Burn(ctx context.Context, to io.Writer) error {
	var mu sync.Mutex
	var steps int64
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			sum := 1.0
			for ctx.Err() == nil {
				for range 100_000 { // under a millisecond
					sum = math.Sqrt(sum + 1)
				}
				mu.Lock()
				steps++
				mu.Unlock()
			}
			runtime.KeepAlive(sum)
		})
	}
	defer workers.Wait()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		mu.Lock()
		n := steps
		mu.Unlock()
		if _, err := fmt.Fprintf(to, "steps %d\n", n); err != nil {
			return fmt.Errorf("print steps: %w", err)
		}
	}
}
