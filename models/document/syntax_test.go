package document

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// typos are common mistakes in YAML, and the messages for them.
var typos = []struct{ name, text, want string }{
	{"a tab that indents", "a:\n\tb: 1\n", "f.yaml:2:1: a tab; YAML indents with spaces"},
	{"a tab after spaces", "a:\n  b: 1\n  \tc: 1\n", "f.yaml:3:3: a tab; YAML indents with spaces"},
	{"a tab on the first line", "\ta: 1\n", "f.yaml:1:1: a tab; YAML indents with spaces"},
	{"a tab after a dash", "a:\n  -\tb: 1\n  \tc: 1\n", "f.yaml:2:4: a tab; YAML indents with spaces"},
	{"a tab before a comment", "a: 1\n\t# c\nb: 1\n", "f.yaml:2:1: a tab; YAML indents with spaces"},
	{"a tab in a block", "a: |\n\tb\n", "f.yaml:2:1: a tab; YAML indents with spaces"},

	{"a quote left open", "a: 1\nb: \"x\nc: 1\n", `f.yaml:2:4: could not find end character of double-quoted text: "b: \"x"`},
	{"the other quote left open", "b: 'x\nc: 1\n", `f.yaml:1:4: could not find end character of single-quoted text: "b: 'x"`},
	{"a quote closed by the next", "a: \"x\nb: \"y\"\n", `f.yaml:2:5: value is not allowed in this context. map key-value is pre-defined: "b: \"y\""; want quotes to end where the value ends, and each key in a line of its own`},
	{"a word after a quote", "a: 'x' y\n", `f.yaml:1:8: value is not allowed in this context. map key-value is pre-defined: "a: 'x' y"; want quotes to end where the value ends, and each key in a line of its own`},
	{"keys below a quoted value", "a: 'x'\n  b: 1\n", `f.yaml:2:3: value is not allowed in this context. map key-value is pre-defined: "b: 1"; want quotes to end where the value ends, and each key in a line of its own, indented as its neighbours`},

	{"no space after the first colon", "a:b\nc: 1\n", "f.yaml:1:1: unexpected key name: \"a:b\"; want `key: value`, with a space after the colon, or # before a comment"},
	{"no space after a later colon", "c: 1\na:b\n", "f.yaml:2:1: non-map value is specified: \"a:b\"; want `key: value`, with a space after the colon"},
	{"no space after a colon in a list", "c:\n  - a:b\n    d: 1\n", "f.yaml:2:5: unexpected key name: \"- a:b\"; want `key: value`, with a space after the colon, or # before a comment"},
	{"an equals sign", "c: 1\na = b\n", "f.yaml:2:1: non-map value is specified: \"a = b\"; want `key: value`, with a space after the colon"},
	{"no colon", "c: 1\na\nb: 1\n", "f.yaml:2:1: non-map value is specified: \"a\"; want `key: value`, with a space after the colon"},
	{"no colon between key and value", "a: 1\nport 5003 # c\nb: 1\n", "f.yaml:2:1: non-map value is specified: \"port 5003 # c\"; want `key: value`, with a space after the colon"},
	{"no colon after a map's first key, without a comment", "a:\n  change shadow\n  b: 1\n", "f.yaml:2:3: unexpected key name: \"change shadow\"; want `key: value`, with a space after the colon, or # before a comment"},
	{"no colon after a quoted first key", "a:\n  'change'\n  b: 1\n", "f.yaml:3:3: value is not allowed in this context: \"b: 1\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"a first comment without its mark", "# a\n comment of two lines\na: 1\n", "f.yaml:2:2: unexpected key name: \"comment of two lines\"; want `key: value`, with a space after the colon, or # before a comment"},
	{"a list among keys", "a: 1\n- b: 1\n", "f.yaml:2:1: non-map value is specified: \"- b: 1\"; want `key: value`, with a space after the colon"},
	{"a list's first item without its dash", "a:\n    b: 1\n  - c: 1\n", "f.yaml:3:3: value is not allowed in this context: \"- c: 1\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"braces without a colon", "a:\n  - {b: p, c [10]}\n", "f.yaml:2:12: could not find flow map content: \"- {b: p, c [10]}\"; want `key: value` in braces, with a space after the colon"},
	{"a comment without its mark behind brackets", "a: [] c\nb: 1\n", "f.yaml:1:7: value is not allowed in this context: \"a: [] c\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"two items in a line", "- {a: 1}- {a: 2}\n", "f.yaml:1:9: value is not allowed in this context: \"- {a: 1}- {a: 2}\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"an item's first line is missing", "- {a: 1}\n  b: 1\n", "f.yaml:2:3: value is not allowed in this context: \"b: 1\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"no space after a dash", "c:\n  -a: b\n    d: 1\n", `f.yaml:2:7: mapping value is not allowed in this context: "-a: b"; want quotes around a text with a colon, a space after a dash, and the next line indented as its neighbours`},

	{"a key twice", "a: 1\nb: 1\na: 2\n", `f.yaml:3:1: mapping key "a" already defined at [1:1]: "a: 2"`},

	{"too deep", "a:\n  b: x\n   c: 1\n", `f.yaml:2:6: mapping value is not allowed in this context: "b: x"; want quotes around a text with a colon, a space after a dash, and the next line indented as its neighbours`},
	{"not deep enough", "a:\n   b: x\n  c: 1\n", "f.yaml:3:3: value is not allowed in this context: \"c: 1\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"too deep at the top", "a: x\n  b: 1\n", `f.yaml:1:4: mapping value is not allowed in this context: "a: x"; want quotes around a text with a colon, a space after a dash, and the next line indented as its neighbours`},

	{"a colon in a value", "a: 1\nb: x: y\n", `f.yaml:2:4: mapping value is not allowed in this context: "b: x: y"; want quotes around a text with a colon`},
	{"a colon that ends a value", "a: x:\n", `f.yaml:1:4: mapping value is not allowed in this context: "a: x:"; want quotes around a text with a colon`},

	{"a bracket left open", "a: [x, y\nb: 1\n", `f.yaml:2:1: ',' or ']' must be specified: "b: 1"; want each bracket to be closed`},
	{"a brace left open before a key", "a: {\n  b: 1,\nc: 2\n", `f.yaml:1:4: could not find flow mapping end token '}': "a: {"; want each bracket to be closed`},
	{"a brace left open", "a:\n  - {b: \"}\", c: '['\n  - {b: 1}\n", `f.yaml:3:3: ',' or '}' must be specified: "- {b: 1}"; want each bracket to be closed`},
	{"the wrong bracket", "a: {b: [1, 2} # [\n", `f.yaml:1:13: ',' or ']' must be specified: "a: {b: [1, 2} # ["; want each bracket to be closed`},
	{"a bracket left open at the end", "a: [x", `f.yaml:1:4: sequence end token ']' not found: "a: [x"; want each bracket to be closed`},
	{"a brace too many", "a: {b: 1}}\n", "f.yaml:1:10: value is not allowed in this context: \"a: {b: 1}}\"; want `key: value`, in the line above too, indented as its neighbours"},
	{"a bracket too many", "a: ]\n", `f.yaml:1:4: could not find '[' character corresponding to ']': "a: ]"`},

	{"an at", "a: @x\n", `f.yaml:1:4: '@' is a reserved character: "a: @x"; want quotes around the text`},
	{"a backtick", "a: `x`\n", "f.yaml:1:4: '`' is a reserved character: \"a: `x`\"; want quotes around the text"},
	{"a percent sign", "%a: 1\n", `f.yaml:1:1: unexpected directive value. document not started: "%a: 1"; want quotes around the text`},
	{"an ampersand", "a: &x\n", `f.yaml:1:4: undefined anchor value: "a: &x"; want quotes around the text`},
	{"a dash for a value", "a: - x\n", `f.yaml:1:4: block sequence entries are not allowed in this context: "a: - x"; want the list below its key, or quotes around the text`},
	{"a greater for a value", "a: >x\n", `f.yaml:1:4: invalid header option: "x": "a: >x"; want quotes around the text`},

	{"a zero byte", "a: 1\nb: x\x00y\n", "f.yaml:2:5: a zero byte: the file is not text, or is damaged"},
	{"Latin-1", "a: 1\nb: \xe9\n", "f.yaml:2:4: byte 0xE9 is not UTF-8; want UTF-8: save it as UTF-8, or convert it with `iconv -t UTF-8`"},
	{"UTF-16", "\xff\xfe" + wide("a: 1\n", 0), "f.yaml: is in UTF-16, want UTF-8"},
	{"UTF-16, the other way", "\xfe\xff" + wide("a: 1\n", 1), "f.yaml: is in UTF-16, want UTF-8"},
	{"UTF-16 without a mark", wide("a: 1\n", 0), "f.yaml: is in UTF-16, want UTF-8"},
	{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", "f.yaml: is in UTF-32, want UTF-8"},
	{"a mark only", "\ufeff", "f.yaml: is empty"},
	{"a second document", "a: 1\n...\nb: 1\n", "f.yaml:3:1: second document begins; want one"},
}

// wide returns ASCII text in UTF-16. high is the index of the byte that is not zero.
func wide(text string, high int) string {
	var b []byte
	for _, c := range utf16.Encode([]rune(text)) {
		two := []byte{0, 0}
		two[high] = byte(c)
		b = append(b, two...)
	}
	return string(b)
}

func TestSyntaxHints(t *testing.T) {
	for _, s := range typos {
		_, err := Parse("f.yaml", []byte(s.text))
		if err == nil || !strings.HasPrefix(err.Error(), s.want) {
			t.Errorf("%s: got\n  %v, want\n  %s", s.name, err, s.want)
		}
		// Windows' line ends change nothing.
		ends := strings.ReplaceAll(s.text, "\n", "\r\n")
		if strings.Contains(s.name, "UTF-16") {
			continue
		}
		if _, err := Parse("f.yaml", []byte(ends)); err == nil || !strings.HasPrefix(err.Error(), s.want) {
			t.Errorf("%s, with CRLF: got\n  %v, want\n  %s", s.name, err, s.want)
		}
	}
}

func TestUnknownKeyHints(t *testing.T) {
	for text, want := range map[string]string{
		"a:b\n":                 `f.yaml:1:1: is "a:b", want a map of a, b, with a colon and a space after each key`,
		"a = b":                 `f.yaml:1:1: is "a = b", want a map of a, b, with a colon and a space after each key`,
		"a: {}\n\u00a0b: 1\n":   `f.yaml:2:1: unknown key "\u00a0b", did you mean "b"?`,
		"a:\nqueue: 1\n":        `f.yaml:2:1: unknown key "queue"; want it indented if it belongs to "a" above it`,
		"a: {}\nb:\nqueue: 1\n": `f.yaml:3:1: unknown key "queue"; want it indented if it belongs to "b" above it`,
		"a:\nb: 1\nqueue: 1\n":  `f.yaml:3:1: unknown key "queue"; known are a, b`,
		"a:\n  inner:1\n":       `f.yaml:2:3: a: is "inner:1", want a map of inner, with a colon and a space after each key`,
	} {
		d := parsed(t, text)
		d.Root().Decode(&struct {
			A struct {
				Inner int `yaml:"inner"`
			} `yaml:"a"`
			B Value `yaml:"b"`
		}{})
		if err := d.Err(); err == nil || err.Error() != want {
			t.Errorf("%q: got\n  %v, want\n  %s", text, err, want)
		}
	}
}

func TestByteOrderMark(t *testing.T) {
	d := parsed(t, "\ufeffa: x\n")
	d.Root().Decode(&struct {
		A int `yaml:"a" min:"0" max:"1"`
	}{})
	if err := d.Err(); err == nil || err.Error() != `f.yaml:1:4: a: is "x", want an integer from 0 to 1` {
		t.Errorf("got %v", err)
	}
}

// FuzzParse: for any content of a file, the error is one line of text about a position
// in the file.
func FuzzParse(f *testing.F) {
	for _, s := range typos {
		f.Add([]byte(s.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, err := Parse("f.yaml", data)
		if err == nil {
			return
		}
		var p *Problem
		if !errors.As(err, &p) {
			t.Fatalf("%T: %v", err, err)
		}
		if strings.ContainsAny(err.Error(), "\n\r\t\x1b") || !utf8.ValidString(err.Error()) {
			t.Errorf("%q", err.Error())
		}
	})
}
