package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/capturefile"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/wire"
)

// captured writes a capture of n requests to a port, with two fragments each, two milliseconds apart.
// The last fragment of one more request is missing.
func captured(t *testing.T, port, n int) string {
	t.Helper()
	var datagrams []capturefile.Datagram
	for i := range n + 1 {
		for fragment := range 2 {
			if i == n && fragment == 1 {
				break
			}
			h := wire.FragmentHeader(wire.TypeData, uint32(i+1), small, small/2, fragment)
			b := make([]byte, wire.DatagramSize(&h))
			h.Put(b)
			copy(b[wire.PayloadOffset(&h):], nodetest.Picture(small, i)[h.Offset:][:h.Length])
			datagrams = append(datagrams, capturefile.Datagram{
				At: time.Duration(i) * 2 * time.Millisecond, From: netip.MustParseAddrPort("10.0.0.9:40000"),
				To: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port)), Payload: b,
			})
		}
	}
	path := filepath.Join(t.TempDir(), "capture.pcap")
	file, err := os.Create(path)
	must.OK(t, err)
	defer file.Close()
	capturefile.Write(t, file, datagrams)
	return path
}

func TestLoadCapture(t *testing.T) {
	t.Parallel()
	const n = 200
	nd := start(t, fmt.Sprintf(`
aggregate: {slots: 256, deadline: 1s} # room for all, should this machine stand still
functions: [{name: fn, model: %s, port: 0, slo: 20s}]
`, nodetest.Card(t, "digest", small)))
	f, err := nd.Function("fn")
	must.OK(t, err)
	out, err := run(t, nd.Dir, "load", "--capture", captured(t, f.Port, n), "-o", "json")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var report struct {
		Functions []struct {
			Requests, Unanswered int
			Answers              map[string]int
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := report.Functions; len(got) != 1 || got[0].Requests != n+1 || got[0].Answers["ok"] != n || got[0].Answers["incomplete"] != 1 || got[0].Unanswered != 0 {
		t.Errorf("load reports\n%s\nwant %d ok and one incomplete", out, n)
	}
}
