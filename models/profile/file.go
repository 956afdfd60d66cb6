package profile

import (
	"bytes"
	"fmt"
	"strconv"
)

// File is a profile with the places that it was read from, for who finds something
// wrong in it that a reader alone cannot know. Of a File that was not read errors
// have no place.
type File struct {
	Profile
	// Name is the file's, with the folder's where that is known.
	Name string

	comment []byte // the lines above the columns, without their marks
	lines   map[Point]int
}

// PointError is what is wrong with a point: a *syntaxError with the place of its row.
func (f *File) PointError(pt Point, format string, args ...any) error {
	e := &syntaxError{File: f.Name, Line: f.lines[pt.key()], Text: fmt.Sprintf(format, args...)}
	if e.Line > 0 {
		e.Column = 1
	}
	return e
}

// HeaderError is what is wrong with a field of the header, by its name in the file: a
// *syntaxError with the field's place, or about the whole file if there is none.
func (f *File) HeaderError(field, format string, args ...any) error {
	e := &syntaxError{File: f.Name, Text: fmt.Sprintf(format, args...)}
	if at := bytes.Index(f.comment, []byte(strconv.Quote(field))); at >= 0 {
		e.Line, e.Column = place(f.comment, int64(at))
	}
	return e
}
