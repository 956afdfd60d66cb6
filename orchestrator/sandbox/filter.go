package sandbox

import (
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/seccomp"
)

// The seccomp filter refuses system calls that no inference function needs. They change the
// machine, look into other processes, or open large parts of the kernel to attack. The
// filter lists refusals and not permissions, as no list could foresee all calls of GPU
// drivers, PyTorch and users' programs.
//
// The filter is assembled here. Go's libraries for that permit the calls of a foreign
// architecture (int 0x80), which would be a way around a list of refusals.

// refused lists the calls that fail with EPERM.
var refused = append([]uint32{
	// file systems
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
	unix.SYS_FSPICK, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_FANOTIFY_INIT, unix.SYS_ACCT,
	// other processes
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE,
	// The processes that a function starts stay in its process group. The keeper can then end all of them.
	unix.SYS_SETSID, unix.SYS_SETPGID,
	// namespaces
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	// large parts of the kernel
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_USERFAULTFD, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_PERSONALITY,
	// the machine
	unix.SYS_REBOOT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE,
	unix.SYS_DELETE_MODULE, unix.SYS_SYSLOG, unix.SYS_VHANGUP, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME,
}, refusedHere...)

// ownOnly lists the calls that change limits, priority, CPUs or memory of a process that an argument
// names. Functions have the same user, so the kernel would permit such a call on a neighbour. The
// filter permits them for the calling thread only: each argument must have this value. A filter cannot know
// the ids of a process's other threads.
var ownOnly = []struct {
	number    uint32
	arguments []uint32 // from the first on
}{
	{unix.SYS_PRLIMIT64, []uint32{0}},
	{unix.SYS_SCHED_SETSCHEDULER, []uint32{0}},
	{unix.SYS_SCHED_SETPARAM, []uint32{0}},
	{unix.SYS_SCHED_SETATTR, []uint32{0}},
	{unix.SYS_SCHED_SETAFFINITY, []uint32{0}},
	{unix.SYS_MIGRATE_PAGES, []uint32{0}},
	{unix.SYS_MOVE_PAGES, []uint32{0}},
	{unix.SYS_SETPRIORITY, []uint32{unix.PRIO_PROCESS, 0}},
	{unix.SYS_IOPRIO_SET, []uint32{ioprioProcess, 0}},
}

// outliving lists the calls that make shared memory, semaphores and queues that outlive all processes. They would
// fill the machine's memory beyond a function's limit. On a GPU MPS may need them.
var outliving = []uint32{unix.SYS_SHMGET, unix.SYS_SEMGET, unix.SYS_MSGGET, unix.SYS_MQ_OPEN}

// ioprioProcess is IOPRIO_WHO_PROCESS (linux/ioprio.h).
const ioprioProcess = 1

// refusedFlags lists calls that fail if an argument has one of these flags.
var refusedFlags = []struct {
	number, argument, flags uint32
}{
	// A child of the keeper, which does not wait for it, would stay a zombie.
	{unix.SYS_CLONE, 0, newNamespaces | unix.CLONE_PARENT},
	// No limit of memory counts the machine's huge pages. The manager makes slabs of them.
	{unix.SYS_MMAP, 3, unix.MAP_HUGETLB},
	{unix.SYS_MEMFD_CREATE, 1, unix.MFD_HUGETLB},
}

// newNamespaces are the flags of clone that make namespaces (sched.h).
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Offsets in struct seccomp_data (seccomp.h), little-endian: the lower half of an argument
// comes first.
const (
	offsetArgument0 = 16
	argumentBytes   = 8
)

// filter returns the program, in cBPF. clone3 has its flags in memory, which a filter cannot read. It fails with ENOSYS,
// after which libraries call clone.
func filter(gpu bool) []bpf.Instruction {
	var (
		pass    = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
		refuse  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
		unknown = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	)
	p := append(seccomp.Begin(),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		unknown,
		// socket: AF_UNIX only.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offsetArgument0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 1},
		refuse,
		pass,
	)
	for _, call := range refusedFlags {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call.number, SkipTrue: 4},
			bpf.LoadAbsolute{Off: offsetArgument0 + call.argument*argumentBytes, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: call.flags, SkipTrue: 1}, refuse, pass)
	}
	for _, call := range ownOnly {
		n := uint8(len(call.arguments))
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call.number, SkipTrue: 3*n + 1})
		for i, want := range call.arguments {
			p = append(p, bpf.LoadAbsolute{Off: offsetArgument0 + uint32(i)*argumentBytes, Size: 4},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: want, SkipTrue: 1}, refuse)
		}
		p = append(p, pass)
	}
	all := refused
	if !gpu {
		all = slices.Concat(refused, outliving)
	}
	for _, number := range all {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: 1}, refuse)
	}
	return append(p, pass)
}
