package tensors

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Scratch is private memory for tensors. It is page-aligned and outside the Go
// heap, as frameworks expect.
type Scratch []byte

func NewScratch(bytes int) (Scratch, error) {
	b, err := unix.Mmap(-1, 0, max(1, bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for tensors: %w", bytes, err)
	}
	return b, nil
}

func (s Scratch) Free() error { return unix.Munmap(s) }
