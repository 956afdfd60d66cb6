package document

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// DecodeJSON reads a file with one JSON value, without unknown keys. what names it for errors, which are a *Problem.
func DecodeJSON(file string, text []byte, to any, what string) error {
	text = bytes.TrimPrefix(text, []byte(mark8))
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(to)
	at := decoder.InputOffset()
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = fmt.Errorf("more after %s: want nothing else", what)
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
		key := kind.Field[strings.LastIndexByte(kind.Field, '.')+1:] // the path has embedded structs
		err = fmt.Errorf("%s: want %s, not %s", cmp.Or(key, what), kindOf(kind.Type), kind.Value)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("is empty, want %s", what)
	case errors.Is(err, io.ErrUnexpectedEOF):
		at, err = int64(len(text)), fmt.Errorf("ends in the middle of %s", what)
	}
	before := text[:min(max(at, 0), int64(len(text)))]
	return &Problem{
		File: file, Line: 1 + bytes.Count(before, []byte("\n")), Column: max(1, len(before)-(bytes.LastIndexByte(before, '\n')+1)),
		Text: plain(strings.TrimPrefix(err.Error(), "json: ")),
	}
}

// kindOf names a type in JSON's terms.
func kindOf(t reflect.Type) string {
	switch {
	case isInteger(t):
		return "a whole number"
	case isFloat(t):
		return "a number"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Struct, t.Kind() == reflect.Map:
		return "an object"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a text"
}
