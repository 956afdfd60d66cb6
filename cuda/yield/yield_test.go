package yield

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
)

var built = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "yield"); err != nil {
		return "", err
	}
	driver := filepath.Join(dir, "libcuda.so.1")
	if err := os.Mkdir(filepath.Join(dir, "old"), 0o700); err != nil {
		return dir, err
	}
	for _, build := range []*exec.Cmd{
		exec.Command("library/build.sh", filepath.Join(dir, "lib/libpenstock-yield.so")),
		exec.Command("cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wl,-Bsymbolic,-soname,libcuda.so.1", "-o", driver, "testdata/driver.c", "-ldl"),
		exec.Command("cc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-DOLD", "-Wl,-Bsymbolic,-soname,libcuda.so.1", "-o", filepath.Join(dir, "old/libcuda.so.1"), "testdata/driver.c", "-ldl"),
		exec.Command("cc", "-std=gnu11", "-O1", "-o", filepath.Join(dir, "guest"), "testdata/guest.c", driver, "-ldl"),
	} {
		if out, err := build.CombinedOutput(); err != nil {
			return dir, &buildError{build.Args, string(out)}
		}
	}
	return dir, nil
})

type buildError struct {
	args []string
	out  string
}

func (e *buildError) Error() string { return strings.Join(e.args, " ") + ": " + e.out }

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := built(); dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// guest returns a program that launches in all ways, with the library.
func guest(t *testing.T, file string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := built()
	must.OK(t, err)
	library, err := Library(filepath.Join(dir, "penstock"))
	must.OK(t, err)
	cmd := exec.Command(filepath.Join(dir, "guest"), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "LD_PRELOAD="+library, FileVariable+"="+file)
	return cmd
}

// busyFile returns a busy file, and the bit of a function.
func busyFile(t *testing.T) (path string, bit *shm.BusyBit) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "busy")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must.OK(t, err)
	file, err := shm.OpenBusyFile(f)
	must.OK(t, err)
	t.Cleanup(func() { file.Close() })
	_, locks, err := file.Files()
	must.OK(t, err)
	word, err := os.OpenFile(path, os.O_RDWR, 0)
	must.OK(t, err)
	if bit, err = shm.OpenBusyBit(word, locks); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bit.Close() })
	return path, bit
}

// launches are what the program prints: launches and their streams. 1 and 2 are the default streams of a
// process and of a thread.
var launches = [][2]string{
	{"wait 5", "cuLaunchKernel 5"}, {"wait 2", "cuLaunchKernel_ptsz 0"}, {"wait 7", "cuLaunchKernelEx 7"}, {"wait 2", "cuLaunchKernelEx_ptsz 0"},
	{"wait 1", "cuLaunchCooperativeKernel 0"}, {"wait 5", "cuLaunchCooperativeKernel_ptsz 5"}, {"wait 1", "cuGraphLaunch 0"}, {"wait 9", "cuGraphLaunch_ptsz 9"},
}

// lines returns what the program prints if all launches wait, or none.
func lines(wait bool) string {
	var b strings.Builder
	for _, l := range launches {
		if wait {
			b.WriteString(l[0] + "\n")
		}
		b.WriteString(l[1] + "\n")
	}
	return b.String()
}

func TestYield(t *testing.T) {
	for _, mode := range []string{"link", "dlsym", "proc", "proc11"} {
		t.Run(mode, func(t *testing.T) {
			path, bit := busyFile(t)
			if !bit.Begin(shm.Now()) {
				t.Fatal("no bit")
			}
			var out, stderr bytes.Buffer
			cmd := guest(t, path, mode)
			cmd.Stdout, cmd.Stderr = &out, &stderr
			must.OK(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				t.Errorf("the guest did not wait for the function: %v", err)
			case <-time.After(50 * time.Millisecond):
				bit.End()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			if out.String() != lines(true) || stderr.Len() > 0 {
				t.Errorf("printed %s%s; want %s", &out, &stderr, lines(true))
			}
		})
	}
}

// TestPass runs guests that cannot wait, or must not.
func TestPass(t *testing.T) {
	path, bit := busyFile(t)
	if !bit.Begin(shm.Now()) {
		t.Fatal("no bit")
	}
	for _, row := range []struct {
		name, file, fails string
		args              []string
		says              string
	}{
		// A registration during a capture would end the capture with an error.
		{name: "capture", file: path, args: []string{"proc", "capture"}},
		{name: "no file", file: "", args: []string{"proc"}},
		{name: "missing file", file: path + "x", args: []string{"proc"}, says: "busyx: No such file or directory"},
		{name: "register", file: path, fails: "cuMemHostRegister_v2", args: []string{"proc"}, says: "register the busy word: CUDA error 999"},
		{name: "address", file: path, fails: "cuMemHostGetDevicePointer_v2", args: []string{"proc"}, says: "find the busy word's address: CUDA error 999"},
		// The driver cannot say so of a stream whose capture has failed.
		{name: "capture unknown", file: path, fails: "cuStreamIsCapturing", args: []string{"proc"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := guest(t, row.file, row.args...)
			cmd.Env = append(cmd.Env, "FAKE_FAIL="+row.fails)
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || string(out) != lines(false) {
				t.Errorf("%v, printed %s; want all launches without a wait", err, out)
			}
			if said := stderr.String(); !strings.Contains(said, row.says) || strings.Count(said, "\n") != min(1, len(row.says)) {
				t.Errorf("said %q, want one line with %q", said, row.says)
			}
		})
	}

	t.Run("old driver", func(t *testing.T) {
		cmd := guest(t, path, "proc")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Join(filepath.Dir(cmd.Path), "old"))
		out, err := cmd.Output()
		if err != nil || string(out) != lines(false) || stderr.String() != "penstock yield: wait for functions: the driver is too old; kernels do not wait for functions\n" {
			t.Errorf("%v, printed %s, said %q", err, out, &stderr)
		}
	})

	bit.End()
	// The context that registered the word may have ended, so it is registered again once.
	t.Run("wait fails once", func(t *testing.T) {
		cmd := guest(t, path, "proc")
		cmd.Env = append(cmd.Env, "FAKE_FAIL=wait", "FAKE_FAIL_TIMES=1")
		out, err := cmd.CombinedOutput()
		if want := "wait 5\n" + lines(true); err != nil || string(out) != want {
			t.Errorf("%v, printed %s; want %s", err, out, want)
		}
	})
	t.Run("wait fails", func(t *testing.T) {
		cmd := guest(t, path, "proc")
		cmd.Env = append(cmd.Env, "FAKE_FAIL=wait")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if want := "wait 5\nwait 5\n" + lines(false); err != nil || string(out) != want {
			t.Errorf("%v, printed %s; want %s", err, out, want)
		}
		if !strings.Contains(stderr.String(), "wait for functions: CUDA error 999") {
			t.Errorf("said %q, want the error", &stderr)
		}
	})
}
