package dpdk

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/nodetest"
	"golang.org/x/sys/unix"
)

const (
	// wantedVariable names the penstock binary with DPDK to test; `make test-dpdk`
	// sets it. Without it no test runs.
	wantedVariable = "PENSTOCK_DPDK_BINARY"
	// insideVariable says that the test binary runs in its own namespaces.
	insideVariable = "PENSTOCK_DPDK_LABORATORY"
)

// penstock is the binary under test; why is the reason if there is none.
var penstock, why string

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the tests' runtime folders must be private, also if new files are group-writable by default
	flag.Parse()
	penstock = os.Getenv(wantedVariable)
	switch {
	case penstock == "":
		why = wantedVariable + " is not set: make test-dpdk builds penstock with DPDK and sets it"
	case os.Geteuid() != 0:
		fmt.Fprintln(os.Stderr, "test/dpdk: namespaces and raw sockets want root")
		os.Exit(1)
	case os.Getenv(insideVariable) == "":
		os.Exit(enter())
	default:
		if err := settle(); err != nil {
			fmt.Fprintln(os.Stderr, "test/dpdk: make the laboratory:", err)
			os.Exit(1)
		}
	}
	nodetest.Binary = penstock
	os.Exit(m.Run())
}

// enter runs this binary in new namespaces and returns its exit status. The new process
// is the first one there, so when it ends, the kernel ends all others.
func enter() int {
	runtime.LockOSThread() // the kernel sends Pdeathsig when the thread that started the process ends
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/dpdk:", err)
		return 1
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "test/dpdk: make namespaces: %v\n", err)
		return 1
	}
	// go test sends SIGQUIT at its timeout. The stacks of the inner process show the
	// reason.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "test/dpdk:", err)
	return 1
}

// settle prepares the new namespaces: mounts made here are not visible elsewhere,
// /proc shows these processes, and /sys shows this network.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := showNetwork(); err != nil {
		return err
	}
	path, err := filepath.Abs(penstock)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("find penstock: %w", err)
	}
	penstock = path
	for _, tool := range []string{"ip", "ethtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("find %s: %w; apt-get install iproute2 ethtool", tool, err)
		}
	}
	return run("ip", "link", "set", "lo", "up")
}

// showNetwork mounts a /sys that shows the interfaces of this thread's network, over
// the machine's. The cgroups below it stay.
func showNetwork() error {
	const dir = "/sys/class/net"
	if err := unix.Mount("sysfs", "/mnt", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	defer unix.Unmount("/mnt", unix.MNT_DETACH)
	// Links below /sys/class/net are relative and lead into the old /sys/devices, so
	// the folder of virtual devices is mounted, too.
	for _, d := range []string{"/devices/virtual/net", "/class/net"} {
		if err := unix.Mount("/mnt"+d, "/sys"+d, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("show interfaces in %s: %w", dir, err)
		}
	}
	return nil
}

// run runs a command and includes its output in the error.
func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}
