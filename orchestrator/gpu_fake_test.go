package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	fakenvml "github.com/penstock/penstock/internal/testing/nvmlfake"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/mps"
)

// fakeGPU has the H200's multiprocessors and less memory.
var fakeGPU = gpu.Found{
	UUID: "GPU-1", Name: "Fake", SMs: 132, MemoryBytes: 100 << 30,
	GroupSMs: []int{8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 12},
}

// smallGPU is the machine's second one, "cuda:1".
var smallGPU = gpu.Found{UUID: "GPU-2", Name: "Small", SMs: 66, MemoryBytes: 10 << 30}

// fakeMachine has two GPUs or none, and MPS or none. It runs on a bubble's time.
type fakeMachine struct {
	gpus   *fakenvml.Session
	noNVML error
	noGPU  error
	noMPS  error
	takes  time.Duration           // to find the GPU, and again to start MPS
	finds  func(name string) error // if not nil, called by Find
	// prioritiesResult is the result of the probe, noPriorities why it fails, probes how often it ran.
	prioritiesResult control.StreamPriorities
	noPriorities     error
	probes           int

	mu      sync.Mutex
	daemons []*fakeMPS
	claimed map[string]bool
}

func newFakeMachine() *fakeMachine {
	return &fakeMachine{claimed: map[string]bool{}, gpus: fakenvml.New(
		nvml.Device{UUID: fakeGPU.UUID, Name: fakeGPU.Name, MemoryBytes: fakeGPU.MemoryBytes},
		nvml.Device{UUID: smallGPU.UUID, Name: smallGPU.Name, MemoryBytes: smallGPU.MemoryBytes},
	)}
}

func (m *fakeMachine) Find(name string) (gpu.Found, error) {
	time.Sleep(m.takes)
	if m.noGPU != nil {
		return gpu.Found{}, m.noGPU
	}
	if m.finds != nil {
		if err := m.finds(name); err != nil {
			return gpu.Found{}, err
		}
	}
	switch name {
	case "cuda", fakeGPU.UUID:
		return fakeGPU, nil
	case "cuda:1", smallGPU.UUID:
		return smallGPU, nil
	}
	return gpu.Found{}, fmt.Errorf("%w %q", cuda.ErrNoDevice, name)
}

// Claim is that of one node.
func (m *fakeMachine) Claim(uuid string) (release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claimed[uuid] {
		return nil, errors.New("it is claimed")
	}
	m.claimed[uuid] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.claimed, uuid)
	}, nil
}

func (m *fakeMachine) Session() (nvml.Session, error) { return m.gpus, m.noNVML }

func (m *fakeMachine) StartMPS(ctx context.Context, o mps.Options) (gpu.Daemon, error) {
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if m.noMPS != nil {
		return nil, m.noMPS
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.daemons {
		if !d.closed && d.uuid == o.UUID {
			return nil, errors.New("another daemon runs")
		}
	}
	d := &fakeMPS{uuid: o.UUID, changes: make(chan struct{}, 1), state: mps.State{Serving: true, Daemon: 1, Server: 2}}
	m.daemons = append(m.daemons, d)
	return d, nil
}

func (m *fakeMachine) Priorities(context.Context, gpu.Found, map[string]string) (control.StreamPriorities, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.probes++
	return m.prioritiesResult, false, m.noPriorities
}

// daemon returns the last daemon that was started; nil if none was.
func (m *fakeMachine) daemon() *fakeMPS {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.daemons) == 0 {
		return nil
	}
	return m.daemons[len(m.daemons)-1]
}

// daemonOf returns the daemon of a GPU.
func (m *fakeMachine) daemonOf(uuid string) *fakeMPS {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.daemons[slices.IndexFunc(m.daemons, func(d *fakeMPS) bool { return d.uuid == uuid && !d.closed })]
}

// check fails the test if a daemon is left.
func (m *fakeMachine) check(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.daemons {
		if !d.closed {
			t.Error("an MPS daemon is left")
		}
	}
	if len(m.claimed) > 0 {
		t.Errorf("claims are left: %v", m.claimed)
	}
}

// fakeMPS is a daemon in the state that a test sets.
type fakeMPS struct {
	uuid    string
	changes chan struct{}

	mu     sync.Mutex
	state  mps.State
	health mps.Health
	mute   bool
	closed bool
}

func (d *fakeMPS) Environment() map[string]string {
	return map[string]string{"CUDA_VISIBLE_DEVICES": d.uuid, "CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "CUDA_MPS_LOG_DIRECTORY": "/run/mps-log"}
}

func (d *fakeMPS) State() mps.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

func (d *fakeMPS) Changes() <-chan struct{} { return d.changes }

func (d *fakeMPS) EndWork(context.Context, []int) error { return nil }

func (d *fakeMPS) Health(ctx context.Context) (mps.Health, error) {
	d.mu.Lock()
	h, mute := d.health, d.mute
	d.mu.Unlock()
	if mute {
		<-ctx.Done()
		return mps.Well, ctx.Err()
	}
	time.Sleep(2 * time.Millisecond)
	return h, nil
}

func (d *fakeMPS) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

func (d *fakeMPS) set(change func(*fakeMPS)) {
	d.mu.Lock()
	change(d)
	d.mu.Unlock()
	select {
	case d.changes <- struct{}{}:
	default:
	}
}

// onDevice puts the processes that name no device on the first one.
func onDevice(devices []string, processes []control.DesiredProcess) []control.DesiredProcess {
	processes = slices.Clone(processes) // an orchestrator may read the caller's, from the message before
	for i := range processes {
		processes[i].Device = cmp.Or(processes[i].Device, devices[0])
	}
	return processes
}

// gpuOf returns the first device of an orchestrator that has opened it, nil if that is no GPU.
func gpuOf(o control.Observed) *control.GPU { return first(o).GPU }

func mechanismOf(o control.Observed) string { return first(o).Mechanism }

func first(o control.Observed) (d control.ObservedDevice) {
	if len(o.Devices) > 0 {
		d = o.Devices[0]
	}
	return d
}

func (d *fakeMPS) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// started returns how many daemons of a GPU have started.
func (m *fakeMachine) started(uuid string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.daemons {
		if d.uuid == uuid {
			n++
		}
	}
	return n
}
