package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
)

// The readers of BenchmarkPageReaders, and how it measures.
const (
	pageReaders    = 100
	stalledReaders = 10 // of them, that never read
	readerPairs    = 8
	readerWindow   = 8 * time.Second
)

// openPages opens the event streams of pages; close ends them.
func openPages(t testing.TB, url string) (close func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	open := make(chan error, pageReaders)
	for i := range pageReaders {
		readers.Go(func() {
			if i < stalledReaders {
				open <- stall(ctx, url)
				return
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/events", nil)
			if err != nil {
				open <- err
				return
			}
			response, err := http.DefaultClient.Do(request)
			open <- err
			if err == nil {
				defer response.Body.Close()
				io.Copy(io.Discard, response.Body)
			}
		})
	}
	for range pageReaders {
		must.OK(t, <-open)
	}
	return func() {
		cancel()
		readers.Wait()
	}
}

// stall opens an event stream with a small buffer, which it does not read until ctx ends.
func stall(ctx context.Context, url string) error {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(1); err != nil {
		return err
	}
	_, err = fmt.Fprintf(conn, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	return err
}

// BenchmarkPageReaders measures a node with and without 100 pages open, ten of which never read, in
// interleaved pairs.
func BenchmarkPageReaders(b *testing.B) {
	nd, url := startWithGateway(b, "  - {name: detect, port: 0, slo: 1s}\n")
	measure := func() (p99, goodput float64) {
		command := exec.CommandContext(b.Context(), penstock, "load", "--runtime-dir", nd.Dir, "--rate", "face=60", "--rate", "fashion=200", "--rate", "detect=2",
			"--duration", readerWindow.String(), "--check=false", "-o", "json")
		text, err := command.Output()
		if err != nil {
			b.Fatalf("penstock load: %v: %s", err, text)
		}
		var r loadgen.Report
		must.OK(b, json.Unmarshal(text, &r))
		for _, f := range r.Functions {
			goodput += f.GoodputRPS
			if f.Name == "face" {
				p99 = f.P99Millis
			}
		}
		return p99, goodput
	}
	for b.Loop() {
		var p99, goodput [2][]float64 // without and with readers
		measure()                     // warm-up
		for pair := range readerPairs {
			for i := range 2 {
				with := (pair + i) % 2
				end := func() {}
				if with == 1 {
					end = openPages(b, url)
				}
				p, g := measure()
				end()
				p99[with], goodput[with] = append(p99[with], p), append(goodput[with], g)
			}
		}
		for _, figure := range []struct {
			name   string
			values [2][]float64
		}{{"face-p99-ms", p99}, {"goodput/s", goodput}} {
			var differences []float64
			for i := range figure.values[0] {
				differences = append(differences, figure.values[1][i]-figure.values[0][i])
			}
			b.Logf("%s without %.3f, with %.3f, differences %.3f", figure.name, figure.values[0], figure.values[1], differences)
			b.ReportMetric(median(figure.values[0]), "without-"+figure.name)
			b.ReportMetric(median(figure.values[1]), "with-"+figure.name)
			b.ReportMetric(slices.Min(differences), "min-difference-"+figure.name)
			b.ReportMetric(slices.Max(differences), "max-difference-"+figure.name)
		}
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
