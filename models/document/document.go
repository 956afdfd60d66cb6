// Package document reads the files that people write for Penstock: YAML, tables in CSV (Table) and
// JSON (DecodeJSON). Each of its errors is one line: file, line, column, the field, the value, and what
// would be right.
//
// The flow for YAML: Parse returns a Document. Decode reads its Root into a struct whose tags
// define the keys. It records errors and continues. The caller adds errors with Reject
// for rules that tags cannot express. Err returns all errors.
//
// A document is plain data: one document, no anchors, aliases, merge keys or tags, no
// duplicate keys.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/lithammer/fuzzysearch/fuzzy"
)

// MaxBytes is the largest file that Parse accepts. A card is about 2 KiB. The limit
// rejects a wrong path (a model, a device) before parsing.
const MaxBytes = 256 << 10

// maxDepth limits how deep flow collections may nest, because the parser is recursive.
const maxDepth = 64

// Problem is one fault in a file.
type Problem struct {
	File         string
	Line, Column int    // from 1; 0 if the problem is about the whole file
	Field        string // like input.size[0]; empty if there is none
	Text         string // what is wrong and what would be right
}

// Error formats the problem as one line.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Field != "" {
		b.WriteString(p.Field)
		b.WriteString(": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Document is a parsed file and the problems found in it. Only one goroutine may use it.
type Document struct {
	file     string
	root     Value
	problems []*Problem
	warnings []*Problem
}

// Parse reads YAML. The error is a *Problem.
func Parse(file string, data []byte) (*Document, error) {
	d := &Document{file: file}
	if len(data) > MaxBytes {
		return nil, &Problem{File: file, Text: fmt.Sprintf("has %d bytes, want at most %d", len(data), MaxBytes)}
	}
	parsed, err := d.tree(data)
	if err != nil {
		return nil, err
	}
	if len(parsed.Docs) > 1 {
		p := &Problem{File: file, Text: "second document begins; want one"}
		// The --- is missing after a ...; the document's own token is missing if nothing
		// follows.
		if at := parsed.Docs[1].Start; at != nil && at.Position != nil {
			p.Line, p.Column = at.Position.Line, at.Position.Column
		} else if body := parsed.Docs[1].Body; body != nil {
			at := d.value(body, "")
			p.Line, p.Column = at.line, at.column
		}
		return nil, p
	}
	d.root = Value{doc: d, line: 1, column: 1}
	if len(parsed.Docs) == 1 && parsed.Docs[0].Body != nil {
		d.root = d.value(parsed.Docs[0].Body, "")
	}
	if d.root.Absent() {
		return nil, &Problem{File: file, Text: "is empty, want a map of keys and values"}
	}
	return d, nil
}

func (d *Document) tree(data []byte) (*ast.File, error) {
	if depth(data) > maxDepth {
		return nil, &Problem{File: d.file, Text: fmt.Sprintf("nests deeper than %d brackets", maxDepth)}
	}
	data, problem := d.text(data)
	if problem != nil {
		return nil, problem
	}
	parsed, err := parse(data)
	if err != nil {
		return nil, d.syntax(data, err)
	}
	return parsed, nil
}

// parse turns a panic of the parser, which is third-party code, into an error of this
// file.
func parse(data []byte) (f *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, errors.New("the YAML parser cannot read it")
		}
	}()
	return parser.ParseBytes(data, 0)
}

// depth returns an upper bound of how deep brackets nest.
func depth(data []byte) int {
	now, deepest := 0, 0
	for _, c := range data {
		switch c {
		case '[', '{':
			now++
			deepest = max(deepest, now)
		case ']', '}':
			now--
		}
	}
	return deepest
}

// Root returns the whole document.
func (d *Document) Root() Value { return d.root }

// Err returns all problems in the order of the file, one line each; nil if there are
// none. Each part is a *Problem.
func (d *Document) Err() error {
	slices.SortStableFunc(d.problems, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	all := make([]error, len(d.problems))
	for i, p := range d.problems {
		all[i] = p
	}
	return errors.Join(all...)
}

// Warnings returns what is right and should be changed, one line each, in the order of decoding.
func (d *Document) Warnings() (lines []string) {
	for _, w := range d.warnings {
		lines = append(lines, w.Error())
	}
	return lines
}

// Value is a place in the document: a scalar, a list, a map, or a place without a value.
type Value struct {
	doc          *Document
	node         ast.Node // nil: absent
	field        string
	line, column int
}

func (d *Document) value(node ast.Node, field string) Value {
	v := Value{doc: d, node: node, field: field}
	if _, ok := node.(*ast.NullNode); ok {
		v.node = nil
	}
	if at := node.GetToken(); at != nil && at.Position != nil {
		v.line, v.column = at.Position.Line, at.Position.Column
	}
	// A map's own token is its first ':'. Its position here is that of its first key.
	if m, ok := node.(ast.MapNode); ok {
		if i := m.MapRange(); i.Next() {
			if at := i.Key().GetToken(); at != nil && at.Position != nil {
				v.line, v.column = at.Position.Line, at.Position.Column
			}
		}
	}
	return v
}

// Absent reports whether there is no value here, or null.
func (v Value) Absent() bool { return v.node == nil }

// Reject records that the value is wrong. The text says what it is and what would be
// right.
func (v Value) Reject(format string, args ...any) {
	v.doc.problems = append(v.doc.problems, v.problem(format, args))
}

// Warn records that the value should be changed.
func (v Value) Warn(format string, args ...any) {
	v.doc.warnings = append(v.doc.warnings, v.problem(format, args))
}

func (v Value) problem(format string, args []any) *Problem {
	text := plain(fmt.Sprintf(format, args...))
	return &Problem{File: v.doc.file, Line: v.line, Column: v.column, Field: v.field, Text: text}
}

func (v Value) want(what string) { v.Reject("is %s, want %s", v.describe(), what) }

// describe describes the value briefly.
func (v Value) describe() string {
	switch n := v.node.(type) {
	case nil:
		return "missing"
	case ast.MapNode:
		return "a map"
	case *ast.SequenceNode:
		return "a list of " + strconv.Itoa(len(n.Values))
	case *ast.StringNode:
		return strconv.Quote(shorten(n.Value))
	case *ast.LiteralNode:
		return strconv.Quote(shorten(n.Value.Value))
	case *ast.AliasNode:
		return "an alias"
	case *ast.AnchorNode:
		return "an anchor"
	case *ast.TagNode:
		return "tagged"
	}
	return shorten(v.node.GetToken().Value)
}

func shorten(s string) string {
	const most = 40
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

// entry is a key of a map with its value.
type entry struct {
	name       string
	key, value Value
}

// entries returns those of a map in their order. It reports keys that are not plain words.
func (v Value) entries() (list []entry) {
	node, ok := v.node.(ast.MapNode)
	if !ok {
		return nil
	}
	for i := node.MapRange(); i.Next(); {
		key := v.doc.value(i.Key(), v.field)
		name, isString := i.Key().(*ast.StringNode)
		if !isString {
			key.Reject("key %s is not a plain word", shorten(i.Key().String()))
			continue
		}
		list = append(list, entry{name.Value, key, v.doc.value(i.Value(), v.path(name.Value))})
	}
	return list
}

// path returns the field of a key.
func (v Value) path(key string) string {
	if v.field == "" {
		return key
	}
	return v.field + "." + key
}

// keyed reads a map that may have these keys and no others. It reports a misspelt key
// together with the probable right one. meant has those.
func (v Value) keyed(keys []string) (values map[string]Value, meant []string) {
	values = make(map[string]Value)
	above := "" // the previous key, if it has no value
	for _, e := range v.entries() {
		if !slices.Contains(keys, e.name) {
			e.key.Reject("unknown key %s%s", strconv.Quote(shorten(e.name)), unknownKey(e.name, above, keys))
			meant = append(meant, nearest(e.name, keys))
			continue
		}
		if _, twice := values[e.name]; twice {
			e.key.Reject("key %q is listed twice", e.name)
			continue
		}
		if above = ""; e.value.Absent() {
			above = e.name
		}
		if e.value.line == 0 || e.value.Absent() {
			e.value.line, e.value.column = e.key.line, e.key.column
		}
		values[e.name] = e.value
	}
	return values, meant
}

// unknownKey returns a hint about an unknown key, as the end of a sentence. above is the
// previous key if that one has no value.
func unknownKey(key, above string, keys []string) string {
	if near := Near(key, keys); near == "" && above != "" {
		return fmt.Sprintf("; want it indented if it belongs to %q above it", above)
	}
	return Correct(key, keys)
}

// List returns all elements. It reports absent ones; what describes a right element.
func (v Value) List(what string) []Value {
	if v.Absent() {
		return nil
	}
	seq, ok := v.node.(*ast.SequenceNode)
	if !ok {
		v.want(what)
		return nil
	}
	out := make([]Value, 0, len(seq.Values))
	for i, n := range seq.Values {
		e := v.doc.value(n, fmt.Sprintf("%s[%d]", v.field, i))
		if e.Absent() {
			e.Reject("is missing, want %s", what)
		}
		out = append(out, e)
	}
	return out
}

// IsList reports whether the value is a list.
func (v Value) IsList() bool {
	_, ok := v.node.(*ast.SequenceNode)
	return ok
}

// IsMap reports whether the value is a map.
func (v Value) IsMap() bool {
	_, ok := v.node.(ast.MapNode)
	return ok
}

// Text reads a string that is not empty. A number or a word like true must be quoted to
// be a string.
func (v Value) Text(what string) string {
	if v.Absent() {
		return ""
	}
	s, ok := v.text()
	if !ok || s == "" {
		v.want(what)
	}
	return s
}

func (v Value) text() (string, bool) {
	switch n := v.node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	}
	return "", false
}

// Peek returns the string at a map's key, empty if there is none, and reports nothing.
// It is for maps whose allowed keys depend on one of them.
func (v Value) Peek(key string) string {
	s, _ := v.at(key, "").text()
	return s
}

func (v Value) integer() (int64, bool) {
	n, ok := v.node.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch x := n.Value.(type) {
	case int64:
		return x, true
	case uint64:
		return int64(x), x <= math.MaxInt64
	}
	return 0, false
}

// Plain returns the value as plain data: map[string]any, []any, string, bool, int64,
// float64, or nil. It reports everything that is not plain data.
func (v Value) Plain() any {
	switch n := v.node.(type) {
	case nil:
		return nil
	case ast.MapNode:
		out := make(map[string]any)
		for _, e := range v.entries() {
			out[e.name] = e.value.Plain()
		}
		return out
	case *ast.SequenceNode:
		out := make([]any, len(n.Values))
		for i, e := range n.Values {
			out[i] = v.doc.value(e, fmt.Sprintf("%s[%d]", v.field, i)).Plain()
		}
		return out
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.BoolNode:
		return n.Value
	case *ast.IntegerNode:
		if x, ok := v.integer(); ok {
			return x
		}
	case *ast.FloatNode:
		return n.Value
	}
	v.want("plain data")
	return nil
}

// Correct suggests the word that a misspelt one may stand for, as the end of a sentence.
// If none is similar, it lists them all.
func Correct(word string, words []string) string {
	if m := Near(word, words); m != "" {
		return m
	}
	return "; known are " + strings.Join(words, ", ")
}

// Near is Correct, but empty if no word is similar.
func Near(word string, words []string) string {
	if w := nearest(word, words); w != "" {
		return fmt.Sprintf(", did you mean %q?", w)
	}
	return ""
}

// nearest finds the word that another is probably a misspelling of. At most a third of
// its letters may differ, or the same letters are in another order. It returns an empty
// string if there is no such word, or several.
func nearest(word string, words []string) string {
	const longest = 64 // the distance costs the product of the lengths
	if len(word) > longest {
		return ""
	}
	word = strings.ToLower(word)
	best, distance := "", math.MaxInt
	for _, w := range words {
		n := fuzzy.LevenshteinDistance(word, strings.ToLower(w))
		if sameLetters(word, w) {
			n = 1
		}
		switch {
		case n > max(1, len(w)/3) || n > distance:
		case n == distance:
			best = ""
		default:
			best, distance = w, n
		}
	}
	return best
}

func sameLetters(a, b string) bool {
	x, y := []byte(a), []byte(strings.ToLower(b))
	slices.Sort(x)
	slices.Sort(y)
	return bytes.Equal(x, y)
}

// Has reports whether a map has a value at a key.
func (v Value) Has(key string) bool { return v.Find(key).node != v.node }

// Find returns the value at a path of keys (string) and list indexes (int). If there is
// none, it returns the last value on the path, with the field of the whole path. A
// missing value is therefore reported at the place where it would be.
func (v Value) Find(path ...any) Value {
	field := v.field
	found := true
	for _, step := range path {
		next := Value{}
		switch step := step.(type) {
		case string:
			field = Value{field: field}.path(step)
			next = v.at(step, field)
		case int:
			field += fmt.Sprintf("[%d]", step)
			if list, ok := v.node.(*ast.SequenceNode); ok && step < len(list.Values) {
				next = v.doc.value(list.Values[step], field)
			}
		}
		if found = found && next.node != nil; found {
			v = next
		}
	}
	v.field = field
	return v
}

// at returns the value at a key of a map, without a node if there is none. The last
// value counts.
func (v Value) at(key, field string) (found Value) {
	node, ok := v.node.(ast.MapNode)
	if !ok {
		return Value{}
	}
	for i := node.MapRange(); i.Next(); {
		if name, ok := i.Key().(*ast.StringNode); ok && name.Value == key {
			found = v.doc.value(i.Value(), field)
		}
	}
	return found
}
