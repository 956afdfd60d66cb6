package sandbox

import "golang.org/x/sys/unix"

var refusedHere = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT}
