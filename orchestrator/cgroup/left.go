package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/procstat"
)

// The name of the group that holds the groups of all processes identifies its owner, the
// processes' parent. It has the owner's process id and, as the kernel reuses ids, its
// start time in clock ticks since boot.
const namePrefix = "penstock-"

func ownerName(pid int) (string, error) {
	stat, err := procstat.Read(pid)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%d-%d", namePrefix, pid, stat.Number(procstat.StartTime)), nil
}

// orphaned reports whether the owner in a group's name no longer exists.
func orphaned(name string) bool {
	rest, ok := strings.CutPrefix(name, namePrefix)
	parts := strings.SplitN(rest, "-", 3) // a group for guests has a third part
	if !ok || len(parts) < 2 {
		return false
	}
	pid, err := strconv.Atoi(parts[0])
	_, failed := strconv.ParseUint(parts[1], 10, 64)
	if err != nil || failed != nil {
		return false
	}
	now, err := ownerName(pid)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return now != namePrefix+parts[0]+"-"+parts[1]
}

// sweep removes the groups that dead orchestrators left in dir. It keeps a group that holds
// a process. If a container has its own process ids but the machine's groups, its
// orchestrator only looks dead from here.
func sweep(dir string, log zerolog.Logger) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // Open reports why it cannot use dir
	}
	for _, e := range entries {
		if !e.IsDir() || !orphaned(e.Name()) {
			continue
		}
		left := filepath.Join(dir, e.Name())
		if !strings.Contains(e.Name(), "-guest-") { // `penstock run` ends those
			endLeft(left)
		}
		// In version 1 only the kernel knows of processes of another pid namespace, and refuses the removal.
		var err error = unix.EBUSY
		if len(members(left)) == 0 {
			err = removeAll(left)
		}
		switch {
		case errors.Is(err, unix.EBUSY):
			log.Debug().Str("group", left).Msg("control group is in use by an orchestrator of another pid namespace; keeping it")
		case err != nil:
			log.Warn().Err(err).Str("group", left).Msg("cannot remove the control groups of an orchestrator that has ended")
		default:
			log.Info().Str("group", left).Msg("removed the control groups of an orchestrator that has ended")
		}
	}
}

// endLeft kills the processes in the groups of functions of a node that was killed. The kernel ended the processes that
// the node had started, but not those that they had started. A process of this pid namespace was a process
// of that node; one of another namespace may belong to a container's node that runs.
func endLeft(dir string) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return
	}
	foreign := func(pid int) bool {
		namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		return err != nil || namespace != own
	}
	left := Group{unified: dir}
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		pids := members(dir)
		switch ours := slices.DeleteFunc(slices.Clone(pids), foreign); {
		case len(ours) == 0:
			return
		case len(ours) == len(pids) && left.killAtOnce() == nil:
		default:
			signal(ours, unix.SIGKILL)
		}
	}
}

// members lists the processes in a group, and in those in it. In version 2 the kernel lists a process of another pid
// namespace as 0.
func members(dir string) (pids []int) {
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != procsFile {
			return nil
		}
		text, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

func signal(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, sig) // it may have ended meanwhile
	}
}

// removeAll removes a group and the groups in it.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

// remove removes a group, and those in it, that may not exist. Its last process may still be leaving.
func remove(folder string) error {
	err := removeAll(folder)
	for deadline := time.Now().Add(timeout); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		err = removeAll(folder)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
