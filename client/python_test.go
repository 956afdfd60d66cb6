package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/client/clienttest"
	"github.com/penstock/penstock/wire"
)

// The client that closes docs/wire.md is written from the page alone; if it
// works, so does the page.
func TestTheClientOfTheStandardWorks(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3 to run the client of docs/wire.md")
	}
	leavesNothing(t)
	page, err := os.ReadFile("../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	listings := regexp.MustCompile("(?ms)^```python\n(.*?)^```").FindAllSubmatch(page, -1)
	if len(listings) != 1 {
		t.Fatalf("docs/wire.md has %d Python listings, want one", len(listings))
	}
	program, file := filepath.Join(t.TempDir(), "client.py"), filepath.Join(t.TempDir(), "picture")
	sent := picture(150_000, 1)
	for name, b := range map[string][]byte{program: listings[0][1], file: sent} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	arrived := make(chan []byte, 1)
	m := startManager(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		arrived <- q.Picture
		topk := wire.AppendTopK(nil, []wire.Class{{Class: 9, P: 0.75}, {Class: 300, P: 0.125}})
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK, Batch: 4, ModelVersion: 2, Infer: 1500 * time.Microsecond}, topk, true
	}, clienttest.ManagerOptions{PieceBytes: 5}) // the result is in three pieces
	firstAnswer := func(b []byte) bool {
		h, err := wire.DecodeHeader(b)
		return err == nil && h.Type == wire.TypeResult && h.Flags&wire.FlagRetransmitted == 0
	}
	relay := startRelay(t, m.Addr(), clienttest.Faults{Drop: clienttest.DropOnce(70)}, clienttest.Faults{Drop: firstAnswer})

	at := relay.Addr()
	out, err := exec.Command(python, program, at.Addr().String(), strconv.Itoa(int(at.Port())), file).CombinedOutput()
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
	if relay.Lost.Load() < 4 { // piece 70, and the answer's three
		t.Errorf("only %d datagrams were lost", relay.Lost.Load())
	}
}
