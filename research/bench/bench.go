// Package bench measures Penstock against floors. A floor is the same measurement of
// the bare mechanism, in the same run on the same machine, so that a noisy machine
// affects both figures. `penstock-lab` prints the reports; research/README.md has the
// target for each.
package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/atomicfile"
	"github.com/penstock/penstock/internal/testbed"
)

// Setup has the settings that all benchmarks of a device share.
type Setup struct {
	testbed.Setup
	// Lab is the penstock-lab binary, for measurements in a separate process.
	Lab string
	// Progress, if not nil, is called with a description of each measurement.
	Progress func(what string)
}

// Micros are percentiles in microseconds.
type Micros struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// micros returns the percentiles of samples, which it sorts.
func micros(samples []time.Duration) Micros {
	if len(samples) == 0 {
		return Micros{}
	}
	slices.Sort(samples)
	at := func(q float64) float64 {
		i := min(len(samples)-1, int(q*float64(len(samples))))
		return float64(samples[i].Nanoseconds()) / 1000
	}
	return Micros{P50: at(0.50), P99: at(0.99), Max: at(1)}
}

// nullCard writes the card of a model that computes nothing, for requests of that
// many bytes.
func nullCard(dir, name string, bytes int, batches string) (string, error) {
	rows := 1
	for bytes%2 == 0 && bytes > 1<<13 { // the max side of a picture is 16,384
		rows, bytes = 2*rows, bytes/2
	}
	text := fmt.Sprintf(`name: %s
version: 1
framework: "null"
input:
  size: [%d, %d, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: u8, layout: hwc}
outputs:
  - {name: sum, shape: [1]}
batches: %s
slo: 1s
decoder: {name: raw}
`, name, rows, bytes, batches)
	path := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write card: %w", err)
	}
	return path, nil
}

// WriteReport writes a report as JSON into a file, completely or not at all. It
// creates the file's folder if necessary.
func WriteReport(file string, report any) error {
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := atomicfile.Replace(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// lastOf returns the end of a log: some lines, so that the cause above them stays visible.
func lastOf(log string) string {
	const most = 1000
	log = strings.TrimSpace(log)
	return log[max(0, len(log)-most):]
}
