package check

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
)

// truncated writes a card whose model cannot be loaded.
func truncated(t *testing.T, dir string) {
	t.Helper()
	tinymodel.Card{Name: "cut", Version: 1, Height: 2, Width: 2, Outputs: 1, Model: tinymodel.Truncated}.Write(t, dir)
}

func writes(t *testing.T, file, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
}

func TestNode(t *testing.T) {
	dir := t.TempDir()
	truncated(t, dir)
	taken, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	defer taken.Close()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer web.Close()
	check := func(text string) error {
		t.Helper()
		file := filepath.Join(dir, "node.yaml")
		writes(t, file, text)
		c, err := configs.Read(file)
		if err != nil {
			return err
		}
		c.RuntimeDir = filepath.Join(dir, "run")
		_, err = inspect(context.Background(), c)
		return err
	}

	port := taken.LocalAddr().(*net.UDPAddr).Port
	err = check(fmt.Sprintf(`http: %s
models: [nowhere]
functions:
  - name: face
    port: %d
  - name: nosuch
    port: 0
  - {name: cut, model: ./cut.yaml, port: 0}
`, web.Addr(), port))
	if err == nil {
		t.Fatal("it was accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	for i, want := range []string{
		"node.yaml:1:7: http: " + web.Addr().String() + " is in use by another process",
		"node.yaml:2:10: models[0]: ",
		fmt.Sprintf("node.yaml:5:11: functions[0].port: port %d is in use by another process", port),
		`node.yaml:6:11: functions[1].name: find card: unknown model "nosuch"`,
		"node.yaml:8:24: functions[2].model: load model cut",
	} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d is not %q of:\n%v", i, want, err)
		}
	}
	if len(lines) != 5 {
		t.Errorf("%d lines, want 5:\n%v", len(lines), err)
	}

	if err := check("http: 127.0.0.1:0\nfunctions:\n  - {name: face, port: 0}\n  - {name: again, model: face, port: 0}\n"); err != nil {
		t.Errorf("a right configuration: %v", err)
	}
}

func TestWorkerMemory(t *testing.T) {
	const text = "workers: [{name: cold, share_percent: 30, memory: %s}]\nfunctions:\n  - {name: face, port: 0, worker: cold}\n  - {name: detect, port: 0, worker: cold}\n"
	file := filepath.Join(t.TempDir(), "node.yaml")
	for memory, want := range map[string]string{
		"8MiB": "",
		"4MiB": `node.yaml:4:37: functions[1].worker: is "cold", with memory for models of 4.0 MiB, and `,
	} {
		writes(t, file, fmt.Sprintf(text, memory))
		c, err := configs.Read(file)
		must.OK(t, err)
		problems, err := Functions(c)
		must.OK(t, err)
		switch err := problems.Err(); {
		case want == "" && err != nil:
			t.Errorf("memory %s: %v", memory, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "has 7.3 MiB; want `memory: 16MiB` or more")):
			t.Errorf("memory %s: %v, want %s and the size of the model", memory, err, want)
		}
	}
}

// notesOf checks a configuration.
func notesOf(t *testing.T, text string) (notes []string, err error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "node.yaml")
	writes(t, file, text)
	c, err := configs.Read(file)
	must.OK(t, err)
	c.RuntimeDir = filepath.Join(dir, "run")
	return inspect(t.Context(), c)
}

func TestReservedCPUs(t *testing.T) {
	for reserved, want := range map[int]bool{0: false, 1024: true} {
		notes, err := notesOf(t, fmt.Sprintf("reserved_cpus: %d\nhttp: 127.0.0.1:0\nfunctions: []\n", reserved))
		if got := strings.Contains(strings.Join(notes, "\n"), "reserved_cpus: is 1024, and the manager gets "); err != nil || got != want {
			t.Errorf("%d reserved: notes %q, error %v", reserved, notes, err)
		}
	}
}

func TestManyInstances(t *testing.T) {
	for instances, want := range map[int]bool{1: false, 64: runtime.NumCPU() < 64} {
		notes, err := notesOf(t, fmt.Sprintf("http: 127.0.0.1:0\nfunctions:\n  - {name: fashion, port: 0, instances: %d}\n", instances))
		if got := strings.Contains(strings.Join(notes, "\n"), "instances of fashion is 64, and the number of CPUs for functions is "); err != nil || got != want {
			t.Errorf("%d instances: notes %q, error %v", instances, notes, err)
		}
	}
}

func TestUnusedKeys(t *testing.T) {
	for policy, want := range map[configs.Policy]bool{configs.PolicyGuarantee: true, configs.PolicyGSLICE: false} {
		notes, err := notesOf(t, fmt.Sprintf("http: 127.0.0.1:0\nshares: {policy: %s}\nfunctions: [{name: face, port: 0, change: shadow}]\n", policy))
		if got := slices.Contains(notes, "change of face has no effect without `shares: {policy: gslice}`"); err != nil || got != want {
			t.Errorf("%s: notes %q, error %v", policy, notes, err)
		}
	}
}

func TestSandbox(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root starts functions as another user")
	}
	dir := t.TempDir()
	truncated(t, dir)
	model := filepath.Join(dir, "cut.onnx")
	for name, c := range map[string]struct {
		sandbox string
		mode    os.FileMode
		want    string
	}{
		"closed":       {"{user: nobody}", 0o600, "user nobody cannot read " + model + ": it has mode 0600"},
		"open":         {"{user: nobody}", 0o644, "load model cut"},
		"off":          {`"off"`, 0o600, "load model cut"},
		"unknown user": {"{user: no-such-user}", 0o644, "node.yaml:1:11: sandbox: find user of the sandbox: look up user no-such-user"},
		"no such path": {"{user: nobody, readable: [" + model + ", /no/such/path]}", 0o644, "sandbox.readable[1]: stat /no/such/path: no such file or directory"},
		"readable":     {"{user: nobody, readable: [" + model + "]}", 0o600, "node.yaml:1:35: sandbox.readable"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, "node.yaml")
			writes(t, file, "sandbox: "+c.sandbox+"\nhttp: 127.0.0.1:0\nfunctions:\n  - {name: cut, model: ./cut.yaml, port: 0}\n")
			must.OK(t, os.Chmod(model, c.mode))
			read, err := configs.Read(file)
			must.OK(t, err)
			read.RuntimeDir = filepath.Join(dir, "run")
			if _, err := inspect(context.Background(), read); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %q in it", err, c.want)
			}
		})
	}
}
