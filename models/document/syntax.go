package document

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
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
	var at *token.Token
	if errors.As(err, &located) {
		p.Text = located.GetMessage()
		if at = located.GetToken(); at != nil && at.Position != nil {
			if key := missingColon(p.Text, at); key != nil {
				at, p.Text = key, unexpectedKey
			}
			p.Line, p.Column = at.Position.Line, at.Position.Column
		}
	}
	p.Text = plain(strings.Join(strings.Fields(p.Text), " "))

	lines := strings.Split(string(data), "\n")
	if p.Line < 1 || p.Line > len(lines) || p.Column < 1 {
		return p
	}
	text := strings.TrimSpace(lines[p.Line-1])
	switch {
	case tabIndent.MatchString(lines[p.Line-1]):
		p.Column, p.Text = len(tabIndent.FindString(lines[p.Line-1])), "a tab; YAML indents with spaces"
	case noSpaceAfterDash.MatchString(lines[p.Line-1]):
		p.Column, p.Text = 1+strings.IndexByte(lines[p.Line-1], '-'), "no space after the dash: "+strconv.Quote(shorten(text))
	case strings.HasSuffix(p.Text, "must be specified"):
		p.Text += ": " + strconv.Quote(shorten(text))
		if open := openBracket(at); open != nil {
			p.Text += fmt.Sprintf("; want the %s of line %d, column %d to be closed", open.Value, open.Position.Line, open.Position.Column)
		}
	case p.Text != unexpectedKey && p.misindented(lines):
	default:
		p.Text += fmt.Sprintf(": %s%s", strconv.Quote(shorten(text)), hint(p.Text))
	}
	return p
}

// Messages of the parser.
const (
	notAllowed    = "value is not allowed in this context"
	unexpectedKey = "unexpected key name" // without a colon
)

// missingColon returns the text that the parser read as a map's value, if that text was meant as
// the map's first key. The key at shows this.
func missingColon(message string, at *token.Token) *token.Token {
	value := before(at)
	if message != notAllowed || value == nil || value.Type == token.SequenceEndType || value.Type == token.MappingEndType {
		return nil
	}
	if value.Position.Line == at.Position.Line || value.Position.Column != at.Position.Column {
		return nil
	}
	return value
}

// openBracket returns the innermost bracket that is open at a token.
func openBracket(at *token.Token) *token.Token {
	closed := 0
	for t := before(at); t != nil; t = before(t) {
		switch t.Type {
		case token.SequenceEndType, token.MappingEndType:
			closed++
		case token.SequenceStartType, token.MappingStartType:
			if closed == 0 {
				return t
			}
			closed--
		}
	}
	return nil
}

// before returns the token before t, or nil. Comments do not count.
func before(t *token.Token) *token.Token {
	for t = t.Prev; t != nil && t.Type == token.CommentType; t = t.Prev {
	}
	return t
}

var (
	tabIndent        = regexp.MustCompile("^[ -]*\t")
	noSpaceAfterDash = regexp.MustCompile("^ *-[^- ]")
)

// hints map messages of the parser to the usual cause.
var hints = []struct{ says, hint string }{
	{"mapping value is not allowed", "want quotes around a text with a colon"},
	{"end token", "want the bracket to be closed"},
	{"reserved character", "want quotes around the text"},
	{"unexpected directive", "want quotes around the text"},
	{"undefined anchor", "want quotes around the text"},
	{"invalid header option", "want quotes around the text"},
	{"block sequence entries", "want the list below its key, or quotes around the text"},
	{"map key-value is pre-defined", "want quotes to end where the value ends, and each key in a line of its own"},
	{"value is not allowed", "want `key: value`, in the line above too, and lists and maps to go on as they begin"},
	{"non-map value", "want `key: value`, with a space after the colon"},
	{unexpectedKey, "want `key: value`, with a space after the colon, or # before a comment"},
	{"flow map", "want `key: value` in braces, with a space after the colon"},
	{"could not find map value", "want `key: value` in braces, with a space after the colon"},
}

func hint(message string) string {
	for _, h := range hints {
		if strings.Contains(message, h.says) {
			return "; " + h.hint
		}
	}
	return ""
}

// indented returns how many spaces begin a line, and the text after them.
func indented(line string) (blanks int, rest string) {
	rest = strings.TrimLeft(line, " ")
	return len(line) - len(rest), strings.TrimRight(rest, " ")
}

// misindented finds a line whose indentation matches no line above it. The parser often blames the
// previous line, because it read both as one text.
func (p *Problem) misindented(lines []string) bool {
	n, ok := p.blamed(lines)
	if !ok {
		return false
	}
	blanks, rest := indented(lines[n-1])
	if n == p.Line && p.Column != blanks+1 || rest == "" {
		return false
	}
	want := indentations(lines[:n-1], blanks, strings.HasPrefix(rest, "- "))
	if len(want) == 0 || slices.Contains(want, blanks) {
		return false
	}
	var words []string
	for _, at := range slices.Backward(want) {
		words = append(words, strconv.Itoa(at))
	}
	p.Line, p.Column = n, blanks+1
	p.Text = fmt.Sprintf("is indented by %d, want %s, as the lines above", blanks, strings.Join(slices.Compact(words), " or "))
	return true
}

// blamed returns the line that may be misindented: the parser's, or the next one that is indented
// deeper.
func (p *Problem) blamed(lines []string) (n int, ok bool) {
	if !strings.HasPrefix(p.Text, "mapping value is not allowed") {
		return p.Line, true
	}
	above, _ := indented(lines[p.Line-1])
	for n := p.Line + 1; n <= len(lines); n++ {
		if blanks, rest := indented(lines[n-1]); rest != "" && rest[0] != '#' {
			return n, blanks > above
		}
	}
	return 0, false
}

// indentations returns the valid indentations of a line below the given ones, the deepest first.
// item means that the line begins with a dash.
func indentations(lines []string, blanks int, item bool) (want []int) {
	most := blanks + MaxBytes
	for _, line := range slices.Backward(lines) {
		at, text := indented(line)
		if text == "" || text[0] == '#' || at >= most {
			continue
		}
		most = at
		after, isItem := strings.CutPrefix(text, "-")
		switch {
		case !item:
			want = append(want, at+len(text)-len(strings.TrimLeft(after, " ")))
		case isItem:
			want = append(want, at)
		}
	}
	return want
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
