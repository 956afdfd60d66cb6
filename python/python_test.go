// Package python_test runs the tests of the Python client in this folder against the
// managers and networks of internal/testing/clienttest.
package python_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// debian is the python3 that Debian's packages are installed for.
const debian = "/usr/bin/python3"

// interpreters returns each python3 that has the modules. It skips the test if there is none.
func interpreters(t *testing.T, hint string, modules ...string) []string {
	t.Helper()
	tried := map[string]bool{}
	var found []string
	for _, name := range []string{os.Getenv("PENSTOCK_PYTHON"), "python3", debian} {
		path, err := exec.LookPath(name)
		if err != nil || tried[path] {
			continue
		}
		tried[path] = true
		if exec.Command(path, "-c", "import "+strings.Join(modules, ", ")).Run() == nil {
			found = append(found, path)
		}
	}
	if len(found) == 0 {
		t.Skipf("no python3 has %s: %s", strings.Join(modules, ", "), hint)
	}
	return found
}

func startManager(t *testing.T, h clienttest.Handler, o clienttest.ManagerOptions) *clienttest.Manager {
	t.Helper()
	m, err := clienttest.NewManager(h, o)
	must.OK(t, err)
	t.Cleanup(func() { closeManager(t, m) })
	return m
}

func closeManager(t *testing.T, m *clienttest.Manager) {
	t.Helper()
	m.Close()
	if err := m.Faults(); err != nil {
		t.Errorf("the client sent what no client may: %v", err)
	}
	if _, runs := m.Requests(); runs > 1 {
		t.Errorf("a request was run %d times", runs)
	}
}

// behindLossyNetwork returns the address of a relay that loses, repeats and delays datagrams.
func behindLossyNetwork(t *testing.T, m *clienttest.Manager, repeat float64) netip.AddrPort {
	t.Helper()
	f := clienttest.Faults{Lose: 0.05, Repeat: repeat, Delay: 0.1, MaxDelay: 3 * time.Millisecond, Seed: 1}
	r, err := clienttest.NewRelay(m.Addr(), f, f)
	must.OK(t, err)
	t.Cleanup(r.Close)
	return r.Addr()
}

// kinds answers with what the picture's first byte asks for.
func kinds(q clienttest.Request) (wire.Result, []byte, bool) {
	r := wire.Result{
		Status: wire.StatusOK, Batch: 4, Credit: 8, ModelVersion: 2, Objective: 5 * time.Second,
		Aggregate: 300 * time.Microsecond, Queue: 1500 * time.Microsecond, Gather: 40 * time.Microsecond,
		Infer: 2 * time.Millisecond, Reply: 15 * time.Microsecond,
	}
	switch q.Picture[0] {
	case 't':
		r.Kind = wire.KindTopK
		return r, wire.AppendTopK(nil, []wire.Class{{Class: 9, P: 0.75}, {Class: 300, P: 0.125}}), true
	case 'b':
		r.Kind = wire.KindBoxes
		return r, wire.AppendBoxes(nil, []wire.Box{{Class: 3, Score: 0.5, Y0: 0.25, X1: 0.5, Y1: 1}}), true
	case 'v':
		r.Kind = wire.KindRaw
		return r, wire.AppendRaw(nil, []float32{1, -2}), true
	case 'L':
		r.Status, r.Queue = wire.StatusLate, 18*time.Millisecond
	case 'I':
		r.Status, r.Missing = wire.StatusIncomplete, 2
	case 'B':
		r.Status = wire.StatusBusy
	case 'R':
		r.Status = wire.StatusRefused
	case 'S':
		r.Status, r.PictureBytes = wire.StatusRefused, 784
	default:
		r.Status = wire.StatusFailed
	}
	return r, nil, true
}

// pictures answers with the format and shape of the picture.
func pictures(q clienttest.Request) (wire.Result, []byte, bool) {
	p := q.Extension.Picture
	return wire.Result{Status: wire.StatusOK, Kind: wire.KindText, Batch: 1, Credit: 8, LargestPicture: 1 << 20},
		fmt.Appendf(make([]byte, 4), "%s %d %d %d", p.Format, p.Width, p.Height, p.Stride), true
}

// largestPayload is the largest answer: fragment i has the 32-bit number i + j at 4 j. It is made
// before a client waits, because that takes seconds under the race detector.
var largestPayload = func() []byte {
	payload := make([]byte, 0, wire.MaxFragments*wire.DefaultFragmentBytes)
	for i := range uint32(wire.MaxFragments) {
		for j := range uint32(wire.DefaultFragmentBytes / 4) {
			payload = binary.LittleEndian.AppendUint32(payload, i+j)
		}
	}
	return payload
}()

func largest(clienttest.Request) (wire.Result, []byte, bool) {
	return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 8}, largestPayload, true
}

// moves sends clients that follow to another node.
func moves(to netip.AddrPort, lifetime time.Duration) clienttest.Handler {
	return func(q clienttest.Request) (wire.Result, []byte, bool) {
		if q.Extension.Follows {
			return wire.Result{Status: wire.StatusMoved, Moved: to, Lifetime: lifetime}, nil, true
		}
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindRaw, Batch: 1, Credit: 16}, []byte("stayed"), true
	}
}

// startRoom returns a manager that has room for that many requests, and answers in batches of
// different sizes.
func startRoom(t *testing.T, room int) *clienttest.Manager {
	t.Helper()
	waiting := make(chan clienttest.Request, 1000)
	var held atomic.Int64
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		held.Add(1)
		waiting <- q
		return wire.Result{}, nil, false
	}, clienttest.ManagerOptions{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for q := range waiting {
			batch := []clienttest.Request{q}
			for len(batch) < 1+int(q.ID)%room && len(waiting) > 0 {
				batch = append(batch, <-waiting)
			}
			for _, q := range batch {
				held.Add(-1)
				// Each answer frees the slot of its request only: others may be on their way.
				m.Answer(q.From, q.ID, wire.Result{Status: wire.StatusOK, Credit: 1}, nil)
			}
		}
	}()
	t.Cleanup(func() {
		m.Close()
		close(waiting)
		<-ended
		if most := m.MaxHeld(); most > room {
			t.Errorf("the manager held %d requests, its credit was for %d", most, room)
		}
	})
	return m
}

// unreachable returns an address that refuses datagrams: its socket accepts only those of another
// address. No other program can take the port.
func unreachable(t *testing.T) netip.AddrPort {
	t.Helper()
	peer := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:1"))
	c, err := net.DialUDP("udp", nil, peer)
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func command(t *testing.T, python string, arguments ...string) *exec.Cmd {
	t.Helper()
	here, err := os.Getwd()
	must.OK(t, err)
	c := exec.CommandContext(t.Context(), python, arguments...)
	c.Env = append(os.Environ(), "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1")
	return c
}

// TestClient runs tests/.
func TestClient(t *testing.T) {
	for _, python := range interpreters(t, "install Debian's python3-numpy", "numpy") {
		t.Run(python, func(t *testing.T) {
			fragments := clienttest.ManagerOptions{FragmentBytes: 700}
			proof := clienttest.ManagerOptions{FragmentBytes: 700, Cookie: 0xa7a6a5a4a3a2a1a0}
			silent := func(clienttest.Request) (wire.Result, []byte, bool) { return wire.Result{}, nil, false }
			atLoss := func(lose float64) netip.AddrPort {
				m := startManager(t, largest, clienttest.ManagerOptions{})
				r, err := clienttest.NewRelay(m.Addr(), clienttest.Faults{Lose: lose, Seed: 1}, clienttest.Faults{Lose: lose, Seed: 2})
				must.OK(t, err)
				t.Cleanup(r.Close)
				return r.Addr()
			}
			echo := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{}).Addr()
			elsewhere := startManager(t, clienttest.Echo(16), clienttest.ManagerOptions{Listen: netip.MustParseAddrPort("127.0.0.2:0")}).Addr()
			key := clienttest.ManagerOptions{FragmentBytes: 700, Key: []byte("the key of the function")}
			keyed := startManager(t, clienttest.Echo(16), key).Addr()
			peers := map[string]netip.AddrPort{
				"echo":              echo,
				"moves":             startManager(t, moves(echo, time.Minute), clienttest.ManagerOptions{}).Addr(),
				"moves elsewhere":   startManager(t, moves(elsewhere, time.Second), proof).Addr(),
				"moves, with a key": startManager(t, moves(keyed, time.Minute), key).Addr(),
				"keyed":             keyed,
				"closed":            unreachable(t),
				"lossy":             behindLossyNetwork(t, startManager(t, clienttest.Echo(16), fragments), 0.05),
				// A network that repeats busy answers makes the last one final (docs/wire.md).
				"cookie":            behindLossyNetwork(t, startManager(t, clienttest.Echo(16), proof), 0),
				"key":               behindLossyNetwork(t, startManager(t, clienttest.Echo(16), key), 0.02),
				"kinds":             startManager(t, kinds, clienttest.ManagerOptions{}).Addr(),
				"pictures":          startManager(t, pictures, clienttest.ManagerOptions{}).Addr(),
				"room for four":     startRoom(t, 4).Addr(),
				"silent":            startManager(t, silent, clienttest.ManagerOptions{}).Addr(),
				"unreachable":       unreachable(t),
				"largest, 1 % lost": atLoss(0.01), "largest, 5 % lost": atLoss(0.05),
			}
			text, err := json.Marshal(peers)
			must.OK(t, err)
			c := command(t, python, "-m", "unittest", "discover", "-v", "-s", "tests")
			c.Env = append(c.Env, "PENSTOCK_TEST_PEERS="+string(text), "PYTHONWARNINGS=error")
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "test_every_rule") || strings.Contains(string(out), "skipped") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestManagerRestart replaces the manager during a stream: the next one has another cookie.
func TestManagerRestart(t *testing.T) {
	python := interpreters(t, "install Debian's python3-numpy", "numpy")[0]
	proof := func(cookie uint64, at netip.AddrPort) clienttest.ManagerOptions {
		return clienttest.ManagerOptions{Cookie: cookie, Listen: at}
	}
	address, err := freeport.Find()
	must.OK(t, err)
	first, err := clienttest.NewManager(clienttest.Echo(8), proof(1, address))
	must.OK(t, err)
	c := command(t, python, "tests/restart.py", address.String())
	in, err := c.StdinPipe()
	must.OK(t, err)
	out, err := c.StdoutPipe()
	must.OK(t, err)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	must.OK(t, c.Start())
	reads := func(want string) {
		t.Helper()
		var got string
		if _, err := fmt.Fscanln(out, &got); err != nil || got != want {
			t.Errorf("it printed %q, %v; want %q\n%s", got, err, want, stderr.Bytes())
		}
	}
	reads("answered")
	closeManager(t, first)
	if _, err := fmt.Fprintln(in, "closed"); err != nil {
		t.Error(err)
	}
	reads("sent")
	startManager(t, clienttest.Echo(8), proof(2, address))
	reads("answered")
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, stderr.Bytes())
	}
}

// TestTypes checks the types of the client and of a program that uses it.
func TestTypes(t *testing.T) {
	python := interpreters(t, "install Debian's python3-mypy and python3-numpy", "numpy", "mypy")[0]
	c := command(t, python, "-m", "mypy", "--strict", "--cache-dir", t.TempDir(), "penstock", "tests/typed.py")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInstall installs the client without a network, as docs/python.md says.
func TestInstall(t *testing.T) {
	if err := exec.Command(debian, "-c", "import numpy, setuptools, wheel, venv, ensurepip").Run(); err != nil {
		t.Skipf("%s: %v: install python3-numpy, python3-setuptools, python3-wheel and python3-venv", debian, err)
	}
	here, err := os.Getwd()
	must.OK(t, err)
	// setuptools writes into the folder that it installs.
	dir := t.TempDir()
	source, venv := filepath.Join(dir, "python"), filepath.Join(dir, "venv")
	must.OK(t, os.CopyFS(filepath.Join(source, "penstock"), os.DirFS("penstock")))
	project, err := fs.ReadFile(os.DirFS("."), "pyproject.toml")
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(source, "pyproject.toml"), project, 0o600))
	const program = `
import os, penstock
from importlib import metadata, resources
assert os.path.dirname(penstock.__file__).startswith(%q), penstock.__file__
assert os.path.exists(os.path.join(os.path.dirname(penstock.__file__), "py.typed"))
print(metadata.version("penstock"), penstock.Client("host:5001").__class__.__name__)
`
	for _, arguments := range [][]string{
		{debian, "-m", "venv", "--system-site-packages", venv},
		{filepath.Join(venv, "bin", "pip"), "install", "--no-build-isolation", "--no-index", source},
		{filepath.Join(venv, "bin", "python"), "-c", fmt.Sprintf(program, venv)},
	} {
		c := exec.CommandContext(t.Context(), arguments[0], arguments[1:]...)
		c.Dir = dir
		c.Env = append(os.Environ(), "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_CACHE_DIR=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}

	// A process that the node starts has the module of models in its path, and can use both.
	c := exec.CommandContext(t.Context(), filepath.Join(venv, "bin", "python"), "-c", "import penstock, penstock_model; penstock_model.Framework; penstock.Client('host:5001')")
	c.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(here, "..", "libml", "python"), "PYTHONDONTWRITEBYTECODE=1")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
