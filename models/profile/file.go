package profile

import (
	"bytes"
	"fmt"
	"strconv"
)

// File is a profile with the positions of its parts, for callers that find faults
// that a reader alone cannot detect. If a File was not read from a file, its errors
// have no position.
type File struct {
	Profile
	// Name is the name of the file, with the folder's name if that is known.
	Name string

	comment []byte // the lines above the columns, without their marks
	lines   map[Point]int
}

// PointError returns an error about a point: a *syntaxError with the position of its
// row.
func (f *File) PointError(pt Point, format string, args ...any) error {
	e := &syntaxError{File: f.Name, Line: f.lines[pt.key()], Text: fmt.Sprintf(format, args...)}
	if e.Line > 0 {
		e.Column = 1
	}
	return e
}

// HeaderError returns an error about a field of the header, by its name in the file.
// It is a *syntaxError with the field's position, or about the whole file if the
// field is not there.
func (f *File) HeaderError(field, format string, args ...any) error {
	e := &syntaxError{File: f.Name, Text: fmt.Sprintf(format, args...)}
	if at := bytes.Index(f.comment, []byte(strconv.Quote(field))); at >= 0 {
		e.Line, e.Column = place(f.comment, int64(at))
	}
	return e
}
