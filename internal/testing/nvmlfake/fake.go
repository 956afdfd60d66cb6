// Package nvmlfake is an nvml.Session without a GPU. A test sets the contents of
// its devices, and can make it refuse and delay.
package nvmlfake

import (
	"cmp"
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
	instances []nvml.Instance
	processes map[string][]nvml.Process
	hidden    map[string]int64 // bytes in use without a listed process
	refuse    error
	lost      map[string]error
	delay     map[string]time.Duration // by device; "": all
	asked     int
}

var _ nvml.Session = (*Session)(nil)

// New returns a machine with these devices, all idle.
func New(devices ...nvml.Device) *Session {
	return &Session{
		devices: devices, processes: map[string][]nvml.Process{}, hidden: map[string]int64{}, lost: map[string]error{},
		delay: map[string]time.Duration{},
	}
}

// Divide replaces the MIG instances of the machine.
func (s *Session) Divide(instances ...nvml.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = instances
}

// Put adds a process to a device, or changes its memory.
func (s *Session) Put(uuid string, p nvml.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[uuid] = append(without(s.processes[uuid], p.PID), p)
}

// Remove removes a process from all devices, as the driver does some time after
// its end.
func (s *Session) Remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid, list := range s.processes {
		s.processes[uuid] = without(list, pid)
	}
}

// Hold uses that much of a device's memory without any process.
func (s *Session) Hold(uuid string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[uuid] = bytes
}

// Refuse makes every query fail with err, until it is called with nil.
func (s *Session) Refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = err
}

// Lose makes every query of a device fail with err, until it is called with nil.
func (s *Session) Lose(uuid string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost[uuid] = err
}

// Delay makes every answer take that long.
func (s *Session) Delay(d time.Duration) { s.DelayOf("", d) }

// DelayOf does so for answers about one device.
func (s *Session) DelayOf(uuid string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay[uuid] = d
}

// Asked returns the number of queries.
func (s *Session) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func without(list []nvml.Process, pid int) []nvml.Process {
	return slices.DeleteFunc(slices.Clone(list), func(p nvml.Process) bool { return p.PID == pid })
}

// ask waits as long as an answer takes. If there is an answer, ask returns with
// the lock held.
func (s *Session) ask(op, uuid string) error {
	s.mu.Lock()
	d := max(s.delay[""], s.delay[uuid])
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
	s.asked++
	if err := cmp.Or(s.refuse, s.lost[uuid]); err != nil {
		s.mu.Unlock()
		return &nvml.Error{Op: op, UUID: uuid, Err: err}
	}
	if _, known := s.memory(uuid); uuid != "" && !known {
		s.mu.Unlock()
		return &nvml.Error{Op: op, UUID: uuid, Err: nvml.ErrNoDevice}
	}
	return nil
}

// memory returns the memory of a GPU or an instance. s.mu is held.
func (s *Session) memory(uuid string) (bytes int64, known bool) {
	for _, d := range s.devices {
		if d.UUID == uuid {
			return d.MemoryBytes, true
		}
	}
	for _, i := range s.instances {
		if i.UUID == uuid {
			return i.MemoryBytes, true
		}
	}
	return 0, false
}

// Driver returns a version that no machine has.
func (s *Session) Driver() (string, int, error) {
	if err := s.ask("driver", ""); err != nil {
		return "", 0, err
	}
	defer s.mu.Unlock()
	return "999.99", 13000, nil
}

// Devices returns the devices of New.
func (s *Session) Devices() ([]nvml.Device, error) {
	if err := s.ask("devices", ""); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return slices.Clone(s.devices), nil
}

// Instances returns those of Divide.
func (s *Session) Instances() ([]nvml.Instance, error) {
	if err := s.ask("instances", ""); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return slices.Clone(s.instances), nil
}

// Usage returns the sum of the processes' memory and what Hold uses.
func (s *Session) Usage(uuid string) (nvml.Usage, error) {
	if err := s.ask("usage", uuid); err != nil {
		return nvml.Usage{}, err
	}
	defer s.mu.Unlock()
	total, _ := s.memory(uuid)
	u := nvml.Usage{TotalBytes: total, UsedBytes: s.hidden[uuid]}
	for _, p := range s.processes[uuid] {
		u.UsedBytes += max(p.UsedBytes, 0)
	}
	u.FreeBytes = u.TotalBytes - u.UsedBytes
	return u, nil
}

// Processes returns the processes of that device.
func (s *Session) Processes(uuid string) ([]nvml.Process, error) {
	if err := s.ask("processes", uuid); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	list := slices.Clone(s.processes[uuid])
	slices.SortFunc(list, func(a, b nvml.Process) int { return a.PID - b.PID })
	return list, nil
}
