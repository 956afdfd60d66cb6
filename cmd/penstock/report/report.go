// Package report reads the results of runs, so that one page can compare them.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/gateway/page"
	"github.com/penstock/penstock/loadgen"
)

// maxBytes bounds the size of a file.
const maxBytes = 64 << 20

// Report collects runs. The zero value is empty.
type Report struct {
	runs []page.Run
}

// Page returns what was collected, for the page.
func (r *Report) Page(version string) *page.Report {
	return &page.Report{Title: "Penstock report", Version: version, Runs: r.runs}
}

// Add adds a run: a file with the report of `penstock load -o json`.
func (r *Report) Add(file string) error {
	text, err := read(file)
	if err != nil {
		return fmt.Errorf("read run: %w", err)
	}
	var load loadgen.Report
	var raw struct {
		Functions json.RawMessage `json:"functions"`
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(text, &load); errors.As(err, &syntax) {
		return fmt.Errorf("read run %s: %w at byte %d; want the output of `penstock load -o json`", file, err, syntax.Offset)
	} else if err = errors.Join(err, json.Unmarshal(text, &raw)); err != nil || load.Seconds == 0 || len(load.Functions) == 0 {
		return errors.Join(fmt.Errorf("read run %s: it is no run; want the output of `penstock load -o json`", file), err)
	}

	var notes []string
	if load.Interrupted {
		notes = append(notes, fmt.Sprintf("interrupted after %.1f s", load.Seconds))
	}
	if load.ManagerError != "" {
		notes = append(notes, "lost requests are unknown")
	}
	if n := len(load.Outages); n > 0 {
		notes = append(notes, fmt.Sprintf("%d times without any answer", n))
	}
	name := strings.TrimSuffix(filepath.Base(file), ".json")
	r.runs = append(r.runs, page.Run{Name: name, Note: strings.Join(notes, ", "), Functions: raw.Functions})
	return nil
}

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxBytes:
		return nil, fmt.Errorf("%s has more than %d MiB, want a report of runs", file, maxBytes>>20)
	case len(bytes.TrimSpace(text)) == 0:
		return nil, fmt.Errorf("%s is empty; want the output of `penstock load -o json`", file)
	}
	return text, nil
}
