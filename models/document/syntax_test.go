package document

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// slips are what people get wrong in YAML, and what they are told.
var slips = []struct{ name, text, want string }{
	{"a tab that indents", "a:\n\tb: 1\n", "f.yaml:2:1: a tab; YAML indents with spaces"},
	{"a tab after spaces", "a:\n  b: 1\n  \tc: 1\n", "f.yaml:3:3: a tab; YAML indents with spaces"},
	{"a tab on the first line", "\ta: 1\n", "f.yaml:1:1: a tab; YAML indents with spaces"},
	{"a tab after a dash", "a:\n  -\tb: 1\n  \tc: 1\n", "f.yaml:2:4: a tab; YAML indents with spaces"},
	{"a tab before a comment", "a: 1\n\t# c\nb: 1\n", "f.yaml:2:1: a tab; YAML indents with spaces"},
	{"a tab in a block", "a: |\n\tb\n", "f.yaml:2:1: a tab; YAML indents with spaces"},

	{"a quote left open", "a: 1\nb: \"x\nc: 1\n", `f.yaml:2:4: the quote " that opens here is never closed`},
	{"the other quote left open", "b: 'x\nc: 1\n", `f.yaml:1:4: the quote ' that opens here is never closed`},
	{"a quote closed by the next", "a: \"x\nb: \"y\"\n", `f.yaml:2:5: "y\"" follows the text in quotes that begins in line 1, column 4; want the quotes to end where the value ends`},
	{"a word after a quote", "a: 'x' y\n", `f.yaml:1:8: "y" follows the text in quotes that begins in line 1, column 4`},
	{"keys below a quoted value", "a: 'x'\n  b: 1\n", "f.yaml:2:3: is indented by 2, want 0, as the lines above"},

	{"no space after the first colon", "a:b\nc: 1\n", `f.yaml:1:1: "a:b" has no space after its colon, want a: b`},
	{"no space after a later colon", "c: 1\na:b\n", `f.yaml:2:1: "a:b" has no space after its colon, want a: b`},
	{"no space after a colon in a list", "c:\n  - a:b\n    d: 1\n", `f.yaml:2:5: "a:b" has no space after its colon, want a: b`},
	{"an equals sign", "c: 1\na = b\n", `f.yaml:2:1: "a = b" has no colon, want a: b`},
	{"no colon", "c: 1\na\nb: 1\n", `f.yaml:2:1: "a" has no colon, want a: and its value`},
	{"no colon between key and value", "a: 1\nport 5003 # c\nb: 1\n", `f.yaml:2:1: "port 5003" has no colon, want port: 5003`},
	{"no colon after a map's first key", "a:\n  change shadow # c: d\n  b: 1\n", `f.yaml:2:3: "change shadow" has no colon, want change: shadow`},
	{"no colon after an item's first key", "a:\n  - change shadow\n\n    # c\n    b: 1\n", `f.yaml:2:5: "change shadow" has no colon, want change: shadow`},
	{"a first comment without its mark", "# a\n comment of two lines\na: 1\n", `f.yaml:2:2: "comment of two lines" has no key and colon; want them before a value, # before a comment`},
	{"a list among keys", "a: 1\n- b: 1\n", "f.yaml:2:1: a list's item among keys; want the key above it"},
	{"a list's first item without its dash", "a:\n    b: 1\n  - c: 1\n", "f.yaml:3:3: a list's item among keys; want the key above it"},
	{"braces without a colon", "a:\n  - {b: p, c [10]}\n", "f.yaml:2:12: want a key, a colon and a value in braces, like {a: 1}"},
	{"indentation that is wrong in two ways", "a:\n  - b: x\n    c:\n      d: 1\n   e: 1\n", "f.yaml:5:4: is indented by 3, want 0 or 4 or 6, as the lines above"},
	{"a comment without its mark behind brackets", "a: [] c\nb: 1\n", `f.yaml:1:7: "c" follows the ] that closes; want a line of its own, or # before a comment`},
	{"two items in a line", "- {a: 1}- {a: 2}\n", `f.yaml:1:9: "- {a: 2}" follows the } that closes`},
	{"an item's first line is missing", "- {a: 1}\n  b: 1\n", "f.yaml:2:3: neither a list nor a map goes on with this; want a - before an item"},
	{"no space after a dash", "c:\n  -a: b\n    d: 1\n", `f.yaml:2:3: want a space after the dash: - a: b`},

	{"a key twice", "a: 1\nb: 1\na: 2\n", `f.yaml:3:1: key "a" stands twice, first in line 1`},

	{"too deep", "a:\n  b: x\n   c: 1\n", "f.yaml:3:4: is indented by 3, want 0 or 2, as the lines above"},
	{"too deep after a comment", "a:\n  b: x\n# c\n\n   c: 1\n", "f.yaml:5:4: is indented by 3, want 0 or 2, as the lines above"},
	{"not deep enough", "a:\n   b: x\n  c: 1\n", "f.yaml:3:3: is indented by 2, want 0 or 3, as the lines above"},
	{"too deep at the top", "a: x\n  b: 1\n", "f.yaml:2:3: is indented by 2, want 0, as the lines above"},
	{"too deep in a list", "a:\n  - b: x\n      c: 1\n", "f.yaml:3:7: is indented by 6, want 0 or 4, as the lines above"},
	{"not deep enough in a list", "a:\n  - b: x\n   c: 1\n", "f.yaml:3:4: is indented by 3, want 0 or 4, as the lines above"},
	{"a dash between", "a:\n  - b: x\n    c: 1\n   - b: y\n", "f.yaml:4:4: is indented by 3, want 2, as the lines above"},

	{"a colon in a value", "a: 1\nb: x: y\n", "f.yaml:2:4: a colon in a text without quotes; want quotes: 'x: y'"},
	{"a colon that ends a value", "a: x:\n", "f.yaml:1:4: a colon in a text without quotes; want quotes: 'x:'"},

	{"a bracket left open", "a: [x, y\nb: 1\n", "f.yaml:2:1: want , or ]: the [ of line 1, column 4 is still open"},
	{"a brace left open", "a:\n  - {b: \"}\", c: '['\n  - {b: 1}\n", "f.yaml:3:3: want , or }: the { of line 2, column 5 is still open"},
	{"the wrong bracket", "a: {b: [1, 2} # [\n", "f.yaml:1:13: want , or ]: the [ of line 1, column 8 is still open"},
	{"a bracket left open at the end", "a: [x", "f.yaml:1:4: the [ that opens here is never closed"},
	{"a brace too many", "a: {b: 1}}\n", "f.yaml:1:10: this } closes nothing"},
	{"a bracket too many", "a: ]\n", "f.yaml:1:4: this ] closes nothing"},

	{"an at", "a: @x\n", "f.yaml:1:4: begins with @, which means something else in YAML; want quotes: '@x'"},
	{"a backtick", "a: `x`\n", "f.yaml:1:4: begins with `, which means something else in YAML; want quotes: '`x`'"},
	{"a percent sign", "%a: 1\n", "f.yaml:1:1: begins with %, which means something else in YAML; want quotes: '%a: 1'"},
	{"an ampersand", "a: &x\n", "f.yaml:1:4: begins with &, which means something else in YAML; want quotes: '&x'"},
	{"a dash for a value", "a: - x\n", "f.yaml:1:4: begins with -, which means something else in YAML; want quotes: '- x'"},
	{"a greater for a value", "a: >x\n", "f.yaml:1:4: begins with >, which means something else in YAML; want quotes: '>x'"},

	{"a zero byte", "a: 1\nb: x\x00y\n", "f.yaml:2:5: a zero byte: this is not a text file, or a damaged one"},
	{"Latin-1", "a: 1\nb: \xe9\n", "f.yaml:2:4: byte 0xE9 is not UTF-8; want UTF-8: save it so, or `iconv -t UTF-8` it"},
	{"UTF-16", "\xff\xfe" + wide("a: 1\n", 0), "f.yaml: is in UTF-16, want UTF-8"},
	{"UTF-16, the other way", "\xfe\xff" + wide("a: 1\n", 1), "f.yaml: is in UTF-16, want UTF-8"},
	{"UTF-16 without a mark", wide("a: 1\n", 0), "f.yaml: is in UTF-16, want UTF-8"},
	{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", "f.yaml: is in UTF-32, want UTF-8"},
	{"a mark only", "\ufeff", "f.yaml: is empty"},
	{"a second document", "a: 1\n...\nb: 1\n", "f.yaml:3:1: second document begins; want one"},
}

// wide is ASCII in UTF-16; high is where its zero byte is not.
func wide(text string, high int) string {
	var b []byte
	for _, c := range utf16.Encode([]rune(text)) {
		two := []byte{0, 0}
		two[high] = byte(c)
		b = append(b, two...)
	}
	return string(b)
}

func TestSlipsOfThePenAreNamed(t *testing.T) {
	for _, s := range slips {
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

func TestKeysAreMissedInWordsThatHelp(t *testing.T) {
	for text, want := range map[string]string{
		"a:b\n":                  `f.yaml:1:1: "a:b" has no space after its colon, want a: b`,
		"a = b":                  `f.yaml:1:1: "a = b" has no colon, want a: b`,
		"a:\u00a0b":              `f.yaml:1:1: "a:\u00a0b" holds U+00A0, which looks like a space or like nothing; want plain spaces`,
		"hello world":            `f.yaml:1:1: is "hello world", want a map of a, b`,
		"a: {}\n\u00a0b: 1\n":    `f.yaml:2:1: unknown key "\u00a0b" holds U+00A0, which looks like a space or like nothing; want plain spaces`,
		"a:\nqueue: 1\n":         `f.yaml:2:1: unknown key "queue"; want it indented if it belongs to "a" above it`,
		"a: {}\nb:\nqueue: 1\n":  `f.yaml:3:1: unknown key "queue"; want it indented if it belongs to "b" above it`,
		"a:\nb: 1\nqueue: 1\n":   `f.yaml:3:1: unknown key "queue"; known are a, b`,
		"a:\n  inner:1\n":        `f.yaml:2:3: a: "inner:1" has no space after its colon, want inner: 1`,
		"a:\n  outer:1\nb: {}\n": `f.yaml:2:3: a: is "outer:1", want a map of inner`,
	} {
		d := parsed(t, text)
		d.Root().Map("a", "b").May("a").Map("inner")
		if err := d.Err(); err == nil || err.Error() != want {
			t.Errorf("%q: got\n  %v, want\n  %s", text, err, want)
		}
	}
}

func TestAMarkBeforeUTF8IsNoPartOfTheText(t *testing.T) {
	d := parsed(t, "\ufeffa: x\n")
	d.Root().Map("a").May("a").Int(0, 1)
	if err := d.Err(); err == nil || err.Error() != `f.yaml:1:4: a: is "x", want an integer from 0 to 1` {
		t.Errorf("got %v", err)
	}
}

// FuzzParse: whatever is in a file, what is said of it is one line of text about a place
// that the file has.
func FuzzParse(f *testing.F) {
	for _, s := range slips {
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
