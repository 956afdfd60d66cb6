package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoController is wrapped by errors about a controller that the kernel does not offer.
var ErrNoController = errors.New("no controller")

// mount is a mounted cgroup file system.
type mount struct {
	point   string // mount point
	root    string // the group that the mount shows as its root
	kind    string // "cgroup" or "cgroup2"
	options string // file system options: the controllers of a version 1 mount
}

func mounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	defer f.Close()
	return readMounts(f)
}

// readMounts reads the cgroup mounts from a mountinfo file (proc_pid_mountinfo(5)). Each
// line has ten or more fields, with a lone "-" before the last three.
func readMounts(r io.Reader) ([]mount, error) {
	var all []mount
	s := bufio.NewScanner(r)
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		b, a := strings.Fields(before), strings.Fields(after)
		if !ok || len(b) < 6 || len(a) < 3 || a[0] != "cgroup" && a[0] != "cgroup2" {
			continue
		}
		all = append(all, mount{point: b[4], root: b[3], kind: a[0], options: a[2]})
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("find cgroup mounts: %w", err)
	}
	return all, nil
}

// unified reports whether the mount is that of version 2.
func (m mount) unified() bool { return m.kind == "cgroup2" }

// has reports whether a mount of version 1 has a controller.
func (m mount) has(controller string) bool {
	return !m.unified() && slices.Contains(strings.Split(m.options, ","), controller)
}

// under returns the path, below the mount, of the group that /proc/self/cgroup calls own. A
// container's mount shows the container's own group as the root.
func (m mount) under(own string) string {
	rel, err := filepath.Rel(m.root, own)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "/" // not below the mounted group: only the mount itself can be used
	}
	return path.Join("/", rel)
}

// shows reports whether the mount shows a group.
func (m mount) shows(group string) bool {
	return group != "" && (m.root == "/" || group == m.root || strings.HasPrefix(group, m.root+"/"))
}

// membership is the groups of a process: by controller in version 1, and with the key "" in version 2.
type membership map[string]string

// membershipOf reads /proc/PID/cgroup (cgroups(7)): lines of "ID:controller,controller:path".
func membershipOf(pid int) (membership, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("find control groups of process: %w", err)
	}
	return parseMembership(string(text))
}

func parseMembership(text string) (membership, error) {
	groups := membership{}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			return nil, fmt.Errorf("find control groups of process: %q has no path", line)
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			groups[controller] = parts[2]
		}
	}
	return groups, nil
}

// system is what this process finds of control groups.
type system struct {
	mounts []mount
	own    membership
}

func find() (s system, err error) {
	if s.mounts, err = mounts(); err != nil {
		return s, err
	}
	s.own, err = membershipOf(os.Getpid())
	return s, err
}

// unified returns the mount of version 2.
func (s system) unified() (mount, error) {
	for _, m := range s.mounts {
		if m.unified() {
			return m, nil
		}
	}
	return mount{}, fmt.Errorf("cgroup version 2: %w is mounted", ErrNoController)
}

// preparedName is the name of a group that root may have made for a user; see mendV1.
const preparedName = "penstock"

// parents returns the folders to make groups in, by controllers that version 1 has.
func (s system) parents(controllers ...string) map[string]string {
	found := map[string]string{}
	for _, m := range s.mounts {
		for _, controller := range controllers {
			if !m.has(controller) {
				continue
			}
			found[controller] = filepath.Join(m.point, m.under(s.own[controller]))
			if ready := filepath.Join(found[controller], preparedName); isDir(ready) {
				found[controller] = ready
			}
		}
	}
	return found
}

// nearest calls use with this process's group in version 2, and with the groups above it, until it succeeds. The
// error is the first one: of the group that a user can most easily fix.
func (s system) nearest(m mount, use func(folder string) error) error {
	var first error
	for at := m.under(s.own[""]); ; at = path.Dir(at) {
		err := use(filepath.Join(m.point, at))
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if at == "/" {
			return first
		}
	}
}

// enable gives the groups in a folder of version 2 these controllers, if the kernel and the groups above allow it.
// Setting a limit reports what is missing.
func enable(folder string, controllers ...string) (err error) {
	for _, controller := range controllers {
		err = errors.Join(err, write(filepath.Join(folder, "cgroup.subtree_control"), "+"+controller))
	}
	return err
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
