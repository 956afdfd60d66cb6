//go:build cgo

package cudafake_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

// childEnv makes TestChild leave memory on the fake GPU, and crash or exit.
const childEnv = "PENSTOCK_FAKE_CHILD"

func TestMain(m *testing.M) { cudafake.Main(m) }

func open(t *testing.T) *cuda.Context {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	d, err := cuda.Find("cuda")
	must.OK(t, err)
	c, err := d.OpenContext()
	must.OK(t, err)
	must.OK(t, c.Bind())
	return c
}

func TestChild(t *testing.T) {
	how := os.Getenv(childEnv)
	if how == "" {
		return // this test is only the child of the tests below
	}
	must.Get(open(t).Allocate(12345))(t)
	if how == "die" {
		fmt.Println("allocated")
		time.Sleep(time.Minute)
	}
}

func child(how string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(append(os.Environ(), childEnv+"="+how), env...)
	return cmd
}

func TestLeaks(t *testing.T) {
	out, err := child("end").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Allocations:1 Bytes:12345") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	cmd := child("die", cudafake.Env(cudafake.Report(path), cudafake.SMs(64)))
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Error(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	a, err := cudafake.ReadReport(path)
	if want := (cudafake.Accounts{Contexts: 1, Allocations: 1, Bytes: 12345}); err != nil || a != want {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := cudafake.ReadReport(path + "x"); err == nil {
		t.Error("a report was read that is not there")
	}
	os.WriteFile(path, []byte("short"), 0o600)
	if _, err := cudafake.ReadReport(path); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a short report: %v", err)
	}
}

func TestSettings(t *testing.T) {
	c := open(t)
	defer c.Close()
	t.Run("inside", func(t *testing.T) {
		cudafake.Apply(t, cudafake.SMs(64), cudafake.Devices(2), cudafake.Memory(1<<20))
		devices, err := cuda.Devices()
		if err != nil || len(devices) != 2 {
			t.Errorf("%v, %v", devices, err)
		}
	})
	devices, err := cuda.Devices()
	if err != nil || len(devices) != 1 {
		t.Errorf("after the test: %v, %v", devices, err)
	}
	if p, err := devices[0].Properties(); err != nil || p.SMs != 132 || p.MemoryBytes != 1<<30 {
		t.Errorf("after the test: %+v, %v", p, err)
	}
	if got, want := cudafake.Env(cudafake.Refuse("cuX", 2, 3), cudafake.Fault("k", 0, cuda.IllegalAddress), cudafake.Late(time.Millisecond)),
		"PENSTOCK_FAKE=cuX#2=3 kernel:k#1=700 late=1000us"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestRefuse(t *testing.T) {
	c := open(t)
	defer c.Close()
	cudafake.Apply(t, cudafake.Refuse("cuMemGetInfo_v2", 2, cuda.OutOfMemory))
	for turn := 1; turn <= 3; turn++ {
		if _, _, err := c.Memory(); (err != nil) != (turn == 2) {
			t.Errorf("call %d: %v", turn, err)
		}
	}
}

func TestBuildErrors(t *testing.T) {
	_, err := cudafake.Build(t.TempDir(), cudafake.Kernels("this is no C"))
	if err == nil || !strings.Contains(err.Error(), "kernels0.c") {
		t.Errorf("the error is %v", err)
	}
	if _, err := cudafake.Build("/nowhere"); err == nil {
		t.Error("built where nothing is")
	}
}

// In this case a real driver's cuGraphLaunch crashes, or copies memory that
// belongs to another allocation by then.
func TestGraphFreedMemory(t *testing.T) {
	for what, pinned := range map[string]bool{"pinned": true, "of the device": false} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in use again: %v", what, again), func(t *testing.T) {
				const bytes = 64 << 10
				c := open(t)
				defer c.Close()
				defer cudafake.Reset()
				made := func() cuda.Pointer {
					if pinned {
						mem, err := c.AllocateHost(bytes)
						check(t, err)
						return cuda.At(mem)
					}
					p, err := c.Allocate(bytes)
					check(t, err)
					return p
				}
				gone := func(p cuda.Pointer) {
					if pinned {
						check(t, c.FreeHost(cuda.Bytes(p, bytes)))
					} else {
						check(t, c.Free(p))
					}
				}
				to, err := c.Allocate(bytes)
				check(t, err)
				from := made()
				s, err := c.NewStream()
				check(t, err)
				check(t, s.Capture())
				check(t, s.Copy(to, from, bytes))
				g, err := s.EndCapture()
				check(t, err)
				x, err := g.Retarget(s)
				check(t, err)
				check(t, errors.Join(x.Launch(s), s.Synchronize()))
				gone(from)
				if again {
					defer func(p cuda.Pointer) { cudafake.Reset(); gone(p) }(made())
				}
				if err := x.Launch(s); !errors.Is(err, cuda.ErrLost) {
					t.Errorf("got %v", err)
				}
				cudafake.Reset()
				check(t, errors.Join(x.Destroy(), g.Destroy(), s.Destroy(), c.Free(to)))
			})
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	must.OK(t, err)
}
