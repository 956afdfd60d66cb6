package profiler

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/models/zoo"
)

// measured returns a profile with knees at 60 and 70 %.
func measured() profile.Profile {
	p := profile.Profile{Header: profile.Header{Version: profile.Version, Model: "fashion", GPU: "a formula", Unit: profile.Percent, Total: 100, PersistentMiB: 1.5, EphemeralMiB: 0.5}}
	for share := 10; share <= 100; share += 10 {
		p.Points = append(p.Points,
			profile.Point{Share: share, Batch: 1, Processes: 1, Throughput: float64(min(share, 70)), Latency: time.Millisecond},
			profile.Point{Share: share, Batch: 8, Processes: 1, Throughput: 2 * float64(min(share, 80)), Latency: 4 * time.Millisecond})
	}
	p.Header.Knees = profile.Knees(p.Points)
	return p
}

func TestPrintKnees(t *testing.T) {
	card, err := (zoo.Registry{Cache: t.TempDir()}).Find("fashion")
	must.OK(t, err)
	one := measured()
	one.Points = one.Points[:1]
	// The objective is 10 ms: batches of 8 fit into half of it.
	for _, c := range []struct {
		name    string
		shipped bool
		profile profile.Profile
		want    string
	}{
		{"own card", false, measured(), card.File + ":\nknee_percent: 70\nknees: [{batch: 1, percent: 60}, {batch: 8, percent: 70}]\n"},
		{"built-in card", true, measured(), "`share_percent: 70`"},
		{"one share", false, one, "needs at least two shares"},
	} {
		var output bytes.Buffer
		PrintKnees(&output, card, c.shipped, c.profile)
		if !strings.Contains(output.String(), c.want) {
			t.Errorf("%s: printed\n%s\nwant %s", c.name, &output, c.want)
		}
	}
}
