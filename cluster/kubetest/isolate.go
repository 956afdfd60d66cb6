package kubetest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Isolated starts the program three more times:
//
//	outer        waits; its death closes the supervisor's pipe
//	supervisor   is in a session of its own; removes files and control groups
//	init         process 1 of the namespaces; its death kills all below
//	main         the test or demo
//
// stage is the environment variable that says which one a process is.
const stage = "PENSTOCK_CLUSTER_STAGE"

const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC

// Isolated runs main in namespaces of its own for processes, mounts and the network, and returns its result. Nodes
// need that: what they start and mount ends with main, and the network of this machine does not change. TestMain and
// main call it first. Without the rights to make namespaces, it only runs main, and StartNodes fails.
func Isolated(main func() int) int {
	code, err := 1, error(nil)
	switch os.Getenv(stage) {
	case "":
		if !mayIsolate() {
			return main()
		}
		code, err = outer()
	case "supervisor":
		code, err = supervise()
	case "init":
		code, err = first()
	case "main":
		return main()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "isolate the cluster:", err)
	}
	return code
}

// isolated reports whether this is main in its namespaces.
func isolated() bool { return os.Getenv(stage) == "main" }

// mayIsolate tries to make the namespaces.
func mayIsolate() bool {
	try := exec.Command("true")
	try.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	return os.Geteuid() == 0 && try.Run() == nil
}

// again is this program with its arguments, as another stage.
func again(next string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stage+"="+next)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// outer passes the end of a pipe to the supervisor.
func outer() (int, error) {
	cmd := again("supervisor")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	return exitCode(cmd.Wait(), alive)
}

// exitCode returns how a stage ended. The pipe is open until then.
func exitCode(err error, alive io.Closer) (int, error) {
	if alive != nil {
		alive.Close()
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	default:
		return 1, err
	}
}

// supervise kills the namespaces when the outer process is gone, and cleans when they are gone.
func supervise() (int, error) {
	runtime.LockOSThread() // for the parent-death signal
	cmd := again("init")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, err
	}

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	go func() {
		<-stop
		_ = cmd.Process.Kill()
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = cmd.Process.Kill()
	}()

	code, err := exitCode(cmd.Wait(), nil)
	return code, errors.Join(err, sweep(os.TempDir()))
}

// first prepares the namespaces, starts main, and waits for all orphans until main has ended.
func first() (int, error) {
	if err := prepareMounts(); err != nil {
		return 1, err
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("set lo up: %w: %s", err, out)
	}

	cmd := again("main")
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, os.NewSyscallError("wait4", err)
		case pid == cmd.Process.Pid && status.Signaled():
			return 1, fmt.Errorf("the program ended: %s", status.Signal())
		case pid == cmd.Process.Pid:
			return status.ExitStatus(), nil
		}
	}
}

// tunables are what a kubelet insists on. It would set them for the whole machine, and they would stay.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// prepareMounts lets programs write to system folders without a trace.
func prepareMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount / private", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return os.NewSyscallError("mount /proc", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return os.NewSyscallError("mount /run", err)
	}

	for _, dir := range []string{"/var/lib", "/var/log"} {
		upper, work := filepath.Join("/run/upper", dir), filepath.Join("/run/work", dir)
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		options := "lowerdir=" + dir + ",upperdir=" + upper + ",workdir=" + work
		if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
			return os.NewSyscallError("mount "+dir, err)
		}
	}

	for name, value := range tunables {
		source, target := filepath.Join("/run/tunables", name), filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			continue // this kernel lacks it
		}
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(source, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return os.NewSyscallError("mount "+target, err)
		}
	}
	return nil
}

// clearNamespaces ends all processes but init and this one, and removes a cluster's mounts and network.
func clearNamespaces(folder string) error {
	for {
		// As for all programs, -1 excludes process 1 and the caller. Init reaps the others.
		err := unix.Kill(-1, unix.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			break
		}
		if err != nil {
			return os.NewSyscallError("kill", err)
		}
		time.Sleep(5 * time.Millisecond)
	}

	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		point := strings.Fields(line)[1]
		if strings.HasPrefix(point, folder+"/") || strings.HasPrefix(point, "/run/netns") {
			points = append(points, point)
		}
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			return os.NewSyscallError("unmount "+point, err)
		}
	}
	return errors.Join(os.RemoveAll("/run/netns"), ip("link del br0"))
}
