//go:build cgo

package cudafake_test

import (
	"bufio"
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
	"github.com/penstock/penstock/cuda/nvml"
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

func TestDevicesChild(t *testing.T) {
	switch os.Getenv(childEnv) {
	case "list":
		list()
	case "work":
		work(t)
	default:
		return
	}
	os.Exit(0)
}

// list prints the devices that CUDA shows, and those that NVML shows.
func list() {
	devices, err := cuda.Devices()
	if err != nil {
		fmt.Print(err)
	}
	for _, d := range devices {
		p, err := d.Properties()
		fmt.Printf("%s has %d SMs, %d MiB, %v\n", d.UUID(), p.SMs, p.MemoryBytes>>20, err)
	}
	s, err := nvml.Open()
	if instances, err := s.Instances(); err == nil {
		fmt.Printf("%+v\n", instances)
	}
	for i := 0; err == nil && i < 3; i++ {
		var u nvml.Usage
		u, err = s.Usage(cudafake.UUID(i))
		fmt.Printf("NVML: %d MiB\n", u.TotalBytes>>20)
	}
	fmt.Println(err)
}

// work works on the first device until that fails.
func work(t *testing.T) {
	c := open(t)
	s, at := must.Get(c.NewStream())(t), must.Get(c.Allocate(64))(t)
	fmt.Println("works")
	for {
		if err := errors.Join(s.Set(at, 0, 64), s.Synchronize()); err != nil {
			fmt.Println(err)
			return
		}
	}
}

func devicesChild(how string, env ...string) *exec.Cmd {
	cmd := child(how, append(env, cudafake.NVML(os.Getenv("PENSTOCK_LIBCUDA")))...)
	cmd.Args[1] = "-test.run=^TestDevicesChild$"
	return cmd
}

func TestDevices(t *testing.T) {
	conditions := must.Get(cudafake.NewConditions(filepath.Join(t.TempDir(), "gpus")))(t)
	settings := cudafake.Env(cudafake.Devices(3), conditions.Setting())
	const visible = "CUDA_VISIBLE_DEVICES="
	first, second, third := cudafake.UUID(0)+" has 132 SMs, 1024 MiB", cudafake.UUID(1)+" has 116 SMs, 896 MiB", cudafake.UUID(2)+" has 100 SMs, 768 MiB"
	for _, c := range []struct {
		name string
		gone int
		env  []string
		want []string
	}{
		{"all", -1, []string{settings}, []string{first, second, third, "NVML: 1024 MiB", "NVML: 896 MiB", "NVML: 768 MiB"}},
		{"a number of the environment", -1, []string{"PENSTOCK_FAKE_GPUS=2"}, []string{first, second, "NVML: 1024 MiB", "NVML: 896 MiB", "NVML: 0 MiB", "no such device"}},
		{"visible", -1, []string{settings, visible + cudafake.UUID(2) + ",0"}, []string{third, first, "NVML: 1024"}},
		{"prefix, and what hides the rest", -1, []string{settings, visible + "GPU-fa1,7,0"}, []string{second, "NVML: 1024"}},
		{"none is visible", -1, []string{settings, visible}, []string{"NO_DEVICE", "NVML: 1024"}},
		{"instances", -1, []string{cudafake.Env(cudafake.Devices(2), cudafake.MIG(0))},
			[]string{cudafake.Instance(0) + " has 66 SMs, 512 MiB", second, "MIG 3g.0gb SMs:66 MemoryBytes:536870912} {UUID:" + cudafake.Instance(1) + " GPU:" + cudafake.UUID(0)}},
		{"the first visible instance", -1, []string{cudafake.Env(cudafake.MIG(0)), visible + cudafake.Instance(1) + "," + cudafake.Instance(0)},
			[]string{cudafake.Instance(1) + " has 66 SMs, 512 MiB"}},
		{"a divided GPU", -1, []string{cudafake.Env(cudafake.MIG(0)), visible + cudafake.UUID(0)}, []string{"NO_DEVICE"}},
		{"gone", 0, []string{settings}, []string{second, third, "NVML: 0 MiB", "GPU is lost"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.gone >= 0 {
				must.OK(t, conditions.Set(c.gone, cudafake.Condition{Gone: true}))
				defer conditions.Set(c.gone, cudafake.Condition{})
			}
			out, err := devicesChild("list", c.env...).CombinedOutput()
			rest := string(out)
			for _, want := range c.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("%v:\n%s\nwithout %q", err, out, want)
				}
				rest = after
			}
			if n := strings.Count(string(out), "has "); n != strings.Count(strings.Join(c.want, ""), "has ") {
				t.Errorf("%d devices:\n%s", n, out)
			}
		})
	}
}

func TestConditions(t *testing.T) {
	conditions := must.Get(cudafake.NewConditions(filepath.Join(t.TempDir(), "gpus")))(t)
	settings := cudafake.Env(cudafake.Devices(2), conditions.Setting())
	for want, c := range map[string]cudafake.Condition{"(700)": {Fault: int32(cuda.IllegalAddress)}, "(719)": {Gone: true}} {
		t.Run(want, func(t *testing.T) {
			defer conditions.Set(1, cudafake.Condition{})
			cmd := devicesChild("work", settings, "CUDA_VISIBLE_DEVICES="+cudafake.UUID(1))
			out := bufio.NewScanner(must.Get(cmd.StdoutPipe())(t))
			must.OK(t, cmd.Start())
			defer cmd.Process.Kill()
			must.OK(t, conditions.Set(0, c)) // the other device
			defer conditions.Set(0, cudafake.Condition{})
			if !out.Scan() || out.Text() != "works" {
				t.Fatalf("got %q", out.Text())
			}
			must.OK(t, conditions.Set(1, c))
			if !out.Scan() || !strings.Contains(out.Text(), want) {
				t.Errorf("got %q", out.Text())
			}
		})
	}
	const opens = 300 * time.Millisecond
	must.OK(t, conditions.Set(0, cudafake.Condition{Opens: opens, Fault: 46}))
	began := time.Now()
	out, _ := devicesChild("work", settings).CombinedOutput()
	if time.Since(began) < opens || !strings.Contains(string(out), "DEVICE_UNAVAILABLE (46)") {
		t.Errorf("after %v: %s", time.Since(began), out)
	}
}
