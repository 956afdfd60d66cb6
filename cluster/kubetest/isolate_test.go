package kubetest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/wait"
)

// victimVariable lets TestMain run victim.
const victimVariable = "PENSTOCK_CLUSTER_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" {
		os.Exit(Isolated(victim))
	}
	os.Exit(Isolated(m.Run))
}

// victim is the program that TestIsolatedEnds kills: it makes what a cluster with nodes makes, and waits.
func victim() int {
	folder, err := newFolder()
	if err == nil {
		err = errors.Join(
			makeCgroups(filepath.Base(folder.path)+"/node-1"),
			makeBridge(),
			os.WriteFile("/var/lib/penstock-victim", nil, 0o644),
			os.Mkdir(folder.file("mount"), 0o755),
			unix.Mount("tmpfs", folder.file("mount"), "tmpfs", 0, ""),
			// A shim of containerd is in a session of its own, and an orphan, as this is.
			exec.Command("setsid", "--fork", "sleep", "4242").Run(),
		)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "victim:", err)
		return 1
	}
	fmt.Println("victim", folder.path)
	select {}
}

// Whichever process of Isolated is killed, nothing is left.
func TestIsolatedEnds(t *testing.T) {
	if !isolated() {
		t.Skip("not on this machine: namespaces need root")
	}

	for _, victim := range []string{"outer", "supervisor", "init", "main"} {
		t.Run(victim, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), stage+"=", victimVariable+"=1")
			output, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}

			folder := awaitLine(t, output, "victim ")
			chain := []int{cmd.Process.Pid}
			for range 3 {
				chain = append(chain, child(t, chain[len(chain)-1]))
			}
			killed := chain[map[string]int{"outer": 0, "supervisor": 1, "init": 2, "main": 3}[victim]]
			if err := unix.Kill(killed, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()

			for _, pid := range chain {
				wait.For(t, "the end of process "+strconv.Itoa(pid), func() bool { return ended(pid) })
			}
			wait.For(t, "the end of the orphan", func() bool { return len(processes(t, "4242")) == 0 })
			wait.For(t, "the folder to be removed", func() bool {
				if victim == "supervisor" {
					// The next start cleans. A thread of a process that looks ended can still hold the lock.
					next, err := newFolder()
					if err != nil {
						t.Fatal(err)
					}
					defer next.remove()
				}
				return missing(folder)
			})

			roots, err := hierarchies()
			if err != nil {
				t.Fatal(err)
			}
			for _, root := range roots {
				if group := filepath.Join(root, filepath.Base(folder)); !missing(group) {
					t.Errorf("%s is left", group)
				}
			}
			if !missing("/var/lib/penstock-victim") {
				t.Error("a file in /var/lib is left")
			}
		})
	}
}

// awaitLine returns what follows the prefix in a line of output.
func awaitLine(t *testing.T, output io.Reader, prefix string) string {
	t.Helper()
	found := make(chan string, 1)
	go func() {
		defer close(found)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
				found <- rest
			}
		}
	}()
	select {
	case rest, ok := <-found:
		if !ok {
			t.Fatalf("the program ended before it wrote %q", prefix)
		}
		return rest
	case <-time.After(wait.Patience):
		t.Fatalf("waited %s for %q", wait.Patience, prefix)
		return ""
	}
}

// child returns the only child of a process that is this program, too.
func child(t *testing.T, parent int) int {
	t.Helper()
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range processes(t, "") {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", parent)) &&
			strings.HasPrefix(string(status), "Name:\t"+string(name)) {
			return pid
		}
	}
	t.Fatalf("process %d has no child", parent)
	return 0
}

// processes returns those whose command line contains a text.
func processes(t *testing.T, argument string) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			t.Fatal(err)
		}
		line, err := os.ReadFile(filepath.Join(path, "cmdline"))
		if err == nil && strings.Contains(string(line), argument) {
			found = append(found, pid)
		}
	}
	return found
}

// ended reports whether a process is gone, or only its parent has not noticed.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func missing(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}
