package document

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Table reads a CSV file with a header, row by row. Lines that begin with # are comments. Its errors are a *Problem.
type Table struct {
	file   string
	reader *csv.Reader
	column map[string]int
	fields []string
	err    error
}

// OpenTable reads the header. It has some of these columns, in any order. The first required ones must be there.
func OpenTable(file string, r io.Reader, columns []string, required int) (*Table, error) {
	text := bufio.NewReader(r)
	if mark, _ := text.Peek(len(mark8)); string(mark) == mark8 {
		_, _ = text.Discard(len(mark8))
	}
	t := &Table{file: file, reader: csv.NewReader(text), column: map[string]int{}}
	t.reader.FieldsPerRecord, t.reader.TrimLeadingSpace, t.reader.Comment = -1, true, '#'
	header, err := t.reader.Read()
	want := "want a header with " + strings.Join(columns[:required], ",")
	if errors.Is(err, io.EOF) {
		return nil, &Problem{File: file, Text: "is empty, " + want}
	}
	if err != nil {
		return nil, t.wrap(err)
	}
	for i, text := range header {
		text = strings.TrimSpace(text)
		known := slices.IndexFunc(columns, func(name string) bool { return strings.EqualFold(name, text) })
		if known < 0 {
			return nil, t.problem(i, "unknown column %q: want one of %s", text, strings.Join(columns, ","))
		}
		if t.Has(columns[known]) {
			return nil, t.problem(i, "column %q is listed twice", text)
		}
		t.column[columns[known]] = i
	}
	for _, name := range columns[:required] {
		if !t.Has(name) {
			return nil, t.problem(len(header)-1, "no column %q behind this one: %s", name, want)
		}
	}
	return t, nil
}

// Next reads a row. It returns false at the end, and on an error.
func (t *Table) Next() bool {
	fields, err := t.reader.Read()
	switch want := len(t.column); {
	case errors.Is(err, io.EOF):
	case err != nil:
		t.err = t.wrap(err)
	case len(fields) != want:
		t.err = t.problem(min(len(fields)-1, want), "%d fields: want %d, as the header has", len(fields), want)
	default:
		t.fields = fields
		return true
	}
	return false
}

// Err returns the error that ended the rows.
func (t *Table) Err() error { return t.err }

// Has reports whether the file has a column.
func (t *Table) Has(name string) bool { _, ok := t.column[name]; return ok }

// Line returns the line of the row.
func (t *Table) Line() int {
	line, _ := t.reader.FieldPos(0)
	return line
}

// Text returns a field of the row without the space around it; "" if there is no such column.
func (t *Table) Text(name string) string {
	i, ok := t.column[name]
	if !ok {
		return ""
	}
	return strings.TrimSpace(t.fields[i])
}

// Fail returns an error at a field of the row.
func (t *Table) Fail(name, format string, args ...any) error {
	return t.problem(t.column[name], format, args...)
}

func (t *Table) problem(field int, format string, args ...any) error {
	line, column := t.reader.FieldPos(field)
	return &Problem{File: t.file, Line: line, Column: column, Text: fmt.Sprintf(format, args...)}
}

// wrap adds the position that encoding/csv reports for an error.
func (t *Table) wrap(err error) error {
	p := &Problem{File: t.file, Text: err.Error()}
	if at, ok := errors.AsType[*csv.ParseError](err); ok {
		p.Line, p.Column, p.Text = at.Line, at.Column, at.Err.Error()
	}
	return p
}
