package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/oomscore"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
)

const nobodyUID = 65534

// rights returns the lines of a process's status that the sandbox changes.
func rights(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.OK(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "Uid", "CapEff", "NoNewPrivs", "Seccomp":
			lines = append(lines, name+"="+strings.Fields(value)[0])
		}
	}
	return strings.Join(lines, " ")
}

// public makes a file of a test's folder readable for every user.
func public(t *testing.T, file string) {
	t.Helper()
	dir := filepath.Dir(file)
	must.OK(t, errors.Join(os.Chmod(file, 0o644), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
}

func TestSandbox(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start nodes of other users")
	}
	// The module cache may be readable for root only.
	library, err := onnx.Library()
	if err != nil {
		t.Skip(err)
	}
	shared := filepath.Join(t.TempDir(), filepath.Base(library))
	text, err := os.ReadFile(library)
	must.OK(t, errors.Join(err, os.WriteFile(shared, text, 0o644)))
	public(t, shared)

	const none, all = "0000000000000000", "000001ff"
	for name, c := range map[string]struct {
		config string // the rest of the configuration
		user   int    // of the node
		status string
		rights string
	}{
		"root":         {status: "user nobody", rights: "Uid=65534 CapEff=" + none + " NoNewPrivs=1 Seccomp=2"},
		"without root": {user: nobodyUID, status: "own user", rights: "Uid=65534 CapEff=" + none + " NoNewPrivs=1 Seccomp=2"},
		"off":          {config: "sandbox: off\n", status: "off", rights: "Uid=0 CapEff=" + all},
	} {
		t.Run(name, func(t *testing.T) {
			card := nodetest.Card(t, "digest", small)
			public(t, card)
			config := c.config + oneFunction("face", ", slo: 10s") + "  - {name: other, model: " + card + ", port: 0, share_percent: 25}\n"
			n, err := node.Start(nodetest.Context(t), node.Options{Binary: penstock, Config: config, User: c.user, Environment: []string{onnx.LibraryVariable + "=" + shared}})
			must.OK(t, err)
			t.Cleanup(func() {
				n.Kill()
				if t.Failed() {
					t.Logf("node said:\n%s", n.Log())
				}
			})
			status, err := n.Status()
			must.OK(t, err)
			if status.Sandbox != c.status {
				t.Errorf("status says %q, want %q", status.Sandbox, c.status)
			}
			for _, f := range status.Functions {
				for _, p := range f.Instances[0].Processes {
					if p.PID == 0 || p.State == control.Starting {
						continue // its launcher may still be running
					}
					if got := rights(t, p.PID); !strings.HasPrefix(got, c.rights) {
						t.Errorf("process %d of %s: %s, want %s", p.PID, f.Name, got, c.rights)
					}
				}
			}

			// Functions share a user, but another process cannot claim to be a function without
			// its ticket.
			serves, _ := nodetest.Serving(t, n, "fn")
			_, _, _, err = control.DialAttach(control.AttachSocketPath(n.Dir), control.Attach{
				IF: "fn", Generation: serves.Generation, Ticket: strings.Repeat("0", 32),
			})
			if !errors.Is(err, control.ErrRefused) || !strings.Contains(err.Error(), "is not the one that was started") {
				t.Errorf("attach without a ticket: %v", err)
			}

			// The shipped model runs in ONNX Runtime, the other one computes a digest.
			model, err := (zoo.Registry{Cache: t.TempDir()}).Find("face")
			must.OK(t, err)
			for function, bytes := range map[string]int{"fn": model.Input.WireBytes(), "other": small} {
				result, err := nodetest.Dial(t, n, function, client.Options{Timeout: patience}).Do(t.Context(), nodetest.Picture(bytes, 1), client.RequestOptions{Tag: 1})
				if err != nil || result.Status != client.StatusOK {
					t.Errorf("%s: %v, %v", function, result.Status, err)
				}
				if function == "other" && !nodetest.Right(&result, bytes) {
					t.Error("other: wrong digest")
				}
			}
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// inheriting returns a program that runs penstock with an open file, as a shell with `9<file` does.
func inheriting(t *testing.T, file string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "penstock")
	text := fmt.Sprintf("#!/bin/sh\nexec 9<%s\nexec %s \"$@\"\n", file, penstock)
	must.OK(t, os.WriteFile(script, []byte(text), 0o755))
	return script
}

// The open files of the shell that started the node, or a guest, are not for functions and guests.
func TestInheritedDescriptors(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must.OK(t, os.WriteFile(secret, []byte("secret"), 0o600))
	outer := inheriting(t, secret)
	for _, sandbox := range []string{"", "sandbox: off\n"} {
		n, err := node.Start(nodetest.Context(t), node.Options{Binary: outer, Config: sandbox + oneFunction("face", ", slo: 10s")})
		must.OK(t, err)
		t.Cleanup(func() { n.Kill() })
		active, shadow := nodetest.Serving(t, n, "fn")
		for _, pid := range []int{active.PID, shadow.PID} {
			folder := fmt.Sprintf("/proc/%d/fd", pid)
			open, err := os.ReadDir(folder)
			must.OK(t, err)
			for _, e := range open {
				if target, _ := os.Readlink(filepath.Join(folder, e.Name())); target == secret {
					t.Errorf("%q: a function has the shell's descriptor %s", sandbox, e.Name())
				}
			}
		}
		out, err := exec.CommandContext(nodetest.Context(t), outer, "run", "--runtime-dir", n.Dir, "--", "ls", "-l", "/proc/self/fd").CombinedOutput()
		if err != nil || strings.Contains(string(out), secret) {
			t.Errorf("%q: a guest has the shell's descriptors: %v\n%s", sandbox, err, out)
		}
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// When the machine lacks memory, the kernel kills a process with a high score first.
func TestOOMScores(t *testing.T) {
	n, err := node.Start(nodetest.Context(t), node.Options{Binary: penstock, Config: oneFunction("face", ", slo: 10s")})
	must.OK(t, err)
	t.Cleanup(func() { n.Kill() })
	active, _ := nodetest.Serving(t, n, "fn")
	score := func(pid string) int {
		text, _ := os.ReadFile(filepath.Join("/proc", pid, "oom_score_adj"))
		value, err := strconv.Atoi(strings.TrimSpace(string(text)))
		must.OK(t, err)
		return value
	}
	// Without CAP_SYS_RESOURCE the core keeps the score that it was started with.
	up, manager, orchestrator := score(processOf(t, n, "up")), score(processOf(t, n, "manager")), score(processOf(t, n, "orchestrator"))
	function := score(strconv.Itoa(active.PID))
	if up != manager || manager >= orchestrator || orchestrator >= function || orchestrator != oomscore.Helper || function != oomscore.Function {
		t.Errorf("scores of up %d, manager %d, orchestrator %d, function %d", up, manager, orchestrator, function)
	}
	if err := n.Stop(); err != nil {
		t.Error(err)
	}
}

// processOf returns the id of a node's process by its verb.
func processOf(t *testing.T, n *node.Node, verb string) string {
	t.Helper()
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, _ := os.ReadFile(name)
		arguments := strings.Split(string(text), "\x00")
		if len(arguments) > 2 && arguments[1] == verb && strings.Contains(string(text), n.Dir) {
			return filepath.Base(filepath.Dir(name))
		}
	}
	t.Fatalf("the node has no process %s", verb)
	return ""
}
