package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/budget"
)

// ErrNoMemoryLimit is wrapped by what Guests.Make reports if a guest's memory has no limit.
var ErrNoMemoryLimit = errors.New("the guest's memory has no limit")

// ErrCanLeave is wrapped by what Guests.Make reports if a guest's processes can leave its group.
var ErrCanLeave = errors.New("not enforced: the guest's limits, and that all its processes end with it")

// guestTasks bounds the processes and threads of one guest. A guest that forks without end would use up
// the machine's process ids, and all commands that list processes would wait for it.
func guestTasks() int64 { return int64(max(1024, 64*runtime.NumCPU())) }

// guestControllers limit guests. Each may be missing.
var guestControllers = []string{"cpu", "memory", "pids"}

// Guests makes control groups for guests, next to the tree of functions. Each gets only CPU time that
// no other group of its level wants.
type Guests struct {
	id  string
	log zerolog.Logger

	mu      sync.Mutex
	prefix  string // of the names of groups; empty until the first one is made
	parents Group
}

// NewGuests returns Guests that look for a place when the first guest comes. id tells apart several orchestrators in
// one process.
func NewGuests(id string, log zerolog.Logger) *Guests { return &Guests{id: id, log: log} }

// openLocked finds the groups that can hold those of guests.
func (g *Guests) openLocked() error {
	s, err := find()
	if err != nil {
		return err
	}
	m, err := s.unified()
	if err != nil {
		return err
	}
	offered, err := m.controllers()
	if err != nil {
		return err
	}
	name, err := ownerName(os.Getpid())
	if err != nil {
		return err
	}
	prefix := fmt.Sprintf("%s-guest-%s-", name, g.id)
	// It takes the nearest group that can give the cpu controller to groups in it. If none can, it takes the nearest
	// one that accepts groups.
	var parent string
	for _, need := range slices.Compact([]bool{offered["cpu"], false}) {
		failed := s.nearest(m, func(folder string) error {
			parent = folder
			sweep(folder, g.log)
			return tryGuests(folder, prefix+"probe", need)
		})
		if failed == nil {
			g.prefix, g.parents = prefix, Group{unified: parent, legacy: s.parents(guestControllers...)}
			for _, legacy := range g.parents.legacy {
				sweep(legacy, g.log)
			}
			return nil
		}
		if err == nil {
			err = failed
		}
	}
	return err
}

// tryGuests makes a group in parent, and removes it.
func tryGuests(parent, probe string, needCPU bool) error {
	_ = enable(parent, guestControllers...)
	folder := filepath.Join(parent, probe)
	err := os.Mkdir(folder, 0o755)
	if err != nil {
		return err
	}
	if needCPU {
		_, err = os.Stat(filepath.Join(folder, scaleV2.file))
	}
	return errors.Join(err, os.Remove(folder))
}

// Make makes a group for one guest of the user uid, with at most memoryBytes of main memory; 0: no limit. The name
// is unique, and ends with the guest's token. missing is the reason, in one line, for each limit that the group
// cannot hold. It wraps ErrNoMemoryLimit for memoryBytes, and ErrCanLeave if processes of the user can leave the group.
func (g *Guests) Make(name string, memoryBytes int64, uid int) (made *Group, missing []error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.prefix == "" {
		if err := g.openLocked(); err != nil {
			return nil, nil, err
		}
	}
	one := &Group{unified: filepath.Join(g.parents.unified, g.prefix+name), legacy: map[string]string{}}
	if err := os.Mkdir(one.unified, 0o755); err != nil {
		return nil, nil, err
	}
	for controller, parent := range g.parents.legacy {
		folder := filepath.Join(parent, g.prefix+name)
		if os.Mkdir(folder, 0o755) == nil {
			one.legacy[controller] = folder
		}
	}

	if err := one.Prioritize(budget.Demoted); err != nil {
		missing = append(missing, fmt.Errorf("no cpu controller for the guest's group: only its own priority is the lowest: %w", err))
	}
	if err := one.set("pids", "pids.max", "pids.max", guestTasks()); err != nil {
		missing = append(missing, fmt.Errorf("the number of the guest's processes has no limit: %w", err))
	}
	if memoryBytes > 0 {
		if err := one.set("memory", "memory.limit_in_bytes", "memory.max", memoryBytes); err != nil {
			missing = append(missing, fmt.Errorf("%w: %w", ErrNoMemoryLimit, err))
		}
	}
	if slices.ContainsFunc(one.folders(), func(folder string) bool { return canLeave(folder, uid) }) {
		missing = append(missing, fmt.Errorf("%w: user %d may move processes to other control groups", ErrCanLeave, uid))
	}
	return one, missing, nil
}

// TryGuests makes a group as for a guest of the user uid, removes it, and returns what it cannot hold.
func TryGuests(uid int) (missing []error, err error) {
	g, missing, err := NewGuests("try", zerolog.Nop()).Make("try", 1<<20, uid)
	if err != nil {
		return nil, err
	}
	return missing, g.Remove()
}

// canLeave reports whether a user may move processes from a group to the group above. Root may, and so may the owner of
// the group above (systemd calls that delegation).
func canLeave(folder string, uid int) bool {
	info, err := os.Stat(filepath.Join(filepath.Dir(folder), procsFile))
	if err != nil {
		return true // unknown
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return uid == 0 || !ok || int(owner.Uid) == uid || info.Mode().Perm()&0o022 != 0
}

// FindGuest returns the control group of a guest, which Make made with a name that ends with the token. It
// returns nil if the process is in no such group. `penstock run` ends the group if its orchestrator cannot.
func FindGuest(pid int, token string) *Group {
	all, err := mounts()
	if err != nil {
		return nil
	}
	groups, err := membershipOf(pid)
	if err != nil {
		return nil
	}
	found := &Group{legacy: map[string]string{}}
	for _, m := range all {
		for controller, group := range groups {
			if controller == "" != m.unified() || !m.unified() && !m.has(controller) {
				continue
			}
			// A group with another name may hold foreign processes.
			at := filepath.Join(m.point, m.under(group))
			if name := filepath.Base(at); !strings.HasPrefix(name, namePrefix) || !strings.HasSuffix(name, "-"+token) {
				continue
			}
			if m.unified() {
				found.unified = at
			} else if slices.Contains(guestControllers, controller) {
				found.legacy[controller] = at
			}
		}
	}
	if found.unified == "" {
		return nil
	}
	return found
}
