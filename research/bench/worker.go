package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/node"
)

// Worker compares a worker with own processes, for the same functions on one device.
// The runs are interleaved, each on its own node. Each list has a value per run.
type Worker struct {
	Machine   testbed.Machine `json:"machine"`
	Device    string          `json:"device"`
	Functions int             `json:"functions"`
	Worker    WorkerWay       `json:"worker"`
	Own       WorkerWay       `json:"own"`
	// Ratio is the worker's median of MemoryMiB as a part of that of own processes.
	Ratio float64 `json:"memory_ratio"`
}

// WorkerWay has the results of one way of hosting functions.
type WorkerWay struct {
	Processes []float64 `json:"processes"`
	// MemoryMiB is the anonymous memory of the functions' processes when all serve and all
	// shadows are loaded. Packet memory and tensors are shared with the manager, and not part of it.
	// On a GPU it is the GPU memory of all processes.
	MemoryMiB []float64 `json:"memory_mib"`
	// Start is the time from the node's start until all functions serve. Restart is the time from
	// SIGKILL of the first function's process until all serve.
	Start   []float64 `json:"start_s"`
	Restart []float64 `json:"restart_s"`
}

// WorkerOptions say what RunWorker compares. Functions of the models follow each other.
type WorkerOptions struct {
	Setup
	ModelNames []string
	Functions  int
	Rounds     int
	// OnlyWorker leaves out own processes: a GPU serves at most 48.
	OnlyWorker bool
}

// workerPatience bounds each step of a run. Many processes may take minutes to start.
const workerPatience = 10 * time.Minute

// RunWorker measures both ways in turn, Rounds times.
func RunWorker(ctx context.Context, o WorkerOptions) (Worker, error) {
	r := Worker{Machine: o.Machine, Device: o.Device, Functions: o.Functions}
	if err := checkCards(&o.Setup, o.ModelNames); err != nil {
		return r, err
	}
	for round := range o.Rounds {
		for _, way := range []struct {
			name, workers, worker string
			to                    *WorkerWay
		}{
			{"a worker", "workers: [{name: cold, share_percent: 60}]\n", ", worker: cold", &r.Worker},
			{"own processes", "", "", &r.Own},
		} {
			if o.OnlyWorker && way.worker == "" {
				continue
			}
			o.Printf("round %d of %d: %s", round+1, o.Rounds, way.name)
			var config strings.Builder
			config.WriteString(deviceAndModels(&o.Setup) + way.workers + "functions:\n")
			for i := range o.Functions {
				fmt.Fprintf(&config, "  - {name: fn%d, model: %q, port: 0%s}\n", i, o.ModelNames[i%len(o.ModelNames)], way.worker)
			}
			if err := o.run(ctx, config.String(), way.to); err != nil {
				return r, fmt.Errorf("%s: %w", way.name, err)
			}
		}
	}
	worker, _, _ := Spread(r.Worker.MemoryMiB)
	own, _, _ := Spread(r.Own.MemoryMiB)
	r.Ratio = ratio(worker, own)
	return r, nil
}

// run adds the values of one node.
func (o *WorkerOptions) run(ctx context.Context, config string, to *WorkerWay) error {
	ctx, cancel := context.WithTimeoutCause(ctx, workerPatience, fmt.Errorf("not finished after %v", workerPatience))
	defer cancel()
	began := time.Now()
	n, err := node.Start(ctx, node.Options{Binary: o.Binary, Config: config})
	if err != nil {
		return err
	}
	defer n.Kill()
	to.Start = append(to.Start, time.Since(began).Seconds())

	var status control.Status
	if err := n.WaitFor(ctx, "every batch size and shadow", func() bool { return loaded(n, &status) }); err != nil {
		return err
	}
	memory, err := functionMemory(n)
	if err != nil {
		return err
	}
	to.Processes, to.MemoryMiB = append(to.Processes, float64(len(processesOf(&status)))), append(to.MemoryMiB, float64(memory)/(1<<20))

	active, _ := status.Functions[0].Instances[0].Serving()
	began = time.Now()
	if err := syscall.Kill(active.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", active.PID, err)
	}
	if err := n.WaitFor(ctx, "all functions to serve again", func() bool { return serving(n, &status) && !processesOf(&status)[active.PID] }); err != nil {
		return err
	}
	to.Restart = append(to.Restart, time.Since(began).Seconds())
	return n.Stop()
}

// serving reads a status, and reports whether each function has a process that serves.
func serving(n *node.Node, status *control.Status) bool {
	var err error
	if *status, err = n.Status(); err != nil {
		return false
	}
	return !slices.ContainsFunc(status.Functions, func(f control.FunctionStatus) bool {
		active, _ := f.Instances[0].Serving()
		return active.State != control.Active
	})
}

// loaded is serving, and reports whether each function has all batch sizes, and outside a worker a shadow that is
// loaded.
func loaded(n *node.Node, status *control.Status) bool {
	return serving(n, status) && !slices.ContainsFunc(status.Functions, func(f control.FunctionStatus) bool {
		active, _ := f.Instances[0].Serving()
		shadow, _ := f.Instances[0].Standby()
		return active.WarmingUp || f.Worker == "" && shadow.State != control.Loaded
	})
}

// processesOf returns the process ids of all functions. The members of a worker have the same.
func processesOf(status *control.Status) map[int]bool {
	processes := map[int]bool{}
	for _, f := range status.Functions {
		for _, p := range f.Instances[0].Processes {
			if p.PID != 0 { // else it is being started
				processes[p.PID] = true
			}
		}
	}
	return processes
}

// anonymousBytes returns RssAnon of a process (proc_pid_status(5)).
func anonymousBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "RssAnon:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("read memory of process: /proc has no RssAnon")
}
