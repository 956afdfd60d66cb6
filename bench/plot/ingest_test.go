package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/bench"
)

func TestTheIngestReportBecomesFiguresAndTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarks/ingest.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := folder(t, "ingest")
	if err := os.WriteFile(dir+".md", page, 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, dir, "dpdk", bench.IngestDPDK{
		Memory: "huge pages",
		OneCore: []bench.OneCore{
			{Pieces: 147, PieceBytes: 1024, Frames: "headers", DatagramsPerSecond: 4e6, BareDatagramsPerSecond: 8e6, Ratio: 0.5, ReadDatagramsPerSecond: 7e6, RatioRead: 0.57},
			{Pieces: 147, PieceBytes: 1024, Frames: "whole", DatagramsPerSecond: 6e6, BareDatagramsPerSecond: 7e6, Ratio: 0.86},
		},
		Ports: []bench.PortIngest{
			{Port: "udp", Sender: "a socket", SentPerSecond: 2e6, ReceivedPerSecond: 1234567},
			{Port: "af_xdp", Sender: "a socket", Lacks: "no such thing"},
		},
		Soak: &bench.Soak{Seconds: 3600, Datagrams: 7654321, Mbufs: 40000, MbufsAbsent: 3},
	})
	put(t, dir, "h200", bench.DPDKNode{Ways: []bench.DPDKNodeWay{
		{Source: "memif", Memory: "huge pages", MappedMiB: 256, Functions: []bench.DPDKNodeFunction{
			{Model: "null", Alone: bench.DPDKNodeTraffic{InFlight: 1, Requests: 4321, EndToEnd: bench.Micros{P50: 325, P99: 673}}}}},
		{Source: "tap", Lacks: "no device"},
	}})
	if err := drawAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one-core", "ports", "node"} {
		if _, err := os.Stat(filepath.Join(dir, name+".png")); err != nil {
			t.Error(err)
		}
	}
	filled, err := os.ReadFile(dir + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"4.00 M/s | **no** | 8.00 M/s | 0.50 | **no** | 7.00 M/s | 0.57 | 125 ns", "6.00 M/s | yes | 7.00 M/s | 0.86 | yes",
		"1,234,567/s", "| null | memif | 0 ms | 1 |", "325, 673 µs", "4,321", "256 MiB, huge pages", "not measured: no device", "not on this machine: no such thing", "1h0m0s | 7,654,321", "| 40,000 | 3 | **no** |",
	} {
		if !strings.Contains(string(filled), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	// The long run, where there is one, stands for the short one.
	put(t, dir, "soak", bench.IngestDPDK{Soak: &bench.Soak{Seconds: 7200}})
	if err := drawAll(dir); err != nil {
		t.Fatal(err)
	}
	if filled, _ := os.ReadFile(dir + ".md"); !strings.Contains(string(filled), "2h0m0s") {
		t.Error("the long soak does not stand on the page")
	}
}
