package configs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/penstock/penstock/models/document"
)

// AppendFunction returns the text of a configuration file with one more function at the end of
// its list. The rest of the text, comments included, stays byte for byte. If the text has no
// suitable list, it returns an error; the caller then shows Entry to the operator.
func AppendFunction(file string, text []byte, f Function) ([]byte, error) {
	before, err := Decode(file, text)
	if err != nil {
		return nil, err
	}
	tree, err := document.Tree(file, text)
	if err != nil {
		return nil, err
	}
	at, indent, header, err := listEnd(tree, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	entry, err := Entry(f)
	if err != nil {
		return nil, err
	}

	var b bytes.Buffer
	b.Write(text[:at])
	if at > 0 && text[at-1] != '\n' {
		b.WriteByte('\n')
	}
	b.WriteString(header)
	for line := range strings.Lines(entry) {
		b.WriteString(strings.Repeat(" ", indent) + line)
	}
	b.Write(text[at:])

	// Read the result again. It must differ from the original in this function only.
	after, err := Decode(file, b.Bytes())
	if err != nil {
		return nil, err
	}
	want := before
	want.Functions = append(slices.Clone(before.Functions), f)
	if keys := ChangedKeys(want, after); len(keys) > 0 {
		return nil, fmt.Errorf("%s: an entry at line %d would change %s", file, 1+bytes.Count(text[:at], []byte("\n")), strings.Join(keys, ", "))
	}
	return b.Bytes(), nil
}

// Entry formats a function as an element of the list of functions, without indentation.
func Entry(f Function) (string, error) {
	if f.Instances == 1 {
		f.Instances = 0 // the default
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return "", fmt.Errorf("encode function %s: %w", f.Name, err)
	}
	var b strings.Builder
	first := "- "
	for line := range strings.Lines(string(text)) {
		b.WriteString(first + line)
		first = "  "
	}
	return b.String(), nil
}

// listEnd returns the offset and the indentation of the next element of the list of functions.
// If there is no list yet, header is the text that begins one.
func listEnd(tree *ast.File, text []byte) (at, indent int, header string, err error) {
	root, ok := tree.Docs[0].Body.(ast.MapNode)
	if !ok {
		return 0, 0, "", fmt.Errorf("is not a map of keys in block style")
	}
	for i := root.MapRange(); i.Next(); {
		if name, ok := i.Key().(*ast.StringNode); !ok || name.Value != "functions" {
			continue
		}
		switch list := i.Value().(type) {
		case *ast.NullNode:
			return lineAfter(text, i.Key().GetToken().Position.Line), 2, "", nil
		case *ast.SequenceNode:
			if list.IsFlowStyle {
				return 0, 0, "", fmt.Errorf("functions is in brackets; want one function per line, each after a dash")
			}
			column := list.Start.Position.Column
			last := list.Values[len(list.Values)-1].GetToken().Position.Line
			return endOfElement(text, last, column), column - 1, "", nil
		}
		return 0, 0, "", fmt.Errorf("functions is not a list")
	}
	return len(text), 2, "functions:\n", nil
}

// endOfElement returns the offset after the list element with a token in line. column is the
// column of the list's dashes. Blank lines and comments that may belong to the next element
// stay after the offset.
func endOfElement(text []byte, line, column int) int {
	at := lineAfter(text, line)
	for end := at; end < len(text); {
		next := end + len(firstLine(text[end:]))
		body := bytes.TrimRight(text[end:next], " \t\r\n")
		if body = bytes.TrimLeft(body, " "); len(body) > 0 {
			if deep := len(bytes.TrimRight(text[end:next], " \t\r\n")) - len(body); deep < column {
				break
			}
			at = next
		}
		end = next
	}
	return at
}

// lineAfter is the offset of the line after line, which counts from 1.
func lineAfter(text []byte, line int) int {
	at := 0
	for range line {
		at += len(firstLine(text[at:]))
	}
	return at
}

// firstLine is text up to and with its first newline.
func firstLine(text []byte) []byte {
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		return text[:i+1]
	}
	return text
}
