package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/python"
	"github.com/penstock/penstock/manager/source/dpdk"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/mps"
	"github.com/penstock/penstock/shm"
)

// finding is one line of the doctor's.
type finding struct {
	what string
	ok   bool
	say  string // what was found
	mend string // the command or the setting that mends it; empty where nothing need be
	// fatal: no node runs with this configuration unless it is mended.
	fatal bool
}

func doctorCommand() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can and cannot do, and how to mend it",
		Long: `Checks what Penstock builds on and says of each thing that is missing what it costs
and which command mends it. The exit status is 1 when a node could not run here.`,
		Example: `  penstock doctor`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := flags.load()
			if err != nil {
				return err
			}
			healthy := true
			list := examine(int64(c.Slab.ReceiveBuffer), c.ReservedCPUs)
			list = append(list, examineGPU(cmd.Context(), c, gpuQuestions{nvml.Open, mps.Try, mps.Strangers, onnx.Library})...)
			list = append(list, examinePython(cmd.Context(), pythonQuestions{python.Command, python.PyTorch, python.PyTorchElsewhere})...)
			list = append(list, examineDPDK(dpdkMachine{root: "/", version: dpdk.Version()}, dpdkWishOf(c))...)
			for _, f := range list {
				mark := "ok  "
				if !f.ok {
					mark = "no  "
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %-18s %s\n", mark, f.what, f.say)
				if f.mend != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "     %-18s -> %s\n", "", f.mend)
				}
				healthy = healthy && (f.ok || !f.fatal && !vital[f.what])
			}
			if !healthy {
				return exitStatus(1)
			}
			return nil
		},
	}
	flags.register(cmd)
	return cmd
}

// vital are the findings that no node runs without.
var vital = map[string]bool{"onnx runtime": true, "shared memory": true}

func examine(receiveBuffer int64, reserved int) []finding {
	managerCPUs, ifCPUs := orchestrator.IFCPUs(reserved)
	cpus := finding{what: "cpus", ok: len(managerCPUs) > 0,
		say: fmt.Sprintf("%d; manager on %v, inference functions on %v (their 100 %%)", runtime.NumCPU(), managerCPUs, ifCPUs)}
	if !cpus.ok {
		cpus.mend = "one CPU is shared by manager and inference functions; expect late answers"
	}
	list := []finding{cpus}
	taken := false
	for _, f := range orchestrator.Probe() {
		line := finding{what: f.Mechanism, ok: f.Usable, say: f.Why, mend: f.Mend}
		switch {
		case f.Usable && !taken:
			line.say, taken = "holds the shares here", true
		case f.Usable:
			line.say = "works too"
		case taken: // a better one works
			line.mend = ""
		}
		list = append(list, line)
	}
	return append(list, runtimeLibrary(), sharedMemory(), hugePages(), socketBuffer(receiveBuffer), segmentation())
}

func runtimeLibrary() finding {
	path, err := onnx.Library()
	if err != nil {
		return finding{what: "onnx runtime", say: err.Error(), mend: "make build"}
	}
	return finding{what: "onnx runtime", ok: true, say: path}
}

func sharedMemory() finding {
	r, err := shm.Create("penstock-doctor", 1<<20, shm.Options{})
	if err != nil {
		return finding{what: "shared memory", say: err.Error(), mend: "a kernel with memfd_create and sealing (Linux 5.1 or newer)"}
	}
	defer r.Close()
	return finding{what: "shared memory", ok: true, say: "memfd, sealed"}
}

func hugePages() finding {
	f := finding{what: "huge pages"}
	text, err := os.ReadFile("/proc/sys/vm/nr_hugepages")
	if err != nil {
		f.say = "none in this kernel; the slab takes ordinary pages"
		return f
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if f.ok = n > 0; f.ok {
		f.say = fmt.Sprintf("%d of 2 MiB", n)
		return f
	}
	f.say = "none; the slab takes ordinary pages, which costs a little"
	f.mend = "sysctl vm.nr_hugepages=128"
	return f
}

// socketBuffer tries what the manager does: SO_RCVBUFFORCE, then SO_RCVBUF.
func socketBuffer(want int64) finding {
	f := finding{what: "receive buffer"}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.say = err.Error()
		return f
	}
	defer unix.Close(fd)
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, int(want)) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, int(want))
	}
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		f.say = err.Error()
		return f
	}
	got /= 2 // the kernel doubles what it is asked for (socket(7))
	if f.ok = int64(got) >= want; f.ok {
		f.say = fmt.Sprintf("%d KiB", got>>10)
		return f
	}
	f.say = fmt.Sprintf("%d KiB of %d: bursts of pictures may be dropped by the kernel", got>>10, want>>10)
	f.mend = fmt.Sprintf("sysctl net.core.rmem_max=%d", want)
	return f
}

// segmentation asks for UDP_GRO as the source does.
func segmentation() finding {
	f := finding{what: "udp gro"}
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		f.say = err.Error()
		return f
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, unix.UDP_GRO, 1) })
	}
	if err != nil {
		f.say = fmt.Sprintf("%v: each datagram costs a system call's share of its own", err)
		f.mend = "Linux 5.0 or newer"
		return f
	}
	f.ok, f.say = true, "many datagrams a read"
	return f
}
