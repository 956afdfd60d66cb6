package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Become changes groups and user of only the calling thread. Package syscall would change
// all threads through libc, but execve ends the others anyway.
func Become(u *User) error {
	groups := make([]uint32, len(u.Groups))
	for i, g := range u.Groups {
		groups[i] = uint32(g)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); errno != 0 {
		return fmt.Errorf("set groups of user %s: %w", u.Name, errno)
	}
	gid, uid := uintptr(u.GID), uintptr(u.UID)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return fmt.Errorf("become group %d: %w", u.GID, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return fmt.Errorf("become user %s: %w", u.Name, errno)
	}
	return nil
}
