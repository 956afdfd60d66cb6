package sandbox

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// WithholdDescriptors makes the programs that this process starts inherit none of its present descriptors from
// first on. The shell that started this process may have passed open files, which functions and guests must not
// get.
func WithholdDescriptors(first int) error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
