// Command plot draws the figures of docs/benchmarks and docs/evaluation from the reports beside them:
//
//	go run ./bench/plot docs/benchmarks/h200
//	go run ./bench/plot docs/benchmarks/ingest
//	go run ./bench/plot docs/benchmarks/planner
//	go run ./bench/plot docs/evaluation
//
// For each NAME.json that `penstock bench` wrote and it knows, it writes NAME.png, or
// several, and the tables of the page, DIR.md or DIR/README.md. A report that is not there is left out and
// said so.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./bench/plot DIR")
		os.Exit(2)
	}
	if err := drawAll(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// drawAll draws every figure whose reports are in dir.
func drawAll(dir string) error {
	page, ok := pages[filepath.Base(dir)]
	if !ok {
		return fmt.Errorf("%s: want a folder %s", dir, strings.Join(slices.Sorted(maps.Keys(pages)), " or "))
	}
	for _, figure := range page.figures {
		switch err := figure.draw(dir); {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Printf("no figure %s: %v\n", figure.name, err)
		case err != nil:
			return fmt.Errorf("draw %s: %w", figure.name, err)
		}
	}
	return fill(dir, page)
}

// read reads the report NAME.json.
func read[T any](dir, name string) (r T, err error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s.json: %w", name, err)
	}
	return r, nil
}
