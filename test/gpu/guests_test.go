//go:build gpu

package gpu

import (
	"bufio"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// makeContext is the beginning of a guest in Python.
const makeContext = `
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name} returned {status}")
device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
`

// faultingProgram writes to an address that is not mapped, from a kernel. Its exit status is 42 if CUDA
// reports that.
const faultingProgram = makeContext + `
call("cuModuleLoadData", ctypes.byref(module), b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 8;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
""")
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"fault")
call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
sys.exit(42 if cuda.cuCtxSynchronize() else 0)
`

// runFaultingGuest runs the program as a guest, and returns its status and what it printed.
func runFaultingGuest(t *testing.T, n *node.Node, flags ...string) (status int, output string) {
	t.Helper()
	args := append([]string{"run", "--runtime-dir", n.Dir}, flags...)
	out, err := exec.CommandContext(t.Context(), penstock, append(args, "--", "python3", "-c", faultingProgram)...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		status = exit.ExitCode()
	}
	t.Logf("penstock run %s: status %d: %s", strings.Join(flags, " "), status, strings.TrimSpace(string(out)))
	return status, string(out)
}

// TestGuestFault lets a guest's kernel fault. Outside MPS no function notices. Inside MPS all functions
// lose their processes, and come back; the guest is not run again.
func TestGuestFault(t *testing.T) {
	n := start(t, `
functions:
  - {name: fashion, port: 0, slo: 10s}
  - {name: face, port: 0, slo: 10s}
`)
	fashion, face := send(t, n, "fashion", 400), send(t, n, "face", 100)
	for _, s := range []*stream{fashion, face} {
		s.flows(t)
	}
	for _, name := range []string{"fashion", "face"} {
		nodetest.Serving(t, n, name)
	}

	if status, out := runFaultingGuest(t, n, "--own"); status != 42 {
		t.Errorf("outside MPS the guest ended with %d: %s", status, out)
	}
	if faults := status(t, n).Devices[0].Faults; faults.Count != 0 {
		t.Errorf("the node counts %d faults of the GPU for a guest outside MPS", faults.Count)
	}
	beside := max(fashion.longestPause(), face.longestPause())

	if status, out := runFaultingGuest(t, n); status == 0 {
		t.Errorf("inside MPS the guest ended as if its kernel had not faulted: %s", out)
	}
	wait.For(t, "the node to count the fault", func() bool { return status(t, n).Devices[0].Faults.Count > 0 })
	for _, name := range []string{"fashion", "face"} {
		nodetest.Serving(t, n, name)
	}
	fashion.flows(t)
	face.flows(t)
	if status, out := runFaultingGuest(t, n); status != 125 || !strings.Contains(out, "the GPU failed") {
		t.Errorf("the command ends with %d the second time, want a refusal: %s", status, out)
	}
	for _, s := range []*stream{fashion, face} {
		s.stop().answeredAll(t, 2*8)
	}
	faults := status(t, n).Devices[0].Faults
	if faults.Count != 1 {
		t.Errorf("the node counts %d faults, want 1", faults.Count)
	}
	pause := max(fashion.longestPause(), face.longestPause())
	t.Logf("longest silence next to the fault outside MPS %v, after that inside %v (goal 1.5s)", beside, pause)
	if pause > 10*time.Second {
		t.Errorf("functions were silent for %v", pause)
	}
}

// busyProgram keeps kernels queued that write to memory, and prints a line when the first have run.
const busyProgram = makeContext + `
memory = ctypes.c_uint64()
call("cuModuleLoadData", ctypes.byref(module), b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry write(.param .u64 at)
{
    .reg .u64 %address;
    .reg .u32 %n;
    .reg .pred %more;
    ld.param.u64 %address, [at];
    mov.u32 %n, 0;
loop:
    st.volatile.global.u32 [%address], %n;
    add.u32 %n, %n, 1;
    setp.lt.u32 %more, %n, 1000;
    @%more bra loop;
    ret;
}
""")
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"write")
call("cuMemAlloc_v2", ctypes.byref(memory), 1 << 20)
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
def launch():
    for _ in range(100):
        call("cuLaunchKernel", kernel, 1056, 1, 1, 128, 1, 1, 0, None, parameters, None)
launch()
call("cuCtxSynchronize")
print("runs", flush=True)
while True:
    launch()
`

// TestGuestEnd ends guests whose kernels run, next to a busy function. A client of MPS that is killed then may
// fail the GPU for all clients.
func TestGuestEnd(t *testing.T) {
	n := start(t, "functions: [{name: fashion, port: 0, slo: 10s}]\n")
	fashion := send(t, n, "fashion", 400)
	fashion.flows(t)
	nodetest.Serving(t, n, "fashion")
	for i := range 8 {
		guest := exec.CommandContext(t.Context(), penstock, "run", "--runtime-dir", n.Dir, "--name", "busy", "--", "python3", "-c", busyProgram)
		out, err := guest.StdoutPipe()
		if err == nil {
			err = guest.Start()
		}
		must.OK(t, err)
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("guest printed %q: %v", line, err)
		}
		time.Sleep(200 * time.Millisecond)
		if i%2 == 0 {
			err = guest.Process.Signal(syscall.SIGTERM)
		} else {
			err = exec.CommandContext(t.Context(), penstock, "guest", "stop", "busy", "--runtime-dir", n.Dir).Run()
		}
		must.OK(t, err)
		_ = guest.Wait() // by a signal, or with an error of CUDA
		time.Sleep(300 * time.Millisecond)
	}
	fashion.flows(t)
	fashion.stop().answeredAll(t, 0)
	if faults := status(t, n).Devices[0].Faults; faults.Count != 0 {
		t.Errorf("the node counts %d faults of the GPU", faults.Count)
	}
	t.Logf("longest silence %v", fashion.longestPause())
}

// allocatingProgram allocates up to 4 GiB, prints how many MiB it got, and keeps them.
const allocatingProgram = `
import os
for name in sys.argv[1:]:
    os.environ.pop(name, None)
` + makeContext + `
mib, block = 0, ctypes.c_uint64()
while mib < 4096 and cuda.cuMemAlloc_v2(ctypes.byref(block), 64 << 20) == 0:
    mib += 64
print("has", mib, "MiB", flush=True)
import time
time.sleep(5 if mib < 4096 else 60)
`

// TestGuestMemory runs guests with a limit of 1 GiB. One keeps it: MPS counts 2 MiB of its context as part of that. The others remove it from their environment, and leave
// MPS; the node ends them.
func TestGuestMemory(t *testing.T) {
	n := start(t, "functions: [{name: fashion, port: 0, slo: 10s}]\n")
	fashion := send(t, n, "fashion", 400)
	fashion.flows(t)
	nodetest.Serving(t, n, "fashion")
	for _, c := range []struct {
		name   string
		remove []string
		status int
		want   string
	}{
		{"within", nil, 0, "has 960 MiB"},
		{"limit removed", []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}, 137, "and its limit is 1024 MiB"},
		{"outside MPS", []string{"CUDA_MPS_PIPE_DIRECTORY"}, 137, "and its limit is 1024 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"run", "--runtime-dir", n.Dir, "--memory", "1GiB", "--", "python3", "-c", "import sys\n" + allocatingProgram}
			out, err := exec.CommandContext(t.Context(), penstock, append(args, c.remove...)...).CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			status := 0
			if exit != nil {
				status = exit.ExitCode()
			}
			if t.Logf("%s", out); status != c.status || !strings.Contains(string(out), c.want) {
				t.Errorf("status %d, want %d and %q", status, c.status, c.want)
			}
		})
	}
	fashion.flows(t)
	fashion.stop().answeredAll(t, 0)
}
