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
)

// maxBytes bounds the size of a file.
const maxBytes = 64 << 20

// labVersion is the version of penstock-lab's results that Add knows.
const labVersion = 1

// Report collects runs. The zero value is empty.
type Report struct {
	groups []page.Group
}

// Page returns what was collected, for the page.
func (r *Report) Page(version string) *page.Report {
	return &page.Report{Title: "Penstock report", Version: version, Groups: r.groups}
}

// Add adds the runs of a file: a report of `penstock load -o json`, or a result of `penstock-lab
// evaluate`. Runs of the same traffic are in one group.
func (r *Report) Add(file string) error {
	text, err := read(file)
	if err != nil {
		return fmt.Errorf("read run: %w", err)
	}
	var kind struct {
		Seconds   *float64          `json:"seconds"`
		Functions []json.RawMessage `json:"functions"`
		Version   int               `json:"version"`
		Figure    string            `json:"figure"`
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(text, &kind); errors.As(err, &syntax) {
		return fmt.Errorf("read run %s: %w at byte %d; want the output of `penstock load -o json`", file, err, syntax.Offset)
	}
	name := strings.TrimSuffix(filepath.Base(file), ".json")
	switch {
	case kind.Figure != "" && kind.Version != labVersion:
		err = fmt.Errorf("it has version %d, want %d; measure it again, or use the penstock that wrote it", kind.Version, labVersion)
	case kind.Figure != "":
		err = r.addLab(name, text)
	case kind.Seconds != nil && len(kind.Functions) > 0:
		err = r.addLoad(name, text)
	default:
		err = errors.New("it is no run; want the output of `penstock load -o json`, or a file of `penstock-lab evaluate`")
	}
	if err != nil {
		return fmt.Errorf("read run %s: %w", file, err)
	}
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

// group returns the group of that name, which it adds if needed.
func (r *Report) group(name string) *page.Group {
	for i := range r.groups {
		if r.groups[i].Name == name {
			return &r.groups[i]
		}
	}
	r.groups = append(r.groups, page.Group{Name: name})
	return &r.groups[len(r.groups)-1]
}

// loadGroup is the name of the group of all reports of `penstock load`.
const loadGroup = "Runs of penstock load"

func (r *Report) addLoad(name string, text []byte) error {
	var load struct {
		Functions    []page.Function   `json:"functions"`
		Seconds      float64           `json:"seconds"`
		Interrupted  bool              `json:"interrupted"`
		ManagerError string            `json:"manager_error"`
		Outages      []json.RawMessage `json:"outages"`
	}
	if err := json.Unmarshal(text, &load); err != nil {
		return err
	}
	run := page.Run{Name: name, Functions: load.Functions}
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
	run.Note = strings.Join(notes, ", ")
	g := r.group(loadGroup)
	g.Runs = append(g.Runs, run)
	return nil
}
