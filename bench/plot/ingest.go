package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/penstock/penstock/bench"
)

// Targets of `bench ingest --source dpdk`.
const (
	leastPerCore   = 5e6 // datagrams a second
	leastBareRatio = 0.8
)

// drawIngest shows what a core makes of a port of memory, and the ports beside
// kernel sockets.
func drawIngest(dir string) error {
	r, err := read[bench.IngestDPDK](dir, "dpdk")
	if err != nil {
		return err
	}
	p := newPlot("One core: poll, parse, aggregate, release, beside bursts received and freed ("+r.Memory+")", "", "M datagrams/s")
	ours, bare := bars{name: "Penstock", color: blue}, bars{name: "bare rx_burst and bulk free", color: light}
	reading := bars{name: "the same, headers read", color: grey}
	var names []string
	most := 0.0
	for _, c := range r.OneCore {
		names = append(names, fmt.Sprintf("%d × %d B, %s written", c.Pieces, c.PieceBytes, c.Frames))
		for _, b := range []struct {
			to   *bars
			rate float64
		}{{&ours, c.DatagramsPerSecond / 1e6}, {&bare, c.BareDatagramsPerSecond / 1e6}, {&reading, c.ReadDatagramsPerSecond / 1e6}} {
			b.to.values = append(b.to.values, b.rate)
			b.to.labels = append(b.to.labels, fmt.Sprintf("%.1f", b.rate))
			most = max(most, b.rate)
		}
	}
	if err := grouped(p, 0, names, ours, bare, reading); err != nil {
		return err
	}
	last := float64(len(names)) - 0.5
	if err := target(p, "target: 5 M/s", plotter.XY{X: -0.5, Y: leastPerCore / 1e6}, plotter.XY{X: last, Y: leastPerCore / 1e6}); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, most*1.3
	if err := save(dir, "one-core", p); err != nil {
		return err
	}
	if err := drawNode(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return drawPorts(dir, r)
}

// drawNode shows the end-to-end latency of a whole node on a GPU behind each source.
func drawNode(dir string) error {
	r, err := read[bench.DPDKNode](dir, "h200")
	if err != nil {
		return err
	}
	p := newPlot("A node on a GPU, one request at a time: first byte sent to answer received (model, source, busy_poll)", "", "µs")
	var names []string
	list := []bars{{name: "p50", color: blue}, {name: "p99", color: light}}
	most := 0.0
	for _, w := range r.Ways {
		for _, f := range w.Functions {
			names = append(names, fmt.Sprintf("%s\n%s\n%v ms", f.Model, w.Source, w.BusyPollMillis))
			for i, v := range []float64{f.Alone.EndToEnd.P50, f.Alone.EndToEnd.P99} {
				list[i].values, list[i].labels = append(list[i].values, v), append(list[i].labels, fmt.Sprintf("%.0f", v))
				most = max(most, v)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := grouped(p, 0, names, list...); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, most*1.2
	return save(dir, "node", p)
}

func nodeTable(dir string) (string, error) {
	r, err := read[bench.DPDKNode](dir, "h200")
	if err != nil {
		return "", err
	}
	list := [][]string{{"model", "source", "busy_poll", "in flight", "images", "end to end p50, p99", "aggregate", "queue", "gather", "infer", "reply", "answers", "wrong", "lost", "mapped, read-only"}}
	for _, w := range r.Ways {
		if w.Lacks != "" {
			list = append(list, []string{"", w.Source, fmt.Sprintf("%v ms", w.BusyPollMillis), "not measured: " + w.Lacks})
		}
		for _, f := range w.Functions {
			for _, t := range []bench.DPDKNodeTraffic{f.Alone, f.Loaded} {
				list = append(list, []string{f.Model, w.Source, fmt.Sprintf("%v ms", w.BusyPollMillis), fmt.Sprint(t.InFlight), number(t.ImagesPerSecond) + "/s",
					fmt.Sprintf("%.0f, %.0f µs", t.EndToEnd.P50, t.EndToEnd.P99),
					fmt.Sprintf("%.0f", t.Aggregate.P50), fmt.Sprintf("%.0f", t.Queue.P50), fmt.Sprintf("%.0f", t.Gather.P50),
					fmt.Sprintf("%.0f", t.Infer.P50), fmt.Sprintf("%.0f", t.Reply.P50),
					number(float64(t.Requests)), fmt.Sprint(t.Wrong), fmt.Sprint(t.Unanswered + t.Refused), fmt.Sprintf("%.0f MiB, %s", w.MappedMiB, w.Memory)})
			}
		}
	}
	return rows(list...), nil
}

func drawPorts(dir string, r bench.IngestDPDK) error {
	p := newPlot(fmt.Sprintf("Datagrams of 1 KB, each port fed by its sender on the same %d cores", r.Machine.CPUs), "", "k datagrams/s")
	received, sent := bars{name: "received", color: blue}, bars{name: "sent", color: light}
	var names []string
	most := 0.0
	for _, c := range r.Ports {
		if c.Lacks != "" {
			continue
		}
		names = append(names, c.Port)
		received.values, received.labels = append(received.values, c.ReceivedPerSecond/1e3), append(received.labels, number(c.ReceivedPerSecond/1e3))
		sent.values, sent.labels = append(sent.values, c.SentPerSecond/1e3), append(sent.labels, number(c.SentPerSecond/1e3))
		most = max(most, c.SentPerSecond/1e3)
	}
	if len(names) == 0 {
		return nil
	}
	if err := grouped(p, 0, names, received, sent); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, most*1.2
	return save(dir, "ports", p)
}

func ingestMachineTable(dir string) (string, error) {
	list := [][]string{{"report", "date", "CPU", "kernel", "packet memory", "Penstock, Go"}}
	for _, name := range []string{"dpdk", "soak"} {
		r, err := read[bench.IngestDPDK](dir, name)
		if errors.Is(err, fs.ErrNotExist) && name == "soak" {
			continue
		}
		if err != nil {
			return "", err
		}
		m := r.Machine
		list = append(list, []string{fmt.Sprintf("[%s](ingest/%s.json)", name, name), m.Date, fmt.Sprintf("%s, %d cores", m.CPU, m.CPUs), m.Kernel, r.Memory, m.Penstock + ", " + m.Go})
	}
	return rows(list...), nil
}

func oneCoreTable(dir string) (string, error) {
	r, err := read[bench.IngestDPDK](dir, "dpdk")
	if err != nil {
		return "", err
	}
	list := [][]string{{"requests", "the port writes", "Penstock", "≥ 5 M/s", "bare", "ratio", "≥ 0.8", "headers read", "ratio", "above the floor", "allocations a datagram", "lost"}}
	for _, c := range r.OneCore {
		above := 1e9/c.DatagramsPerSecond - 1e9/c.BareDatagramsPerSecond
		list = append(list, []string{fmt.Sprintf("%d × %d B", c.Pieces, c.PieceBytes), c.Frames,
			fmt.Sprintf("%.2f M/s", c.DatagramsPerSecond/1e6), met(c.DatagramsPerSecond >= leastPerCore),
			fmt.Sprintf("%.2f M/s", c.BareDatagramsPerSecond/1e6), fmt.Sprintf("%.2f", c.Ratio), met(c.Ratio >= leastBareRatio),
			fmt.Sprintf("%.2f M/s", c.ReadDatagramsPerSecond/1e6), fmt.Sprintf("%.2f", c.RatioRead),
			fmt.Sprintf("%.0f ns", above), fmt.Sprintf("%.6f", c.AllocsPerDatagram), fmt.Sprint(c.Lost)})
	}
	return rows(list...), nil
}

func portsTable(dir string) (string, error) {
	r, err := read[bench.IngestDPDK](dir, "dpdk")
	if err != nil {
		return "", err
	}
	list := [][]string{{"port", "received", "payload", "sent", "lost", "allocations a datagram", "sender"}}
	for _, p := range r.Ports {
		if p.Lacks != "" {
			list = append(list, []string{p.Port, "not on this machine: " + p.Lacks, "", "", "", "", p.Sender})
			continue
		}
		list = append(list, []string{p.Port, fmt.Sprintf("%s/s", number(p.ReceivedPerSecond)), fmt.Sprintf("%.2f GB/s", p.BytesPerSecond/1e9),
			fmt.Sprintf("%s/s", number(p.SentPerSecond)), fmt.Sprintf("%.2f %%", p.LostPercent), fmt.Sprintf("%.4f", p.AllocsPerDatagram), p.Sender})
	}
	if len(list) == 1 {
		return "", fs.ErrNotExist
	}
	return rows(list...), nil
}

// soakTable takes the long run where there is one, else what the other report has.
func soakTable(dir string) (string, error) {
	r, err := read[bench.IngestDPDK](dir, "soak")
	if errors.Is(err, fs.ErrNotExist) {
		r, err = read[bench.IngestDPDK](dir, "dpdk")
	}
	if err != nil {
		return "", err
	}
	s := r.Soak
	if s == nil {
		return "", fs.ErrNotExist
	}
	return rows(
		[]string{"for", "datagrams", "requests", "incomplete", "missed frames", "mbufs", "not back at the end", "0"},
		[]string{time.Duration(s.Seconds * float64(time.Second)).Round(time.Second).String(), number(float64(s.Datagrams)), number(float64(s.Requests)),
			number(float64(s.Incomplete)), number(float64(s.Missed)), number(float64(s.Mbufs)), fmt.Sprint(s.MbufsAbsent), met(s.MbufsAbsent == 0)},
	), nil
}
