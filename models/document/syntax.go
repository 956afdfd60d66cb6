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

// The bytes that a file in UTF-8, UTF-16 or UTF-32 may begin with (Unicode 16, 23.8).
const (
	mark8       = "\xef\xbb\xbf"
	mark16Big   = "\xfe\xff"
	mark16Small = "\xff\xfe"
	mark32Big   = "\x00\x00\xfe\xff"
	mark32Small = "\xff\xfe\x00\x00"
)

// text returns the file's text without a byte order mark, or says why it is none.
func (d *Document) text(data []byte) ([]byte, *Problem) {
	begins := func(mark string) bool { return bytes.HasPrefix(data, []byte(mark)) }
	const save = "want UTF-8: save it so, or `iconv -t UTF-8` it"
	switch {
	case begins(mark32Small), begins(mark32Big):
		return nil, &Problem{File: d.file, Text: "is in UTF-32, " + save}
	case begins(mark16Small), begins(mark16Big), halfZero(data):
		return nil, &Problem{File: d.file, Text: "is in UTF-16, " + save}
	}
	data = bytes.TrimPrefix(data, []byte(mark8))
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return nil, d.at(data, i, "a zero byte: this is not a text file, or a damaged one")
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

// halfZero reports whether the first two letters are ASCII in UTF-16, as without a mark.
func halfZero(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	return data[0] != 0 && data[1] == 0 && data[2] != 0 && data[3] == 0 ||
		data[0] == 0 && data[1] != 0 && data[2] == 0 && data[3] != 0
}

// at is a problem with the byte at offset.
func (d *Document) at(data []byte, offset int, text string) *Problem {
	line := bytes.Count(data[:offset], []byte("\n")) + 1
	begin := bytes.LastIndexByte(data[:offset], '\n') + 1
	return &Problem{File: d.file, Line: line, Column: utf8.RuneCount(data[begin:offset]) + 1, Text: text}
}

// syntax turns the parser's error into ours: what a writer has to change where one of the
// usual slips of the pen stands there, else the parser's own words.
func (d *Document) syntax(data []byte, err error) *Problem {
	p := &Problem{File: d.file, Text: err.Error()}
	var before *token.Position
	var located yaml.Error
	if errors.As(err, &located) {
		p.Text = located.GetMessage()
		if at := located.GetToken(); at != nil && at.Position != nil {
			p.Line, p.Column = at.Position.Line, at.Position.Column
			if at.Prev != nil {
				before = at.Prev.Position
			}
		}
	}
	p.Text = plain(strings.Join(strings.Fields(p.Text), " "))
	s := stumble{lines: strings.Split(string(data), "\n"), Problem: p, before: before}
	if p.Line < 1 || p.Line > len(s.lines) || p.Column < 1 {
		return p
	}
	for _, explain := range []func(*stumble) bool{
		(*stumble).tab, (*stumble).quote, (*stumble).bracket, (*stumble).reserved, (*stumble).dash, (*stumble).twice,
		(*stumble).colon, (*stumble).colonInText, (*stumble).deeper, (*stumble).indentation, (*stumble).afterQuote,
		(*stumble).item, (*stumble).above, (*stumble).afterBracket, (*stumble).otherwise,
	} {
		if explain(&s) {
			break
		}
	}
	return p
}

// stumble is where the parser gave up and why. Each of its methods knows one slip; it
// reports whether that stands there, and then says so in the problem.
type stumble struct {
	lines []string
	*Problem
	before *token.Position // of what stands before it; nil where nothing does
}

func (s *stumble) say(line, column int, format string, args ...any) bool {
	s.Line, s.Column, s.Text = line, column, plain(fmt.Sprintf(format, args...))
	return true
}

// line is a line of the file, from 1, without the spaces at its end.
func (s *stumble) line(n int) string { return strings.TrimRight(s.lines[n-1], " ") }

// rest is the line from where the parser stumbled.
func (s *stumble) rest() string {
	line := []rune(s.line(s.Line))
	return string(line[min(s.Column-1, len(line)):])
}

// indented is how many blanks begin a line, and what comes after them.
func indented(line string) (blanks int, rest string) {
	rest = strings.TrimLeft(line, " ")
	return len(line) - len(rest), rest
}

var tabIndent = regexp.MustCompile("^[ -]*\t")

func (s *stumble) tab() bool {
	found := tabIndent.FindString(s.line(s.Line))
	return found != "" && s.say(s.Line, len(found), "a tab; YAML indents with spaces")
}

func (s *stumble) quote() bool {
	return strings.HasPrefix(s.Text, "could not find end character") &&
		s.say(s.Line, s.Column, "the quote %.1s that opens here is never closed", s.rest())
}

func (s *stumble) bracket() bool {
	rest := s.rest()
	closes := strings.HasPrefix(rest, "]") || strings.HasPrefix(rest, "}")
	line, column, opened := s.open()
	switch {
	case closes && opened == 0:
		return s.say(s.Line, s.Column, "this %.1s closes nothing; want it away, or a bracket that opens before", rest)
	case opened != 0 && strings.Contains(s.Text, "must be specified"):
		return s.say(s.Line, s.Column, "want , or %c: the %c of line %d, column %d is still open", closing(opened), opened, line, column)
	case strings.Contains(s.Text, "flow mapping end token"), strings.Contains(s.Text, "sequence end token"):
		return s.say(s.Line, s.Column, "the %.1s that opens here is never closed", rest)
	}
	return false
}

func closing(bracket rune) rune {
	if bracket == '[' {
		return ']'
	}
	return '}'
}

// open finds the innermost bracket that is open where the parser stumbled; 0 is none.
func (s *stumble) open() (line, column int, bracket rune) {
	type opened struct {
		line, column int
		bracket      rune
	}
	var stack []opened
	var quote rune
	for n := 1; n <= s.Line; n++ {
		before, begins := ' ', true // a value may begin here
		for i, r := range []rune(s.line(n)) {
			if n == s.Line && i >= s.Column-1 || quote == 0 && r == '#' && before == ' ' {
				break
			}
			switch {
			case quote != 0:
				if r == quote && before != '\\' {
					quote = 0
				}
			case (r == '"' || r == '\'') && begins:
				quote = r
			case (r == '[' || r == '{') && (begins || len(stack) > 0):
				stack = append(stack, opened{n, i + 1, r})
			case (r == ']' || r == '}') && len(stack) > 0:
				stack = stack[:len(stack)-1]
			}
			begins = r == ' ' && begins || strings.ContainsRune(":-,[{", r)
			before = r
		}
	}
	if len(stack) == 0 {
		return 0, 0, 0
	}
	last := stack[len(stack)-1]
	return last.line, last.column, last.bracket
}

// reserved are what YAML lets no plain text begin with (YAML 1.2.2, 5.3 and 7.3.3).
func (s *stumble) reserved() bool {
	rest := s.rest()
	begins := "@`%&*"
	switch {
	case strings.HasPrefix(s.Text, "invalid header option"):
		begins = ">|"
	case s.Text == "block sequence entries are not allowed in this context":
		begins = "-"
	case s.Text == noValueHere:
		begins += "?"
	}
	if rest == "" || !strings.ContainsRune(begins, rune(rest[0])) {
		return false
	}
	return s.say(s.Line, s.Column, "begins with %.1s, which means something else in YAML; want quotes: '%s'", rest, shorten(rest))
}

var noSpaceAfterDash = regexp.MustCompile(`^-([\w{\["'].*)$`)

func (s *stumble) dash() bool {
	blanks, rest := indented(s.line(s.Line))
	found := noSpaceAfterDash.FindStringSubmatch(rest)
	return found != nil && s.say(s.Line, blanks+1, "want a space after the dash: - %s", shorten(found[1]))
}

var twice = regexp.MustCompile(`^mapping key "(.*)" already defined at \[(\d+):\d+\]$`)

func (s *stumble) twice() bool {
	found := twice.FindStringSubmatch(s.Text)
	return found != nil && s.say(s.Line, s.Column, "key %q stands twice, first in line %s", found[1], found[2])
}

var (
	noSpaceAfterColon = regexp.MustCompile(`^([\w-]+):([^\s:/].*)$`)
	equals            = regexp.MustCompile(`^([\w-]+) *=+ *(.*)$`)
	word              = regexp.MustCompile(`^[\w-]+$`)
	twoWords          = regexp.MustCompile(`^([\w-]+) +(\S+)$`)
	comment           = regexp.MustCompile(`(^|\s+)#.*$`)
)

// noColon says what is wrong with text where a key, its colon and its value should be;
// empty where that cannot be told.
func noColon(text string) string {
	if what := oddIn(text); what != "" && !strings.Contains(text, ": ") {
		return strconv.Quote(shorten(text)) + what
	}
	if found := noSpaceAfterColon.FindStringSubmatch(text); found != nil {
		return fmt.Sprintf("%q has no space after its colon, want %s: %s", shorten(text), found[1], shorten(found[2]))
	}
	if found := equals.FindStringSubmatch(text); found != nil {
		return fmt.Sprintf("%q has no colon, want %s: %s", shorten(text), found[1], shorten(found[2]))
	}
	if word.MatchString(text) {
		return fmt.Sprintf("%q has no colon, want %s: and its value", shorten(text), text)
	}
	if found := twoWords.FindStringSubmatch(text); found != nil {
		return fmt.Sprintf("%q has no colon, want %s: %s", shorten(text), found[1], shorten(found[2]))
	}
	if strings.Contains(text, " ") && !strings.ContainsAny(text[:1], "\"'[]{}&*!|>%@`?:") && !strings.Contains(text, ": ") && !strings.HasSuffix(text, ":") {
		return fmt.Sprintf("%q has no key and colon; want them before a value, # before a comment", shorten(text))
	}
	return ""
}

func (s *stumble) colon() bool {
	switch s.Text {
	case "unexpected key name", "non-map value is specified", "map key definition includes an implicit line break":
	default:
		return false
	}
	return s.keyless(s.Line)
}

// keyless says it where a key, its colon and its value should be in a line and are not.
func (s *stumble) keyless(n int) bool {
	blanks, rest := indented(s.line(n))
	item := strings.TrimLeft(strings.TrimPrefix(rest, "-"), " ")
	what := noColon(comment.ReplaceAllString(item, ""))
	return what != "" && s.say(n, blanks+len(rest)-len(item)+1, "%s", what)
}

const noValueHere = "mapping value is not allowed in this context"

func (s *stumble) colonInText() bool {
	rest := s.rest()
	if s.Text != noValueHere || !strings.Contains(rest, ": ") && !strings.HasSuffix(rest, ":") {
		return false
	}
	return s.say(s.Line, s.Column, "a colon in a text without quotes; want quotes: '%s'", shorten(rest))
}

// deeper finds a key below one that has its value already: the parser took the two lines
// for one text, and complains of the first.
func (s *stumble) deeper() bool {
	if s.Text != noValueHere {
		return false
	}
	above, _ := indented(s.line(s.Line))
	for n := s.Line + 1; n <= len(s.lines); n++ {
		blanks, rest := indented(s.line(n))
		if rest == "" || strings.HasPrefix(rest, "#") {
			continue
		}
		return blanks > above && s.indent(n)
	}
	return false
}

func (s *stumble) indentation() bool {
	blanks, rest := indented(s.line(s.Line))
	return s.Column == blanks+1 && rest != "" && s.indent(s.Line)
}

// indent says how far a line would have to be indented to belong to those above it.
func (s *stumble) indent(n int) bool {
	blanks, rest := indented(s.line(n))
	item := strings.HasPrefix(rest, "- ")
	var want []string
	most := len(s.line(n)) + MaxBytes
	for i := n - 1; i >= 1 && most > 0; i-- {
		at, text := indented(s.line(i))
		if text == "" || strings.HasPrefix(text, "#") || at >= most {
			continue
		}
		most = at
		key := at
		if after := strings.TrimPrefix(text, "-"); after != text {
			if item {
				want = append(want, fmt.Sprint(at))
			}
			key += len(text) - len(strings.TrimLeft(after, " "))
		}
		if !item {
			want = append(want, fmt.Sprint(key))
		}
	}
	if len(want) == 0 || slices.Contains(want, fmt.Sprint(blanks)) {
		return false
	}
	slices.Reverse(want)
	want = slices.Compact(want)
	return s.say(n, blanks+1, "is indented by %d, want %s, as the lines above", blanks, strings.Join(want, " or "))
}

func (s *stumble) afterQuote() bool {
	if !strings.HasPrefix(s.Text, "value is not allowed in this context. map key-value is pre-defined") {
		return false
	}
	quoted := "a text in quotes"
	if s.before != nil {
		quoted = fmt.Sprintf("the text in quotes that begins in line %d, column %d", s.before.Line, s.before.Column)
	}
	return s.say(s.Line, s.Column, "%q follows %s; want the quotes to end where the value ends", shorten(s.rest()), quoted)
}

// item finds a list's item among a map's keys.
func (s *stumble) item() bool {
	blanks, rest := indented(s.line(s.Line))
	if s.Text != nothingHere && s.Text != noMapHere || s.Column > blanks+1 || !strings.HasPrefix(rest, "- ") {
		return false
	}
	return s.say(s.Line, blanks+1, "a list's item among keys; want the key above it that the list belongs to, as in key: and below it - item")
}

const (
	nothingHere = "value is not allowed in this context"
	noMapHere   = "non-map value is specified"
)

// above finds that the line above has no colon: the parser took it for a value, and complains
// of the key after it.
func (s *stumble) above() bool {
	if _, _, opened := s.open(); s.Text != nothingHere || opened != 0 {
		return false
	}
	for n := s.Line - 1; n >= 1; n-- {
		if _, rest := indented(s.line(n)); rest != "" && !strings.HasPrefix(rest, "#") {
			return s.keyless(n)
		}
	}
	return false
}

// afterBracket finds what follows a bracket that closed.
func (s *stumble) afterBracket() bool {
	line := []rune(s.line(s.Line))
	before := strings.TrimRight(string(line[:min(s.Column-1, len(line))]), " ")
	if s.Text != nothingHere || !strings.HasSuffix(before, "]") && !strings.HasSuffix(before, "}") {
		return false
	}
	return s.say(s.Line, s.Column, "%q follows the %s that closes; want a line of its own, or # before a comment", shorten(s.rest()), before[len(before)-1:])
}

// inWords are the parser's complaints that help nobody who does not know the parser.
var inWords = map[string]string{
	nothingHere:                                          "neither a list nor a map goes on with this; want a - before an item, a key and a colon before a value, as in the lines above",
	noMapHere:                                            "a value among keys; want a key and a colon before it",
	"unexpected key name":                                "no key; want a key, a colon and a value, or # before a comment",
	"could not find flow map content":                    "want a key, a colon and a value in braces, like {a: 1}",
	"could not find map value":                           "want a key, a colon and a value in braces, like {a: 1}",
	"found an invalid key for this map":                  "no key; want a key, a colon and a value, like a: 1",
	"unexpected map key":                                 "no key; want a key, a colon and a value, like a: 1",
	"unexpected scalar value type":                       "no key; want a key, a colon and a value, like a: 1",
	"could not find '[' character corresponding to ']'":  "a ] that closes nothing; want it away, or a [ that opens before",
	"could not find '{' character corresponding to '}'":  "a } that closes nothing; want it away, or a { that opens before",
	"tab character cannot use as a map key directly":     "a tab before a key; want spaces",
	noValueHere:                                          "a colon where no key can be; want it away, or the text in quotes",
	"map key definition includes an implicit line break": "a key that goes on in the next line; want key and colon in one",
}

func (s *stumble) otherwise() bool {
	text, is := inWords[s.Text]
	return is && s.say(s.Line, s.Column, "%s", text)
}

// oddIn names the first character of a key that looks like a space, or like nothing, as the
// end of a sentence; empty where there is none.
func oddIn(text string) string {
	for _, r := range text {
		if r != ' ' && (unicode.IsSpace(r) || unicode.Is(unicode.Cf, r)) {
			return fmt.Sprintf(" holds %U, which looks like a space or like nothing; want plain spaces", r)
		}
	}
	return ""
}

// plain keeps what is quoted from a file to one line.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '�'
		}
		return r
	}, text)
}
