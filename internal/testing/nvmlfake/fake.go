// Package nvmlfake is an nvml.Session without a GPU: its devices hold what a test
// puts on them, and it refuses and delays on wish.
package nvmlfake

import (
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/cuda/nvml"
)

// Session is a fake machine. The zero value has no devices. Any goroutine may use
// it.
type Session struct {
	mu        sync.Mutex
	devices   []nvml.Device
	processes map[string][]nvml.Process
	hidden    map[string]int64 // bytes that no process is listed with
	refuse    error
	delay     time.Duration
	asked     int
}

var _ nvml.Session = (*Session)(nil)

// New is a machine with these devices, all idle.
func New(devices ...nvml.Device) *Session {
	return &Session{devices: devices, processes: map[string][]nvml.Process{}, hidden: map[string]int64{}}
}

// Put puts a process on a device, or changes what it holds.
func (s *Session) Put(uuid string, p nvml.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[uuid] = append(without(s.processes[uuid], p.PID), p)
}

// Remove takes a process off all devices, as the driver does some time after its
// end.
func (s *Session) Remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid, list := range s.processes {
		s.processes[uuid] = without(list, pid)
	}
}

// Hold uses so much of a device's memory without any process.
func (s *Session) Hold(uuid string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[uuid] = bytes
}

// Refuse makes every question fail with err, until it is nil.
func (s *Session) Refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// Delay makes every answer take so long.
func (s *Session) Delay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// Asked is how many questions there were.
func (s *Session) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func without(list []nvml.Process, pid int) []nvml.Process {
	return slices.DeleteFunc(slices.Clone(list), func(p nvml.Process) bool { return p.PID == pid })
}

// ask waits as long as an answer takes, and locks if there is to be one.
func (s *Session) ask(op, uuid string) error {
	s.mu.Lock()
	d := s.delay
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	s.asked++
	if s.refuse != nil {
		s.mu.Unlock()
		return &nvml.Error{Op: op, UUID: uuid, Err: s.refuse}
	}
	if uuid != "" && !slices.ContainsFunc(s.devices, func(d nvml.Device) bool { return d.UUID == uuid }) {
		s.mu.Unlock()
		return &nvml.Error{Op: op, UUID: uuid, Err: nvml.ErrNoDevice}
	}
	return nil
}

// Driver is one that no machine has.
func (s *Session) Driver() (string, int, error) {
	if err := s.ask("driver", ""); err != nil {
		return "", 0, err
	}
	defer s.mu.Unlock()
	return "999.99", 13000, nil
}

// Devices are those of New.
func (s *Session) Devices() ([]nvml.Device, error) {
	if err := s.ask("devices", ""); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return slices.Clone(s.devices), nil
}

// Usage is the sum over the processes and what Hold holds.
func (s *Session) Usage(uuid string) (nvml.Usage, error) {
	if err := s.ask("usage", uuid); err != nil {
		return nvml.Usage{}, err
	}
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.devices, func(d nvml.Device) bool { return d.UUID == uuid })
	u := nvml.Usage{TotalBytes: s.devices[i].MemoryBytes, UsedBytes: s.hidden[uuid], SMClockMHz: 1980}
	for _, p := range s.processes[uuid] {
		u.UsedBytes += max(p.UsedBytes, 0)
	}
	u.FreeBytes = u.TotalBytes - u.UsedBytes
	return u, nil
}

// Processes are those that were put there.
func (s *Session) Processes(uuid string) ([]nvml.Process, error) {
	if err := s.ask("processes", uuid); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	list := slices.Clone(s.processes[uuid])
	slices.SortFunc(list, func(a, b nvml.Process) int { return a.PID - b.PID })
	return list, nil
}
