package profile

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
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

// columns are the header of ParvaGPU's files. memoryColumn is Penstock's addition.
var columns = []string{"Mig instance", "Batch size", "Workload Number", "Throughput", "Latency"}

const memoryColumn = "Memory"

// syntaxError is a fault in a profile file.
type syntaxError struct {
	File string
	// Line and Column count from 1, Column in bytes. They are 0 if the error is
	// about the whole file.
	Line, Column int
	Text         string // what is wrong and what would be right
}

// Error formats the fault as one line.
func (e *syntaxError) Error() string {
	if e.File == "" {
		return e.Text
	}
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Text)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Read reads a profile. file is the name for errors. The error is a *syntaxError,
// unless it comes from r.
//
// A file without a JSON header is ParvaGPU's: its shares are GPCs.
func Read(r io.Reader, file string) (Profile, error) {
	f, err := read(r, file)
	return f.Profile, err
}

func read(r io.Reader, file string) (File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return File{}, fmt.Errorf("read %s: %w", file, err)
	}
	d := decoder{file: file}
	if len(data) > maxBytes {
		return File{}, d.errorf(0, 0, "has more than %d bytes, want a profile", maxBytes)
	}
	return d.decode(data)
}

// ReadDir is ReadFolder for all of dir, without positions.
func ReadDir(dir fs.FS) (map[string]Profile, error) {
	files, err := ReadFolder(dir, ".")
	if err != nil {
		return nil, err
	}
	profiles := make(map[string]Profile, len(files))
	for name, f := range files {
		profiles[name] = f.Profile
	}
	return profiles, nil
}

// ReadFolder reads the profiles of a folder in dir, keyed by the file's base name
// without .csv. It reads *.csv, and the profiles next to the cards in a folder of
// models, NAME/NAME.csv. It stops at the first faulty file.
func ReadFolder(dir fs.FS, folder string) (map[string]File, error) {
	entries, err := fs.ReadDir(dir, folder)
	if err != nil {
		var in *fs.PathError
		if errors.As(err, &in) {
			err = in.Err // its path is "."
		}
		return nil, fmt.Errorf("read profiles of folder %s: %w", filepath.Join(rootOf(dir), folder), err)
	}
	files := make(map[string]File)
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
		if files[name], err = readFile(dir, file); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func readFile(dir fs.FS, name string) (File, error) {
	f, err := dir.Open(name)
	if err != nil {
		return File{}, fmt.Errorf("read profile: %w", err)
	}
	defer f.Close()
	return read(f, filepath.Join(rootOf(dir), name))
}

// rootOf returns the folder of an os.DirFS, so that errors have the full path;
// empty for any other file system.
func rootOf(dir fs.FS) string {
	if v := reflect.ValueOf(dir); v.Kind() == reflect.String {
		return v.String()
	}
	return ""
}

type decoder struct {
	file string
}

func (d *decoder) errorf(line, column int, format string, args ...any) error {
	return &syntaxError{File: d.file, Line: line, Column: column, Text: fmt.Sprintf(format, args...)}
}

func (d *decoder) decode(data []byte) (File, error) {
	f := File{Name: d.file}
	if bytes.IndexByte(data, 0) >= 0 {
		return f, d.errorf(0, 0, "has a zero byte: not a text file")
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	comment, rows, lines := splitComment(data)
	f.comment = comment
	if err := d.header(comment, &f.Header); err != nil {
		return f, err
	}
	points, from, err := d.points(rows, lines, f.Header.Unit)
	f.Points, f.lines = points, from
	return f, err
}

// splitComment cuts the comment lines off the top. It replaces their marks by one
// byte each and keeps the newlines, so that positions in the result are positions
// in the file.
func splitComment(data []byte) (comment, rest []byte, lines int) {
	rest = data
	for len(rest) > 0 && rest[0] == '#' {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		comment = append(append(append(comment, ' '), line[1:]...), '\n')
		rest, lines = after, lines+1
	}
	return comment, rest, lines
}

// header reads the JSON of the comment lines. Comments without JSON are no header.
func (d *decoder) header(comment []byte, h *Header) error {
	*h = Header{Unit: GPCs}
	if !bytes.ContainsRune(comment, '{') {
		return nil
	}
	*h = Header{}
	decoder := json.NewDecoder(bytes.NewReader(comment))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(h)
	at := decoder.InputOffset()
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	}
	line, column := place(comment, at)
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return d.errorf(line, column, "header: the JSON does not end")
		}
		return d.errorf(line, column, "header: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if rest := bytes.TrimSpace(comment[at:]); len(rest) > 0 {
		return d.errorf(line, column, "header: %q after the JSON, want the columns", first(rest))
	}
	switch {
	case h.Version < 1 || h.Version > Version:
		return d.errorf(1, 1, "header: version is %d, want %d", h.Version, Version)
	case h.Unit != GPCs && h.Unit != Percent:
		return d.errorf(1, 1, "header: share is %q, want %q or %q", h.Unit, GPCs, Percent)
	case h.Total < 0 || h.Total > maxShare:
		return d.errorf(1, 1, "header: total is %d, want at most %d", h.Total, maxShare)
	}
	return nil
}

// first returns the beginning of some text, short enough for an error.
func first(text []byte) string {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return string(line[:min(len(line), 32)])
}

// place returns the line and column of an offset.
func place(text []byte, offset int64) (line, column int) {
	before := text[:min(int64(len(text)), max(0, offset))]
	line = 1 + bytes.Count(before, []byte("\n"))
	return line, len(before) - bytes.LastIndexByte(before, '\n')
}

// points reads the rows. lines is the number of lines above them. from has each
// point's line, by its key.
func (d *decoder) points(rows []byte, lines int, unit Unit) (points []Point, from map[Point]int, err error) {
	reader := csv.NewReader(bufio.NewReader(bytes.NewReader(rows)))
	reader.FieldsPerRecord = -1 // counted here, to report what is missing
	reader.TrimLeadingSpace = true
	reader.ReuseRecord = true
	next := func() ([]string, error) {
		record, err := reader.Read()
		var syntax *csv.ParseError
		if errors.As(err, &syntax) {
			return nil, d.errorf(lines+syntax.Line, syntax.Column, "%v", syntax.Err)
		}
		return record, err
	}
	names, err := next()
	if errors.Is(err, io.EOF) {
		return nil, nil, d.errorf(lines+1, 1, "has no columns, want %s", strings.Join(columns, ","))
	}
	if err != nil {
		return nil, nil, err
	}
	fields, err := d.fields(reader, names, lines)
	if err != nil {
		return nil, nil, err
	}

	from = make(map[Point]int)
	for {
		record, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		line, _ := reader.FieldPos(0)
		line += lines
		if len(record) != len(fields) {
			return nil, nil, d.errorf(line, 1, "has %d fields, want %d: %s", len(record), len(fields), strings.Join(fields, ","))
		}
		v := row{decoder: d, reader: reader, record: record, lines: lines}
		p := v.point(unit)
		if v.err != nil {
			return nil, nil, v.err
		}
		if other, twice := from[p.key()]; twice {
			return nil, nil, d.errorf(line, 1, "share %d, batch %d, %d processes is already in line %d", p.Share, p.Batch, p.Processes, other)
		}
		from[p.key()] = line
		points = append(points, p)
	}
	slices.SortFunc(points, Point.Compare)
	return points, from, nil
}

// fields checks the names of the columns, which are the record that was just read.
// It returns the names in their standard form.
func (d *decoder) fields(reader *csv.Reader, names []string, lines int) ([]string, error) {
	fields := slices.Concat(columns, []string{memoryColumn})
	for i, name := range names {
		line, column := reader.FieldPos(i)
		if i >= len(fields) {
			return nil, d.errorf(lines+line, column, "column %q, want no more after %q", name, memoryColumn)
		}
		if !strings.EqualFold(strings.TrimSpace(name), fields[i]) {
			return nil, d.errorf(lines+line, column, "column %d is %q, want %q", i+1, name, fields[i])
		}
	}
	if len(names) < len(columns) {
		line, _ := reader.FieldPos(0)
		return nil, d.errorf(lines+line, 1, "has %d columns, want %s", len(names), strings.Join(columns, ","))
	}
	return fields[:len(names)], nil
}

// row reads the fields of one record and keeps the first error.
type row struct {
	*decoder
	reader *csv.Reader
	record []string
	lines  int
	err    error
}

func (r *row) point(unit Unit) Point {
	p := Point{
		Share:      r.integer(0, maxShare, "share in "+string(unit)),
		Batch:      r.integer(1, maxBatch, "number of images"),
		Processes:  r.integer(2, maxProcesses, "number of processes"),
		Throughput: r.number(3, maxRate, "throughput"),
	}
	seconds := r.number(4, maxLatency.Seconds(), "latency in seconds")
	p.Latency = time.Duration(math.Round(seconds * 1e9))
	if len(r.record) > len(columns) {
		p.MemoryMiB = r.number(5, maxMemoryMiB, "memory in MiB")
	}
	p.OOM = p.Throughput == 0 && seconds == 0
	if r.err == nil && (p.Throughput == 0) != (p.Latency == 0) {
		r.reject(3, "throughput %s with latency %s; want both above 0, or both 0 for out of memory", r.record[3], r.record[4])
	}
	return p
}

func (r *row) reject(i int, format string, args ...any) {
	if r.err == nil {
		line, column := r.reader.FieldPos(i)
		r.err = r.errorf(r.lines+line, column, format, args...)
	}
}

func (r *row) integer(i, most int, what string) int {
	n, err := strconv.Atoi(strings.TrimSpace(r.record[i]))
	if err != nil || n < 1 || n > most {
		r.reject(i, "%q is no %s, want an integer from 1 to %d", r.record[i], what, most)
	}
	return n
}

// number reads a finite number from 0 to most.
func (r *row) number(i int, most float64, what string) float64 {
	x, err := strconv.ParseFloat(strings.TrimSpace(r.record[i]), 64)
	if err != nil || !(x >= 0 && x <= most) { // false for NaN
		r.reject(i, "%q is no %s, want a number from 0 to %g", r.record[i], what, most)
	}
	return x
}
