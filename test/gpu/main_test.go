//go:build gpu

package gpu

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testing/cudatest"
	"github.com/penstock/penstock/internal/testing/gputest"
	"github.com/penstock/penstock/internal/testing/mpstest"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/nulltest"
	"github.com/penstock/penstock/internal/testing/onnxtest"
)

var (
	// penstock is the binary under test: PENSTOCK_BINARY, or the one in this
	// binary's folder.
	penstock string
	// session reports the memory in use on the GPU with that UUID.
	session nvml.Session
	uuid    string
)

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the tests' runtime folders must be private, also if new files are group-writable by default
	cudatest.Child()
	gputest.Child()
	nulltest.Child()
	mpstest.Child()
	onnxtest.Child()
	if err := find(); err != nil {
		fmt.Fprintln(os.Stderr, "test/gpu:", err)
		os.Exit(1)
	}
	nodetest.Binary = penstock
	flag.Parse()
	code, skipped := watched(m)
	if len(skipped) > 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "test/gpu: skipped, which a GPU server must not: %s\n", strings.Join(skipped, ", "))
		code = 1
	}
	os.Exit(code)
}

// find finds what every test needs.
func find() error {
	penstock = os.Getenv("PENSTOCK_BINARY")
	if penstock == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		penstock = filepath.Join(filepath.Dir(self), "penstock")
	}
	if _, err := os.Stat(penstock); err != nil {
		return fmt.Errorf("find penstock: %w; PENSTOCK_BINARY says where it is", err)
	}
	var err error
	if session, err = nvml.Open(); err != nil {
		return fmt.Errorf("find a GPU: %w", err)
	}
	// Take CUDA's first one: CUDA_VISIBLE_DEVICES may have selected another of
	// several.
	device, err := cuda.Find("cuda")
	if err != nil {
		return fmt.Errorf("find a GPU: %w", err)
	}
	uuid = device.UUID()
	return nil
}

// watched runs the tests and returns the names of skipped ones. Package testing
// reports them only on standard output, and only in verbose mode.
func watched(m *testing.M) (code int, skipped []string) {
	if err := flag.Set("test.v", "true"); err != nil {
		fmt.Fprintln(os.Stderr, "test/gpu:", err)
		return 1, nil
	}
	out := os.Stdout
	r, w, err := os.Pipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/gpu:", err)
		return 1, nil
	}
	os.Stdout = w
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadString('\n')
			io.WriteString(out, line)
			if name, found := strings.CutPrefix(strings.TrimSpace(line), "--- SKIP: "); found {
				skipped = append(skipped, name)
			}
			if err != nil {
				return
			}
		}
	}()
	code = m.Run()
	w.Close()
	<-done
	os.Stdout = out
	return code, skipped
}
