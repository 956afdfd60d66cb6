package client_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/wire"
)

// examples/client/client.py is written from docs/wire.md alone. If it works, the
// page is correct.
func TestStandardClient(t *testing.T) {
	t.Run("loopback", func(t *testing.T) { testPythonClient(t, 0) })
	t.Run("proof of the address", func(t *testing.T) { testPythonClient(t, 0xa7a6a5a4a3a2a1a0) })
}

func testPythonClient(t *testing.T, cookie uint64) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 to run examples/client/client.py")
	}
	openfiles.CheckLeaks(t)
	const program = "../examples/client/client.py"
	file := filepath.Join(t.TempDir(), "picture")
	sent := picture(150_000, 1)
	must.OK(t, os.WriteFile(file, sent, 0o600))

	arrived := make(chan []byte, 1)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		arrived <- q.Picture
		topk := wire.AppendTopK(nil, []wire.Class{{Class: 9, P: 0.75}, {Class: 300, P: 0.125}})
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK, Batch: 4, ModelVersion: 2, Infer: 1500 * time.Microsecond}, topk, true
	}, clienttest.ManagerOptions{FragmentBytes: 5, Cookie: cookie}) // the result has three fragments
	firstAnswer := func(b []byte) bool {
		h, err := wire.DecodeHeader(b)
		return err == nil && h.Type == wire.TypeResult && h.Flags&wire.FlagRetransmitted == 0
	}
	relay := startRelay(t, m.Addr(), clienttest.Faults{Drop: clienttest.DropOnce(70)}, clienttest.Faults{Drop: firstAnswer})

	at := relay.Addr()
	out, err := exec.Command(python, program, at.Addr().String(), strconv.Itoa(int(at.Port())), file, "60").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = "status ok, batch 4, model version 2, infer 1500 us\nclass 9: 0.7500\nclass 300: 0.1250\n"
	if string(out) != want {
		t.Errorf("it printed\n%swant\n%s", out, want)
	}
	if got := <-arrived; string(got) != string(sent) {
		t.Error("the picture arrived otherwise than it was sent")
	}
	lost := uint64(4) // fragment 70, and the answer's three
	if cookie != 0 {
		lost = 1 // the answer is a repeat
	}
	if relay.Lost.Load() < lost {
		t.Errorf("only %d datagrams were lost, want at least %d", relay.Lost.Load(), lost)
	}
}

// The page's pictures fit the built-in models, and the program that prepares
// them is valid Python.
func TestPreparedPictures(t *testing.T) {
	page, err := os.ReadFile("../docs/wire.md")
	must.OK(t, err)
	for _, name := range zoo.Names() {
		card, err := zoo.Registry{Cache: t.TempDir()}.Find(name)
		must.OK(t, err)
		size, bytes := card.Input, card.Input.WireBytes()
		row := fmt.Sprintf(`(?m)^\| %s \| %d × %d × %d, u8, (RGB|grey), (%d,)?%d bytes \|`, name, size.Height, size.Width, size.Channels, bytes/1000, bytes%1000)
		if !regexp.MustCompile(row).Match(page) {
			t.Errorf("docs/wire.md has no row that matches %s", row)
		}
	}

	program, err := os.ReadFile("../examples/client/prepare.py")
	must.OK(t, err)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 to compile examples/client/prepare.py")
	}
	compile := exec.Command(python, "-c", "import sys; compile(sys.stdin.read(), 'prepare', 'exec')")
	compile.Stdin = bytes.NewReader(program)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
