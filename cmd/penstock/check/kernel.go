package check

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm"
)

var kernelChecks = []row{
	{subject: "shared memory", vital: true, run: sharedMemory},
	{subject: "huge pages", run: hugePages},
	{subject: "receive buffer", run: receiveBuffer},
	{subject: "udp gro", run: udpGRO},
}

func sharedMemory(context.Context, *machine) Finding {
	r, err := shm.Create("penstock-doctor", 1<<20, shm.Options{})
	if err != nil {
		return fail(err.Error(), "install a kernel with memfd_create and sealing (Linux 5.1 or newer)")
	}
	defer r.Close()
	return pass("memfd, sealed")
}

func hugePages(context.Context, *machine) Finding {
	text, err := os.ReadFile("/proc/sys/vm/nr_hugepages")
	if err != nil {
		return fail("not in this kernel; the slab uses ordinary pages", "")
	}
	if n, _ := strconv.Atoi(strings.TrimSpace(string(text))); n > 0 {
		return pass(fmt.Sprintf("%d of 2 MiB", n))
	}
	return fail("none; the slab uses ordinary pages, which are a little slower", "sysctl vm.nr_hugepages=128")
}

// receiveBuffer asks for the buffer as the manager does: SO_RCVBUFFORCE, then SO_RCVBUF.
func receiveBuffer(_ context.Context, m *machine) Finding {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	defer unix.Close(fd)

	want := int(m.config.Slab.ReceiveBuffer)
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, want) != nil {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, want)
	}
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return failed(err)
	}

	got /= 2 // the kernel doubles the size (socket(7))
	if got < want {
		return fail(fmt.Sprintf("%d KiB of %d: the kernel may drop bursts of pictures", got>>10, want>>10),
			fmt.Sprintf("sysctl net.core.rmem_max=%d", want))
	}
	return pass(fmt.Sprintf("%d KiB", got>>10))
}

// udpGRO asks for UDP_GRO as the manager does.
func udpGRO(context.Context, *machine) Finding {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return failed(err)
	}
	defer conn.Close()

	raw, err := conn.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) })
	}
	if err != nil {
		return fail(fmt.Sprintf("%v; each datagram costs its own share of a system call", err), "install Linux 5.0 or newer")
	}
	return pass("many datagrams per read")
}
