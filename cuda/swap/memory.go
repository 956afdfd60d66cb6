package swap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// SocketVariable is the environment variable that has the server's socket.
const SocketVariable = "PENSTOCK_SWAP"

// libraryFile is the library, in the folder lib next to the binary.
const libraryFile = "libpenstock-swap.so"

// Environment returns the variable that preloads the library, which lies in lib next to a binary.
// The guest needs SocketVariable too.
func Environment(binary string) (string, error) {
	path := filepath.Join(filepath.Dir(binary), "lib", libraryFile)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find swap library: %w; `make swap-library` builds it, on x86-64 only", err)
	}
	if strings.ContainsAny(path, " :") {
		return "", fmt.Errorf("preload %q: LD_PRELOAD cannot name a path with a space or a colon", path)
	}
	if before := os.Getenv("LD_PRELOAD"); before != "" {
		path += ":" + before
	}
	return "LD_PRELOAD=" + path, nil
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
