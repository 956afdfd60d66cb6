package main

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/penstock/penstock/bench"
)

// drawGather shows the gather beside the ways to do without its kernel.
func drawGather(dir string) error {
	r, err := read[bench.Gather](dir, "gather")
	if err != nil {
		return err
	}
	if len(r.Cases) == 0 {
		return nil
	}
	first := r.Cases[0]
	sizes := newPlot(fmt.Sprintf("Gathering packets of %d bytes: %s → %s, %s", r.PieceBytes, first.Wire, first.Tensor, r.Device), "", "GB/s of packets' bytes")
	kinds := newPlot("By type, 32 pictures", "", "GB/s of packets' bytes")
	series := []bars{
		{name: "contiguous copy of as many bytes", color: light},
		{name: "Penstock's gather kernel", color: blue},
		{name: "CPU puts together, one copy", color: orange},
		{name: "a copy a packet", color: purple},
	}
	var groups []string
	most, copied := 0.0, 0.0
	for _, c := range r.Cases {
		if !sameKind(c, first) {
			continue
		}
		groups = append(groups, fmt.Sprintf("%d × %d KB\n%s", c.Pictures, c.PictureBytes/1000, c.Alignment))
		for i, v := range []float64{c.CopyGBPerSecond, c.GigabytesPerSecond, c.CPUCopyGBPerSecond, c.PieceCopyGBPerSecond} {
			series[i].values, series[i].labels = append(series[i].values, v), append(series[i].labels, short(v))
			most = max(most, v)
		}
		copied = c.CopyGBPerSecond
	}
	if err := grouped(sizes, 0, groups, series...); err != nil {
		return err
	}
	const leastPart = 0.80
	last := float64(len(groups)) - 0.5
	if err := target(sizes, "target at 32: 80 % of the contiguous copy", plotter.XY{X: last - 2, Y: leastPart * copied}, plotter.XY{X: last, Y: leastPart * copied}); err != nil {
		return err
	}
	sizes.Y.Min, sizes.Y.Max = 0, most*1.55

	aligned, odd := bars{name: "aligned payloads", color: blue}, bars{name: "odd addresses (as GRO leaves them)", color: green}
	copies := bars{name: "contiguous copy", color: light}
	var names []string
	for _, c := range r.Cases {
		if c.Pictures != 32 {
			continue
		}
		name := c.Wire + "\n→ " + c.Tensor
		at := slices.Index(names, name)
		if at < 0 {
			names = append(names, name)
			copies.values, copies.labels = append(copies.values, c.CopyGBPerSecond), append(copies.labels, short(c.CopyGBPerSecond))
		}
		to := &aligned
		if c.Alignment != "aligned" {
			to = &odd
		}
		to.values, to.labels = append(to.values, c.GigabytesPerSecond), append(to.labels, short(c.GigabytesPerSecond))
	}
	if err := grouped(kinds, 0, names, copies, aligned, odd); err != nil {
		return err
	}
	kinds.Y.Min, kinds.Y.Max = 0, most*1.55
	if err := save(dir, "gather", sizes); err != nil {
		return err
	}
	return save(dir, "gather-types", kinds)
}

// sameKind reports whether two cases differ in number and alignment at most.
func sameKind(a, b bench.GatherCase) bool {
	return a.Wire == b.Wire && a.Tensor == b.Tensor && a.Normalised == b.Normalised
}
