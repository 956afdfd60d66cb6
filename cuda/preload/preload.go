// Package preload finds the libraries that are preloaded into guests. They share the C code in preload.h.
package preload

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Find returns the path of a library, which lies in the folder lib next to a binary. how says how to build it.
func Find(binary, file, how string) (string, error) {
	path := filepath.Join(filepath.Dir(binary), "lib", file)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find library: %w; %s", err, how)
	}
	if strings.ContainsAny(path, " :") {
		return "", fmt.Errorf("preload %q: LD_PRELOAD cannot name a path with a space or a colon", path)
	}
	return path, nil
}

// Variable returns the environment variable that preloads libraries. The loader looks for a symbol in the
// first one first. Libraries that this process's environment names come last.
func Variable(paths ...string) (name, value string) {
	const variable = "LD_PRELOAD" // ld.so(8)
	if before := os.Getenv(variable); before != "" {
		paths = append(paths[:len(paths):len(paths)], before)
	}
	return variable, strings.Join(paths, ":")
}
