package kubetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// prefix begins the names of folders and cgroups of clusters.
const prefix = "penstock-cluster-"

// folder holds all files of a cluster. The process that made it locks it, so others see when that process is gone.
type folder struct {
	path string
	lock *os.File
}

// newFolder makes a locked folder. It first removes what processes left behind that were killed.
func newFolder() (*folder, error) {
	parent, err := os.Open(os.TempDir())
	if err != nil {
		return nil, fmt.Errorf("make the folder of a cluster: %w", err)
	}
	defer parent.Close()

	// Under the parent's lock, no folder exists that its owner has not locked yet.
	if err := unix.Flock(int(parent.Fd()), unix.LOCK_EX); err != nil {
		return nil, os.NewSyscallError("flock", err)
	}
	if err := sweep(parent.Name()); err != nil {
		return nil, fmt.Errorf("remove what killed clusters left: %w", err)
	}

	path, err := os.MkdirTemp(parent.Name(), prefix)
	if err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return &folder{path: path, lock: lock}, nil
}

func (f *folder) file(elements ...string) string {
	return filepath.Join(append([]string{f.path}, elements...)...)
}

// remove removes the folder and the cgroups that have its name. No process of the cluster runs any more.
func (f *folder) remove() error {
	defer f.lock.Close()
	return removeAll(f.path)
}

// sweep removes folders that are not locked.
func sweep(parent string) error {
	paths, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return err
	}

	var failures []error
	for _, path := range paths {
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			failures = append(failures, removeAll(path))
		}
		dir.Close()
	}
	return errors.Join(failures...)
}

func removeAll(path string) error {
	return errors.Join(removeCgroups(filepath.Base(path)), os.RemoveAll(path))
}

// cgroupRoot is where systems mount control groups: version 2 itself, or a folder per controller of version 1.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the roots of all control group trees.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, nil
	}

	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, e := range entries {
		// Names such as cpuacct can be links to cpu,cpuacct.
		if e.IsDir() {
			roots = append(roots, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return roots, nil
}

// makeCgroups makes a group in each tree, and lets it use what its parent can.
func makeCgroups(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return fmt.Errorf("find control groups: %w", err)
	}

	for _, root := range roots {
		group := filepath.Join(root, name)
		if err := os.MkdirAll(group, 0o755); err != nil {
			return fmt.Errorf("make a control group: %w", err)
		}

		for parent := filepath.Dir(group); strings.HasPrefix(parent, root); parent = filepath.Dir(parent) {
			text, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
			if err != nil {
				break // version 1
			}
			for controller := range strings.FieldsSeq(string(text)) {
				// Some controllers cannot be passed on. The kubelet names those that it lacks.
				_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0)
			}
		}

		// In version 1, a new group has no CPUs and no memory nodes: it inherits nothing.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if err := inherit(root, name, file); err != nil {
				return fmt.Errorf("prepare a control group: %w", err)
			}
		}
	}
	return nil
}

// inherit copies a file of version 1 from the root to every group on the way to name.
func inherit(root, name, file string) error {
	value, err := os.ReadFile(filepath.Join(root, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for group := root; err == nil && name != ""; {
		element, rest, _ := strings.Cut(name, "/")
		group, name = filepath.Join(group, element), rest
		err = os.WriteFile(filepath.Join(group, file), value, 0)
	}
	return err
}

// removeCgroups removes the group and all below it, in each tree.
func removeCgroups(name string) error {
	roots, err := hierarchies()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	failures := []error{err}
	for _, root := range roots {
		var groups []string
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
		for i := len(groups) - 1; i >= 0; i-- {
			failures = append(failures, os.Remove(groups[i]))
		}
	}
	return errors.Join(failures...)
}
