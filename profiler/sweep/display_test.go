package sweep

import (
	"bytes"
	"strings"
	"testing"

	"github.com/penstock/penstock/models/profile"
)

func TestDisplayElsewhere(t *testing.T) {
	var b bytes.Buffer
	d := NewDisplay(&b, nil, profile.Percent)
	cell := Cell{Share: 30, Batch: 8, Processes: 2}
	d.Show(Progress{Cell: cell, Done: 3, Cells: 10})
	d.Show(Progress{Cell: cell, Done: 4, Cells: 10, Ended: &Ended{Point: profile.Point{OOM: true}}})
	d.End()
	if got := b.String(); !strings.HasPrefix(got, "4 of 10, ") || !strings.HasSuffix(got, " left: 30 %, batch 8, 2 processes: out of memory\n") {
		t.Errorf("%q", got)
	}
}

func TestDisplayOnTerminal(t *testing.T) {
	var b bytes.Buffer
	d := NewDisplay(&b, func() int { return 80 }, profile.GPCs)
	d.Show(Progress{Cell: Cell{Share: 3, Batch: 8, Processes: 2}, Done: 5, Cells: 10})
	d.Show(Progress{Cell: Cell{Share: 3, Batch: 8, Processes: 2}, Done: 10, Cells: 10, Ended: &Ended{}})
	d.End()
	const want = "\r5 of 10: 3 GPCs, batch 8, 2 processes\x1b[K\r10 of 10, 0s left\x1b[K\r\x1b[K"
	if got := b.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
