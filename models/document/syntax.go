package document

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// The bytes at the beginning of a file in UTF-8, UTF-16 or UTF-32 (Unicode 16, 23.8).
const (
	mark8       = "\xef\xbb\xbf"
	mark16Big   = "\xfe\xff"
	mark16Small = "\xff\xfe"
	mark32Big   = "\x00\x00\xfe\xff"
	mark32Small = "\xff\xfe\x00\x00"
)

// text returns the file's text without a byte order mark, or a problem if the file is not text.
func (d *Document) text(data []byte) ([]byte, *Problem) {
	begins := func(mark string) bool { return bytes.HasPrefix(data, []byte(mark)) }
	const save = "want UTF-8: save it as UTF-8, or convert it with `iconv -t UTF-8`"
	switch {
	case begins(mark32Small), begins(mark32Big):
		return nil, &Problem{File: d.file, Text: "is in UTF-32, " + save}
	case begins(mark16Small), begins(mark16Big), halfZero(data):
		return nil, &Problem{File: d.file, Text: "is in UTF-16, " + save}
	}
	data = bytes.TrimPrefix(data, []byte(mark8))
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return nil, d.at(data, i, "a zero byte: the file is not text, or is damaged")
	}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return nil, d.at(data, i, fmt.Sprintf("byte 0x%02X is not UTF-8; %s", data[i], save))
		}
		i += size
	}
	// The parser counts some of Windows' line ends twice.
	return bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), nil
}

// halfZero reports whether the first two letters are ASCII in UTF-16 without a byte order mark.
func halfZero(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	return data[0] != 0 && data[1] == 0 && data[2] != 0 && data[3] == 0 ||
		data[0] == 0 && data[1] != 0 && data[2] == 0 && data[3] != 0
}

// at returns a problem with the byte at offset.
func (d *Document) at(data []byte, offset int, text string) *Problem {
	line := bytes.Count(data[:offset], []byte("\n")) + 1
	begin := bytes.LastIndexByte(data[:offset], '\n') + 1
	return &Problem{File: d.file, Line: line, Column: utf8.RuneCount(data[begin:offset]) + 1, Text: text}
}

// syntax turns the parser's error into a problem: the position, the message, the line, and a hint
// about the usual cause.
func (d *Document) syntax(data []byte, err error) *Problem {
	p := &Problem{File: d.file, Text: err.Error()}
	var located yaml.Error
	if errors.As(err, &located) {
		p.Text = located.GetMessage()
		if at := located.GetToken(); at != nil && at.Position != nil {
			p.Line, p.Column = at.Position.Line, at.Position.Column
		}
	}
	p.Text = plain(strings.Join(strings.Fields(p.Text), " "))

	lines := strings.Split(string(data), "\n")
	if p.Line < 1 || p.Line > len(lines) || p.Column < 1 {
		return p
	}
	line := lines[p.Line-1]
	if tab := tabIndent.FindString(line); tab != "" {
		p.Column, p.Text = len(tab), "a tab; YAML indents with spaces"
		return p
	}
	p.Text += ": " + strconv.Quote(shorten(strings.TrimSpace(line)))
	for _, h := range hints {
		if strings.Contains(p.Text, h.says) {
			p.Text += "; " + h.hint
			break
		}
	}
	return p
}

var tabIndent = regexp.MustCompile("^[ -]*\t")

// hints map messages of the parser to the usual cause.
var hints = []struct{ says, hint string }{
	{"mapping value is not allowed", "want quotes around a text with a colon, a space after a dash, and the next line indented as its neighbours"},
	{"must be specified", "want each bracket to be closed"},
	{"end token", "want each bracket to be closed"},
	{"reserved character", "want quotes around the text"},
	{"unexpected directive", "want quotes around the text"},
	{"undefined anchor", "want quotes around the text"},
	{"invalid header option", "want quotes around the text"},
	{"block sequence entries", "want the list below its key, or quotes around the text"},
	{"map key-value is pre-defined", "want quotes to end where the value ends, and each key in a line of its own, indented as its neighbours"},
	{"value is not allowed", "want `key: value`, in the line above too, indented as its neighbours"},
	{"non-map value", "want `key: value`, with a space after the colon"},
	{"unexpected key name", "want `key: value`, with a space after the colon, or # before a comment"},
	{"flow map", "want `key: value` in braces, with a space after the colon"},
	{"could not find map value", "want `key: value` in braces, with a space after the colon"},
}

// plain keeps text that is quoted from a file on one line.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '�'
		}
		return r
	}, text)
}
