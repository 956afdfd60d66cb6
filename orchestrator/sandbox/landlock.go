package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Landlock's rights (landlock(7)), by what a Spec calls them.
const (
	rightsFile    = syscall.AccessFSReadFile
	rightsRead    = rightsFile | syscall.AccessFSReadDir
	rightsExecute = rightsRead | syscall.AccessFSExecute
	rightsChange  = syscall.AccessFSWriteFile | syscall.AccessFSTruncate
	// A program makes no device files, and executes what it has written only through an
	// interpreter.
	rightsWrite = rightsRead | rightsChange | syscall.AccessFSRemoveDir | syscall.AccessFSRemoveFile | syscall.AccessFSMakeDir |
		syscall.AccessFSMakeReg | syscall.AccessFSMakeSock | syscall.AccessFSMakeFifo | syscall.AccessFSMakeSym | syscall.AccessFSRefer
	rightsDevice = rightsRead | rightsChange | syscall.AccessFSIoctlDev
	// rightsOfFiles are the ones that make sense for what is not a folder; the kernel
	// refuses the others there.
	rightsOfFiles = rightsFile | rightsChange | syscall.AccessFSExecute | syscall.AccessFSIoctlDev
	// rightsKnown are all that are withheld unless a rule grants them: those of version 5.
	// Version 9 adds connections to sockets by path, which the modes of folders guard here.
	rightsKnown = syscall.AccessFSIoctlDev<<1 - 1
)

// rule grants rights below a path.
type rule struct {
	path   string
	rights landlock.AccessFSSet
}

// rules are what Landlock is told of a Spec.
func (s *Spec) rules() (all []rule) {
	add := func(rights landlock.AccessFSSet, paths ...string) {
		for _, p := range paths {
			all = append(all, rule{p, rights})
		}
	}
	add(rightsExecute, s.Execute...)
	add(rightsExecute, s.Path)
	add(rightsRead, s.Read...)
	add(rightsWrite, s.Write...)
	add(rightsDevice, s.Devices...)
	if s.Dir != "" {
		add(rightsRead, s.Dir)
	}
	if s.Private != "" {
		add(rightsWrite, s.Private)
	}
	return all
}

// ownTasks is the folder of a process's threads.
const ownTasks = "/proc/self/task"

// threadNames is the folder below which CUDA may write the names of threads, which it insists
// on (cuInit fails with CUDA_ERROR_OPERATING_SYSTEM); empty without a GPU.
//
// Children have folders of their own, so it is all of /proc: modes keep foreign users' files
// and settings of the kernel from the program. They do not if it runs as root, whose
// children must do without CUDA.
func (s *Spec) threadNames(uid int) string {
	switch {
	case !s.GPU:
		return ""
	case uid == 0:
		return ownTasks
	}
	return "/proc"
}

// restrictFiles has the kernel hold the calling process to the Spec's paths, and keeps it
// from signalling processes outside of the sandbox. uid is who it will be. It also sets no_new_privs, and changes
// nothing else if the kernel has no Landlock.
func restrictFiles(s *Spec, uid int) error {
	version, err := syscall.LandlockGetABIVersion()
	if err != nil {
		return nil
	}
	handled := landlock.AccessFSSet(rightsKnown)
	if version < 2 {
		// The library would give up for a kernel that knows nothing of links (Linux 5.13
		// to 5.18). Such a kernel refuses them all.
		handled &^= syscall.AccessFSRefer
	}
	scoped := landlock.ScopedSet(syscall.ScopeSignal)
	if !s.GPU {
		scoped |= syscall.ScopeAbstractUnixSocket
	}
	config, err := landlock.NewConfig(handled, scoped)
	if err != nil {
		return fmt.Errorf("restrict files: %w", err)
	}
	var list []landlock.Rule
	rules := s.rules()
	if names := s.threadNames(uid); names != "" {
		rules = append(rules, rule{names, rightsChange})
	}
	for _, r := range rules {
		info, err := os.Stat(r.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("restrict files: %w", err)
		}
		rights := r.rights & handled
		if !info.IsDir() {
			rights &= rightsOfFiles
		}
		list = append(list, landlock.PathAccess(rights, r.path))
	}
	if err := config.BestEffort().Restrict(list...); err != nil {
		return fmt.Errorf("restrict files: %w", err)
	}
	return nil
}
