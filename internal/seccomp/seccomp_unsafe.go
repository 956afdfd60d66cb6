// Package seccomp begins filters of system calls, and installs them.
package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (seccomp.h).
const (
	offsetNumber       = 0
	offsetArchitecture = 4
)

// Begin returns the start of a program, which loads the number of the call. A call of a foreign architecture ends the
// process; otherwise it would be a way around a list of refusals. A call of amd64's x32 fails with ENOSYS.
func Begin() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArchitecture, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: Architecture, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		// x32's calls have this bit; other architectures have no such numbers.
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: 1 << 30, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}
}

// Install gives the calling thread, which has no_new_privs, a filter. It returns the descriptor of
// SECCOMP_FILTER_FLAG_NEW_LISTENER.
func Install(program []bpf.Instruction, flags uintptr) (fd int, err error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return -1, fmt.Errorf("assemble seccomp filter: %w", err)
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	filter := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	listener, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return -1, fmt.Errorf("install seccomp filter: %w", errno)
	}
	return int(listener), nil
}
