package swap

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/penstock/penstock/cuda/preload"
)

// SocketVariable is the environment variable that has the server's socket.
const SocketVariable = "PENSTOCK_SWAP"

// libraryFile is the library, in the folder lib next to the binary.
const libraryFile = "libpenstock-swap.so"

// Library returns the path of the library, which lies in the folder lib next to a binary. The guest needs
// SocketVariable too.
func Library(binary string) (string, error) {
	return preload.Find(binary, libraryFile, "`make guest-libraries` builds it, on x86-64 only")
}

// availableBytes is the memory that the host can give without swapping.
func availableBytes() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read available memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("read available memory: /proc/meminfo has no MemAvailable")
}
