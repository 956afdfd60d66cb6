package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/models/document"
)

// The limits of a file are far above any useful sweep. They are low enough to
// reject a wrong file before it fills the memory.
const (
	maxBytes     = 8 << 20
	maxShare     = 100
	maxBatch     = 1 << 16
	maxProcesses = 1 << 10
	maxRate      = 1e12
	maxLatency   = time.Hour
	maxMemoryMiB = 1 << 30
)

// columns are the header of ParvaGPU's files, and Penstock's addition.
var columns = []string{"Mig instance", "Batch size", "Workload Number", "Throughput", "Latency", "Memory"}

// requiredColumns are those of ParvaGPU.
const requiredColumns = 5

// Read reads a profile. file is the name for errors. The error is a *document.Problem,
// unless it comes from r.
//
// A file without a JSON header is ParvaGPU's: its shares are GPCs.
func Read(r io.Reader, file string) (p Profile, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return p, fmt.Errorf("read %s: %w", file, err)
	}
	whole := func(format string, args ...any) error {
		return &document.Problem{File: file, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(data) > maxBytes:
		return p, whole("has more than %d bytes, want a profile", maxBytes)
	case bytes.IndexByte(data, 0) >= 0:
		return p, whole("has a zero byte: not a text file")
	}
	p.File, p.Header.Unit = file, GPCs
	if comment := commentOf(data); bytes.ContainsRune(comment, '{') { // comments without JSON are no header
		p.Header = Header{}
		if err := document.DecodeJSON(file, comment, &p.Header, "the header"); err != nil {
			return p, err
		}
		switch h := &p.Header; {
		case h.Version < 1 || h.Version > Version:
			return p, whole("header: version is %d, want %d", h.Version, Version)
		case h.Unit != GPCs && h.Unit != Percent:
			return p, whole("header: share is %q, want %q or %q", h.Unit, GPCs, Percent)
		case h.Total < 0 || h.Total > maxShare:
			return p, whole("header: total is %d, want at most %d", h.Total, maxShare)
		}
	}
	p.Points, err = readPoints(data, file, p.Header.Unit)
	return p, err
}

// ReadFile is Read for a file.
func ReadFile(name string) (Profile, error) {
	f, err := os.Open(name)
	if err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	defer f.Close()
	return Read(f, name)
}

// ReadFolder reads the profiles of a folder in dir, keyed by the file's base name
// without .csv. It reads *.csv, and the profiles next to the cards in a folder of
// models, NAME/NAME.csv. It stops at the first faulty file.
func ReadFolder(dir fs.FS, folder string) (map[string]Profile, error) {
	entries, err := fs.ReadDir(dir, folder)
	if err != nil {
		if in, ok := errors.AsType[*fs.PathError](err); ok {
			err = in.Err // its path is "."
		}
		return nil, fmt.Errorf("read profiles of folder %s: %w", filepath.Join(rootOf(dir), folder), err)
	}
	profiles := make(map[string]Profile)
	from := make(map[string]string)
	for _, e := range entries {
		file := path.Join(folder, e.Name())
		// A link counts as its target.
		if info, err := fs.Stat(dir, file); err == nil && info.IsDir() {
			file = path.Join(file, e.Name()+".csv")
			if _, err := fs.Stat(dir, file); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		name, isCSV := strings.CutSuffix(path.Base(file), ".csv")
		if !isCSV {
			continue
		}
		if other, twice := from[name]; twice {
			return nil, fmt.Errorf("read profiles: %s is listed twice: %s and %s", name, filepath.Join(rootOf(dir), other), filepath.Join(rootOf(dir), file))
		}
		from[name] = file
		data, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, fmt.Errorf("read profile: %w", err)
		}
		if profiles[name], err = Read(bytes.NewReader(data), filepath.Join(rootOf(dir), file)); err != nil {
			return nil, err
		}
	}
	return profiles, nil
}

// rootOf returns the folder of an os.DirFS, so that errors have the full path;
// empty for any other file system.
func rootOf(dir fs.FS) string {
	if v := reflect.ValueOf(dir); v.Kind() == reflect.String {
		return v.String()
	}
	return ""
}

// commentOf returns the comment lines at the top. Each has a space in place of its mark, so that
// positions are those in the file.
func commentOf(data []byte) (comment []byte) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for line := range bytes.Lines(data) {
		if line[0] != '#' {
			break
		}
		comment = append(append(comment, ' '), line[1:]...)
	}
	return comment
}

func readPoints(data []byte, file string, unit Unit) (points []Point, err error) {
	t, err := document.OpenTable(file, bytes.NewReader(data), columns, requiredColumns)
	if err != nil {
		return nil, err
	}
	from := make(map[Point]int) // lines
	for t.Next() {
		r := row{Table: t}
		p := r.point(unit)
		if r.err != nil {
			return nil, r.err
		}
		key := Point{Share: p.Share, Batch: p.Batch, Processes: p.Processes}
		if other, twice := from[key]; twice {
			return nil, t.Fail(columns[0], "share %d, batch %d, %d processes is already in line %d", p.Share, p.Batch, p.Processes, other)
		}
		from[key] = t.Line()
		points = append(points, p)
	}
	slices.SortFunc(points, Point.Compare)
	return points, t.Err()
}

// row reads the fields of a row and keeps the first error.
type row struct {
	*document.Table
	err error
}

func (r *row) point(unit Unit) Point {
	p := Point{
		Share:      r.integer(columns[0], maxShare, "share in "+string(unit)),
		Batch:      r.integer(columns[1], maxBatch, "number of images"),
		Processes:  r.integer(columns[2], maxProcesses, "number of processes"),
		Throughput: r.number(columns[3], maxRate, "throughput"),
	}
	seconds := r.number(columns[4], maxLatency.Seconds(), "latency in seconds")
	p.Latency = time.Duration(math.Round(seconds * 1e9))
	if r.Has(columns[5]) {
		p.MemoryMiB = r.number(columns[5], maxMemoryMiB, "memory in MiB")
	}
	p.OOM = p.Throughput == 0 && seconds == 0
	if r.err == nil && (p.Throughput == 0) != (p.Latency == 0) {
		r.err = r.Fail(columns[3], "throughput %v with latency %v; want both above 0, or both 0 for out of memory", p.Throughput, seconds)
	}
	return p
}

func (r *row) integer(column string, most int, what string) int {
	n, err := strconv.Atoi(r.Text(column))
	if r.err == nil && (err != nil || n < 1 || n > most) {
		r.err = r.Fail(column, "%q is no %s, want an integer from 1 to %d", r.Text(column), what, most)
	}
	return n
}

// number reads a finite number from 0 to most.
func (r *row) number(column string, most float64, what string) float64 {
	x, err := strconv.ParseFloat(r.Text(column), 64)
	if r.err == nil && (err != nil || !(x >= 0 && x <= most)) { // true for NaN
		r.err = r.Fail(column, "%q is no %s, want a number from 0 to %g", r.Text(column), what, most)
	}
	return x
}
