package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Landlock's rights (landlock(7)), by their names in Spec.
const (
	rightsFile    = syscall.AccessFSReadFile
	rightsRead    = rightsFile | syscall.AccessFSReadDir
	rightsExecute = rightsRead | syscall.AccessFSExecute
	rightsChange  = syscall.AccessFSWriteFile | syscall.AccessFSTruncate
	// A program cannot make device files, and can execute what it has written only through an interpreter.
	rightsWrite = rightsRead | rightsChange | syscall.AccessFSRemoveDir | syscall.AccessFSRemoveFile | syscall.AccessFSMakeDir |
		syscall.AccessFSMakeReg | syscall.AccessFSMakeSock | syscall.AccessFSMakeFifo | syscall.AccessFSMakeSym | syscall.AccessFSRefer
	rightsDevice = rightsRead | rightsChange | syscall.AccessFSIoctlDev
	// rightsOfFiles are the rights that apply to paths other than folders. For those the kernel refuses all
	// other rights.
	rightsOfFiles = rightsFile | rightsChange | syscall.AccessFSExecute | syscall.AccessFSIoctlDev
	// rightsKnown are the rights of version 5, which Landlock withholds unless a rule grants them. Version 9
	// adds connections to sockets by path; here the modes of folders guard those.
	rightsKnown = syscall.AccessFSIoctlDev<<1 - 1
)

// rule grants rights below a path.
type rule struct {
	path   string
	rights landlock.AccessFSSet
}

// rules converts a Spec to Landlock's rules.
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

// threadNames returns the folder below which CUDA may write the names of threads; empty without a GPU.
// Without that right cuInit fails with CUDA_ERROR_OPERATING_SYSTEM.
//
// Each child has another folder, so the result is all of /proc. The modes there keep the program from
// other users' files and from settings of the kernel. They do not if the program runs as root, whose children
// must do without CUDA.
func (s *Spec) threadNames(uid int) string {
	switch {
	case !s.GPU:
		return ""
	case uid == 0:
		return ownTasks
	}
	return "/proc"
}

// restrictFiles makes the kernel hold the calling process to the Spec's paths. It also keeps the process from
// signalling processes outside the sandbox, and sets no_new_privs. uid is the user that it will become. If
// the kernel has no Landlock, restrictFiles does nothing.
func restrictFiles(s *Spec, uid int) error {
	version, err := syscall.LandlockGetABIVersion()
	if err != nil {
		return nil
	}
	handled := landlock.AccessFSSet(rightsKnown)
	if version < 2 {
		// The library would give up on a kernel without the right for links (Linux 5.13 to 5.18). Such a
		// kernel refuses all of them.
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
