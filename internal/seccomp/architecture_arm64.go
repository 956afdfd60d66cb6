package seccomp

import "golang.org/x/sys/unix"

// Architecture is the one of this machine, as the kernel reports it to filters.
const Architecture = unix.AUDIT_ARCH_AARCH64
