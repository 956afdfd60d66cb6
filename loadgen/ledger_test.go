package loadgen

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
	"pgregory.net/rapid"
)

func testLedger(references []answer.Answer) *ledger {
	return newLedger(&Function{SLO: time.Second, Pictures: make([][]byte, 4), Tolerance: answer.Default}, references)
}

// TestLedgerModel runs random operations on a ledger and on a map, and
// compares them.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := testLedger(nil)
		type request struct {
			tag     uint64
			counted bool
		}
		var open, ended []request
		var sent, answered, unsent uint64
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				r := request{counted: rapid.Bool().Draw(t, "counted")}
				r.tag = l.begin(0, 0, rapid.IntRange(0, 3).Draw(t, "picture"), r.counted)
				for _, other := range open {
					if other.tag == r.tag {
						t.Fatalf("tag %x is open twice", r.tag)
					}
				}
				if r.counted {
					sent++
				}
				open = append(open, r)
			},
			"reply": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("nothing is open")
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				r := open[i]
				open = append(open[:i], open[i+1:]...)
				ended = append(ended, r)
				reply := &client.Result{Tag: r.tag}
				if rapid.Bool().Draw(t, "given up") {
					reply.Err = errors.New("gone")
					if r.counted {
						unsent++
					}
				} else if r.counted {
					answered++
				}
				l.reply(reply)
			},
			"stale reply": func(t *rapid.T) {
				tag := rapid.Uint64().Draw(t, "tag")
				if len(ended) > 0 && rapid.Bool().Draw(t, "seen before") {
					tag = ended[rapid.IntRange(0, len(ended)-1).Draw(t, "which")].tag
				}
				for _, r := range open {
					if r.tag == tag {
						t.Skip("open by chance")
					}
				}
				l.reply(&client.Result{Tag: tag})
			},
			"": func(t *rapid.T) {
				if l.open != len(open) || l.stats.sent != sent || l.stats.answered() != answered || l.stats.unsent != unsent {
					t.Fatalf("%d open, %d sent, %d answered, %d unsent; want %d, %d, %d, %d",
						l.open, l.stats.sent, l.stats.answered(), l.stats.unsent, len(open), sent, answered, unsent)
				}
				if len(l.entries) != len(l.free)+l.open {
					t.Fatalf("%d entries, %d free, %d open", len(l.entries), len(l.free), l.open)
				}
			},
		})
	})
}

func TestLedgerDrains(t *testing.T) {
	l := testLedger(nil)
	one, two := l.begin(0, 0, 0, true), l.begin(0, 0, 1, true)
	drained := l.drain()
	for _, step := range []struct {
		tag  uint64
		want bool
	}{{one, false}, {one, false}, {two, true}, {two, true}} {
		l.reply(&client.Result{Tag: step.tag})
		select {
		case <-drained:
			if !step.want {
				t.Fatal("drained with a request open")
			}
		default:
			if step.want {
				t.Fatal("not drained after the last reply")
			}
		}
	}
	select {
	case <-testLedger(nil).drain():
	default:
		t.Error("an empty ledger is not drained")
	}
}

func TestClosedLedger(t *testing.T) {
	l := testLedger(nil)
	tag := l.begin(0, 0, 0, true)
	l.close()
	l.reply(&client.Result{Tag: tag})
	if l.stats.answered() != 0 {
		t.Error("a reply after the end was counted")
	}
}

func TestUnknownStatus(t *testing.T) {
	l := testLedger(nil)
	l.reply(&client.Result{Tag: l.begin(0, 0, 0, true), Status: 200})
	if l.stats.statuses[client.StatusFailed] != 1 {
		t.Errorf("statuses %v", l.stats.statuses)
	}
}

func TestHistogram(t *testing.T) {
	h := newHistogram(3)
	for _, d := range []time.Duration{-time.Hour, 0, 1, time.Microsecond, longest, longest + 1, 1 << 62} {
		h.record(d)
	}
	if h.TotalCount() != 7 || h.millis(100) < longest.Seconds()*1000 {
		t.Errorf("%d recorded, the longest %v ms", h.TotalCount(), h.millis(100))
	}
}

func TestRequestAllocations(t *testing.T) {
	payload := wire.AppendTopK(nil, []wire.Class{{Class: 3, P: 0.9}})
	near := wire.AppendTopK(nil, []wire.Class{{Class: 3, P: 0.9001}})
	references := make([]answer.Answer, 4)
	for i := range references {
		references[i] = answer.Answer{Kind: wire.KindTopK, Payload: near}
	}
	l := testLedger(references)
	request := func() {
		tag := l.begin(5, time.Millisecond, 2, true)
		l.reply(&client.Result{Tag: tag, Received: shm.Time(500), Payload: payload, Status: client.StatusOK, Kind: wire.KindTopK, Batch: 4})
	}
	request()
	if allocs := testing.AllocsPerRun(1000, request); allocs != 0 {
		t.Errorf("%v allocations a request", allocs)
	}
	if l.stats.wrong != 0 || len(l.entries) != 1 {
		t.Errorf("%d wrong, %d entries for one request at a time", l.stats.wrong, len(l.entries))
	}
}
