// Package keydoc generates files from the tagged structs that models/document decodes: JSON schemas,
// reference files and tables of keys. The comments of the fields are the descriptions. A test compares
// the files in the tree with what this package returns; UPDATE=1 writes them.
package keydoc

import (
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/document"
)

// Comments are the comments of the types and fields of a package: "Slab", "Slab.Size".
type Comments map[string]string

// ReadComments reads the comments of the package in a folder.
func ReadComments(t *testing.T, dir string) Comments {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must.OK(t, err)
	all := Comments{}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		must.OK(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			g, ok := n.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				return true
			}
			for _, spec := range g.Specs {
				typ := spec.(*ast.TypeSpec)
				fields, ok := typ.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, f := range fields.Fields.List {
					for _, name := range f.Names {
						all[typ.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return all
}

func (c Comments) of(in reflect.Type, k document.Key) string {
	if last := len(k.Index) - 1; last > 0 { // of an embedded struct
		in = in.FieldByIndex(k.Index[:last]).Type
	}
	name := in.Name() + "." + in.Field(k.Index[len(k.Index)-1]).Name
	text := c[name]
	if text == "" {
		panic("keydoc: field " + name + " has no comment")
	}
	return text
}

// Golden compares a file of the tree with its expected content. UPDATE=1 in the environment writes it.
func Golden(t *testing.T, file, want string) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err == nil && string(got) == want {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Errorf("%s differs from what the code says (%v); `UPDATE=1 go test` in this folder writes it", file, err)
		return
	}
	must.OK(t, os.WriteFile(file, []byte(want), 0o644))
}

// Section replaces the text between two marks in a file: <!-- name --> and <!-- /name -->.
func Section(t *testing.T, file, name, text string) string {
	t.Helper()
	all, err := os.ReadFile(file)
	must.OK(t, err)
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	before, rest, found := strings.Cut(string(all), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no section between %q and %q", file, begin, end)
	}
	return before + begin + text + end + after
}

type object = map[string]any

// Schema returns the JSON schema of files that are decoded into a struct. forms are the schemas of keys
// of type document.Value; rules are additional schemas.
func Schema(t reflect.Type, comments Comments, title, description string, forms object, rules json.RawMessage) string {
	s := comments.Object(t)
	s["$schema"], s["title"], s["description"] = "https://json-schema.org/draft/2020-12/schema", title, description
	for key, form := range forms {
		form := form.(object)
		form["description"] = s["properties"].(object)[key].(object)["description"]
		s["properties"].(object)[key] = form
	}
	if rules != nil {
		s["allOf"] = rules
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err)
	}
	return string(text) + "\n"
}

// Object returns the schema of a map that is decoded into a struct.
func (c Comments) Object(t reflect.Type) object {
	properties, required := object{}, []string{}
	for _, k := range document.Keys(t) {
		property := c.value(k.Type, k)
		property["description"] = c.of(t, k)
		if value, ok := k.Tag.Lookup("default"); ok {
			property["default"] = typed(value, k.Type)
		}
		properties[k.Name] = property
		if k.Tag.Get("required") == "true" {
			required = append(required, k.Name)
		}
	}
	s := object{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (c Comments) value(t reflect.Type, k document.Key) object {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	pointer := reflect.New(t).Interface()
	_, isText := pointer.(encoding.TextUnmarshaler)
	switch worded, isWorded := pointer.(document.Worded); {
	case isText || t == reflect.TypeFor[time.Duration]():
		return scalar(t, k)
	case isWorded:
		return object{"anyOf": []object{{"enum": worded.Words()}, c.Object(t)}}
	case t == reflect.TypeFor[document.Value]():
		return object{}
	case t.Kind() == reflect.Struct:
		return c.Object(t)
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": object{"type": "string"}}
	case t.Kind() == reflect.Slice:
		s := object{"type": "array", "items": c.value(t.Elem(), k)}
		for _, tag := range []string{"minItems", "maxItems"} {
			if n := k.Tag.Get(tag); n != "" {
				s[tag] = json.Number(n)
			}
		}
		if k.Tag.Get("unique") == "true" {
			s["uniqueItems"] = true
		}
		return orZero(s, t, k)
	}
	return scalar(t, k)
}

// orZero adds the word for the zero value of a key, which elements of a list have not.
func orZero(s object, t reflect.Type, k document.Key) object {
	if zero := k.Tag.Get("zero"); zero != "" && (t.Kind() == reflect.Slice || k.Type.Kind() != reflect.Slice) {
		return object{"anyOf": []object{{"const": zero}, s}}
	}
	return s
}

const durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

func scalar(t reflect.Type, k document.Key) object {
	_, isText := reflect.New(t).Interface().(encoding.TextUnmarshaler)
	isDuration := t == reflect.TypeFor[time.Duration]()
	isInteger := (reflect.Zero(t).CanInt() || reflect.Zero(t).CanUint()) && !isDuration
	s := object{}
	switch words := k.OneOf(); {
	case words != nil:
		values := make([]any, len(words))
		for i, word := range words {
			values[i] = typed(word, t)
		}
		return orZero(object{"enum": values}, t, k)
	case isText && isInteger:
		s["type"], s["minimum"] = []string{"integer", "string"}, 1
	case t.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case isInteger, reflect.Zero(t).CanFloat():
		s["type"] = "integer"
		if isText {
			s["type"] = []string{"number", "string"}
		} else if !isInteger {
			s["type"] = "number"
		}
		for tag, name := range map[string]string{"min": "minimum", "max": "maximum"} {
			if n := k.Tag.Get(tag); n != "" {
				s[name] = json.Number(n)
			}
		}
	default:
		s["type"], s["minLength"] = "string", 1
		if k.Tag.Get("integers") == "true" {
			s["type"] = []string{"integer", "string"}
		}
	}
	if pattern := k.Pattern(); pattern != "" {
		s["pattern"] = pattern
	} else if isDuration {
		s["pattern"] = durationPattern
	}
	return orZero(s, t, k)
}

// typed returns a tag's value as JSON represents it.
func typed(text string, t reflect.Type) any {
	switch t.Kind() {
	case reflect.Bool:
		return text == "true"
	case reflect.Slice:
		return json.RawMessage(text)
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil && t.Kind() != reflect.String {
		return json.Number(text)
	}
	return text
}

// Reference returns a file with every key at its default. A key without a default is a comment with its
// example. A list of maps has one element of examples.
func Reference(t reflect.Type, comments Comments, head string) string {
	var b strings.Builder
	for _, line := range wrap(head, 100) {
		b.WriteString("# " + line + "\n")
	}
	b.WriteString("\n")
	comments.reference(&b, t, "", "", "")
	return b.String()
}

const (
	commentColumn = 32
	lastColumn    = 120
)

// reference writes the keys of a struct. lead begins the first line, indent the others.
func (c Comments) reference(b *strings.Builder, t reflect.Type, out, lead, indent string) {
	line := func(text, comment string) {
		text = out + lead + text
		lead = indent
		column := max(commentColumn, len(text)+1)
		for _, part := range wrap(comment, lastColumn-column-2) {
			fmt.Fprintf(b, "%-*s# %s\n", column, text, part)
			text = out
		}
	}
	lead = indent + lead
	indent = strings.Repeat(" ", len(lead))
	for _, k := range document.Keys(t) {
		inner, about := k.Type, c.of(t, k)
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		_, isWorded := reflect.New(inner).Interface().(document.Worded)
		standard, hasDefault := k.Tag.Lookup("default")
		example := k.Tag.Get("example")
		_, isText := reflect.New(inner).Interface().(encoding.TextUnmarshaler)
		switch {
		case hasDefault && !isWorded:
			line(k.Name+": "+standard, about)
		case example != "" && k.Tag.Get("required") == "true":
			line(k.Name+": "+example, about)
		case example != "":
			line("# "+k.Name+": "+example, about)
		case hasDefault:
			line(k.Name+": "+standard, about)
			fmt.Fprintf(b, "%s# %s:\n", out+indent, k.Name)
			c.reference(b, inner, out+indent+"# ", "", "  ")
		case isWorded:
			line(k.Name+":", about)
			c.reference(b, inner, out, "", indent+"  ")
		case inner.Kind() == reflect.Struct && !isText:
			line(k.Name+":", about)
			c.reference(b, inner, out, "", indent+"  ")
		case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
			line(k.Name+":", about)
			c.reference(b, inner.Elem(), out, "- ", indent+"  ")
		default:
			panic("keydoc: key " + k.Name + " of " + t.Name() + " has neither default nor example")
		}
	}
}

// wrap breaks text into lines of at most width characters, if its words allow.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// Table returns a Markdown table of all keys.
func Table(t reflect.Type, comments Comments) string {
	var b strings.Builder
	b.WriteString("| key | default | value | |\n|---|---|---|---|\n")
	comments.rows(&b, t, "")
	return b.String()
}

func (c Comments) rows(b *strings.Builder, t reflect.Type, prefix string) {
	cell := strings.NewReplacer("|", `\|`)
	brief := strings.NewReplacer("a duration with its unit from ", "", ", like 25ms", "", "an integer from ", "", "a number from ", "", "a size from ", "")
	for _, k := range document.Keys(t) {
		standard, value := "", k.Want()
		if text, ok := k.Tag.Lookup("default"); ok {
			standard = "`" + text + "`"
		} else if k.Tag.Get("required") == "true" {
			standard = "required"
		}
		inner, name := k.Type, prefix+k.Name
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Slice {
			inner, name, value = inner.Elem(), name+"[]", "list: "+value
		}
		_, isText := reflect.New(inner).Interface().(encoding.TextUnmarshaler)
		isSection := inner.Kind() == reflect.Struct && !isText
		if isSection && k.Tag.Get("want") == "" {
			value = ""
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, standard, cell.Replace(brief.Replace(value)), cell.Replace(c.of(t, k)))
		if isSection {
			c.rows(b, inner, name+".")
		}
	}
}
