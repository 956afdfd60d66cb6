// Package cgroup makes control groups: for the processes of functions (Tree), which get a part of the CPUs and limits,
// and for guests (Guests). It reads and writes the kernel's files, of version 2 and of version 1.
//
// In version 2 a group is one folder. In version 1 it has a folder per controller, in separate hierarchies. A machine
// may have both versions, and each controller is in one of them. Functions use the version that has the cpu controller.
// Guests are held by a group of version 2, which needs no controller, and limited by the controllers of both.
//
// Groups carry the name of the process that owns them. The next orchestrator finds those that it takes over, and
// removes those of nodes that have ended.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/budget"
)

// Tree is the group that holds one group per process of a function.
type Tree struct {
	group Group
}

// OpenV1 makes the tree in this process's groups of version 1, or in groups "penstock" there. owner is the parent of
// the processes.
func OpenV1(owner int, log zerolog.Logger) (*Tree, error) {
	s, err := find()
	if err != nil {
		return nil, err
	}
	name, err := ownerName(owner)
	if err != nil {
		return nil, err
	}
	t := &Tree{Group{legacy: map[string]string{}}}
	for controller, parent := range s.parents("cpu", "memory", "pids") {
		sweep(parent, log)
		folder := filepath.Join(parent, name)
		if err := makeFolder(folder); err == nil {
			t.group.legacy[controller] = folder
		} else if controller == "cpu" {
			return nil, errors.Join(fmt.Errorf("make group: %w", err), t.Close())
		}
	}
	if t.group.legacy["cpu"] == "" {
		return nil, errors.Join(fmt.Errorf("cgroup version 1: cpu: %w is mounted", ErrNoController), t.Close())
	}
	return t.tried()
}

// FixV1 returns the command that prepares a group, if making one was not permitted. In
// version 1 the owner of a group may make groups in it and move their own processes there.
func FixV1(err error) string {
	var denied *fs.PathError
	if !errors.As(err, &denied) || !errors.Is(err, fs.ErrPermission) {
		return ""
	}
	dir := filepath.Dir(denied.Path)
	if filepath.Base(dir) != preparedName {
		dir = filepath.Join(dir, preparedName)
	}
	return fmt.Sprintf(`sudo mkdir -p %s && sudo chown -R "$(id -u)" %s`, dir, dir)
}

// OpenV2 makes the tree in this process's group, or in the nearest group above that accepts
// it. In version 2 a group that holds processes itself gives no controller to its children,
// unless it is the root. The tree is therefore usually in the group above.
func OpenV2(owner int, log zerolog.Logger) (*Tree, error) {
	s, err := find()
	if err != nil {
		return nil, err
	}
	m, err := s.unified()
	if err != nil {
		return nil, err
	}
	offered, err := m.controllers()
	if err != nil {
		return nil, err
	}
	if !offered["cpu"] {
		return nil, fmt.Errorf("cgroup version 2 at %s: cpu: %w in cgroup.controllers", m.point, ErrNoController)
	}
	name, err := ownerName(owner)
	if err != nil {
		return nil, err
	}
	var t *Tree
	if err := s.nearest(m, func(parent string) (err error) {
		sweep(parent, log)
		t, err = openV2In(m.point, parent, name)
		return err
	}); err != nil {
		return nil, fmt.Errorf("cgroup version 2: %w", err)
	}
	return t, nil
}

// controllers returns what version 2 offers to all groups.
func (m mount) controllers() (map[string]bool, error) {
	text, err := os.ReadFile(filepath.Join(m.point, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("cgroup version 2: %w", err)
	}
	offered := map[string]bool{}
	for controller := range strings.FieldsSeq(string(text)) {
		offered[controller] = true
	}
	return offered, nil
}

func openV2In(mountpoint, parent, name string) (*Tree, error) {
	// To move a process, one needs write access to the closest group above both its old and
	// its new group.
	f, err := os.OpenFile(filepath.Join(parent, procsFile), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	f.Close()
	t := &Tree{Group{unified: filepath.Join(parent, name)}}
	if err := makeFolder(t.group.unified); err != nil {
		return nil, err
	}
	// A group gives its children the controllers that its own parent gives to it.
	rest, err := filepath.Rel(mountpoint, t.group.unified)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	at := mountpoint
	var refused error // by the nearest group above the tree
	for part := range strings.SplitSeq(rest, "/") {
		if err := enable(at, "cpu"); err != nil {
			refused = err
		}
		_ = enable(at, "memory", "pids")
		at = filepath.Join(at, part)
	}
	if !isFile(filepath.Join(t.group.unified, "cpu.max")) {
		if refused == nil {
			refused = fmt.Errorf("%s: cpu: %w", parent, ErrNoController)
		}
		return nil, errors.Join(refused, t.Close())
	}
	if err := enable(t.group.unified, "cpu"); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	_ = enable(t.group.unified, "memory", "pids")
	return t.tried()
}

// FixV2 returns the command that starts a node in its own group, if the kernel has the controller.
func FixV2(err error) string {
	if errors.Is(err, ErrNoController) {
		return ""
	}
	return "systemd-run --user --scope -p Delegate=yes penstock up"
}

// tried returns t if it can hold a quota: it makes a group, writes the finest possible quota, reads it back, and
// removes the group. Otherwise it closes t.
func (t *Tree) tried() (*Tree, error) {
	const name = "probe"
	g, err := t.Make(name, true)
	if err == nil {
		err = g.try()
	}
	if err = errors.Join(err, t.Remove(name)); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (g *Group) try() error {
	want := QuotaFor(30, 1)
	if err := g.SetQuota(want); err != nil {
		return err
	}
	got, err := g.Quota()
	if err == nil && got != want {
		err = fmt.Errorf("wrote a quota of %v in %v, read %v in %v", want.Runtime, want.Period, got.Runtime, got.Period)
	}
	for _, level := range []budget.Level{budget.MaxLevel, budget.Demoted, budget.MinLevel} {
		if err == nil {
			err = g.Prioritize(level)
		}
	}
	return err
}

// asideName is the group of all processes without a share. It does not divide CPUs between the groups in it.
const asideName = "aside"

// Make makes a group, which may exist. Without cpu, its processes compete with others of that kind as if they were in
// one group.
func (t *Tree) Make(name string, cpu bool) (*Group, error) {
	if t.group.unified == "" {
		g := &Group{legacy: map[string]string{}}
		if !cpu {
			return g, nil
		}
		g.legacy["cpu"] = filepath.Join(t.group.legacy["cpu"], name)
		return g, makeFolder(g.legacy["cpu"])
	}
	parent := t.group.unified
	if !cpu {
		parent = filepath.Join(parent, asideName)
		if err := makeFolder(parent); err != nil {
			return nil, err
		}
		_ = enable(parent, "memory", "pids")
	}
	g := &Group{unified: filepath.Join(parent, name)}
	return g, makeFolder(g.unified)
}

// Hold makes a group with limits for a process that is about to start. The error wraps ErrNotEnforced for each limit
// that is not in force; the result is valid nevertheless.
func (t *Tree) Hold(name string, l Limits, cpu bool) (*Group, Held, error) {
	g, err := t.Make(name, cpu)
	if err != nil {
		return nil, Held{}, NotEnforced(fmt.Errorf("make group of %s: %w", name, err))
	}
	h := Held{}
	if l.MemoryBytes > 0 {
		err = t.limit(g, name, "memory", func() error { return h.Counters.limitMemory(g, l.MemoryBytes) })
	}
	if l.Tasks > 0 {
		err = errors.Join(err, t.limit(g, name, "pids", func() error { return h.Counters.limitTasks(g, l.Tasks) }))
	}
	for _, folder := range g.folders() {
		h.Join = append(h.Join, filepath.Join(folder, procsFile))
	}
	return g, h, err
}

// limit sets one limit. In version 1 it makes the group's folder for it.
func (t *Tree) limit(g *Group, name, controller string, set func() error) (err error) {
	if parent := t.group.legacy[controller]; parent != "" {
		folder := filepath.Join(parent, name)
		if err = makeFolder(folder); err == nil {
			g.legacy[controller] = folder
		}
	}
	if err == nil {
		err = set()
	}
	if err != nil {
		return fmt.Errorf("%s is %w: %w", limitKeys[controller], ErrNotEnforced, err)
	}
	return nil
}

// Remove removes a group that this process or another orchestrator made. It may not exist.
func (t *Tree) Remove(name string) (err error) {
	for _, folder := range t.group.folders() {
		err = errors.Join(err, remove(filepath.Join(folder, name)))
	}
	if t.group.unified != "" {
		err = errors.Join(err, remove(filepath.Join(t.group.unified, asideName, name)))
	}
	return err
}

// Weigh keeps groups from reducing the functions' part of the machine: the tree weighs as much as n ordinary
// processes.
func (t *Tree) Weigh(n int) error { return t.group.weigh(n) }

// Close removes all groups. The processes must have ended.
func (t *Tree) Close() error { return t.group.Remove() }
