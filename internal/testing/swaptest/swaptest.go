// Package swaptest builds what tests of guests need without a GPU: the libraries, a driver whose memory all
// guests share, and a guest. Their sources are in cuda/swap and cuda/yield.
package swaptest

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Library is the swap library's path below the folder that Build fills.
const Library = "lib/libpenstock-swap.so"

const yieldLibrary = "lib/libpenstock-yield.so"

// Require skips a test on machines for which there is no swap library.
func Require(t *testing.T) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("not on this machine: the swap library has x86-64 assembly")
	}
}

// Build compiles everything into a folder. source is the folder cuda/swap, and flags are further flags of the
// C compiler.
func Build(source, dir string, flags ...string) error {
	driver := filepath.Join(dir, "libcuda.so.1")
	cc := func(args ...string) *exec.Cmd {
		return exec.Command("cc", append(append([]string{"-std=gnu11", "-O1", "-g"}, flags...), args...)...)
	}
	library := func(source, path string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(source, "library/build.sh"), filepath.Join(dir, path))
		cmd.Env = append(os.Environ(), "CFLAGS="+strings.Join(flags, " "))
		return cmd
	}
	for _, build := range []*exec.Cmd{
		library(source, Library),
		library(filepath.Join(source, "../yield"), yieldLibrary),
		cc("-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, filepath.Join(source, "testdata/driver.c"), "-lpthread", "-ldl"),
		cc("-o", filepath.Join(dir, "guest"), filepath.Join(source, "testdata/guest.c"), driver, "-lpthread", "-ldl"),
	} {
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", build.Args, err, out)
		}
	}
	return nil
}

// Environment returns the variables of a guest on a GPU with that much memory. Guests with the same file share
// the GPU. dir is a folder that Build filled.
func Environment(dir, file string, memoryBytes int64) []string {
	return []string{"LD_LIBRARY_PATH=" + dir, "FAKE_GPU=" + file, fmt.Sprintf("FAKE_GPU_MEMORY=%d", memoryBytes)}
}

// UsedBytes returns how much memory a process has on the GPU of a file.
func UsedBytes(file string, pid int) int64 {
	slots, _ := os.ReadFile(file)
	for ; len(slots) >= slotBytes; slots = slots[slotBytes:] {
		if int(binary.NativeEndian.Uint32(slots)) == pid {
			return int64(binary.NativeEndian.Uint64(slots[8:]))
		}
	}
	return 0
}

// slotBytes is the size of a process's entry in the file: a 32-bit process id, padding, and 64-bit bytes.
const slotBytes = 16
