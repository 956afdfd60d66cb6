package document

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// A Key is a key of a YAML map and the field of a Go struct that it fills. The field's tags are
// the only definition of the key. Decode, SetDefaults, the JSON schemas and the tables of keys in
// the documentation follow them.
//
//	yaml:"slots"               the key; with ,omitempty the zero value means that it is left out
//	required:"true"            the key must be there
//	default:"64"               what it is if left out
//	min:"1" max:"16"           bounds of a number, a duration or a size
//	zero:"auto"                a word for the zero value; of a list, in place of all of it
//	oneof:"a|b"                the only values
//	pattern:"^[a-z]+$"         the only texts
//	integers:"true"            a text may be written as an integer
//	minItems, maxItems         bounds of a list's length; the other tags are about its elements
//	elements:"x, y"            what they are, if their number is fixed
//	unique:"true"              no element of a list occurs twice
//	want:"a network"           what would be right, for errors; has a default for most types
//	example:"5ms"              for the documentation of a key without default
type Key struct {
	Name  string
	Index []int // of the field
	Type  reflect.Type
	Tag   reflect.StructTag
}

// Keys returns the keys of a struct in the order of its fields.
func Keys(t reflect.Type) (keys []Key) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for _, k := range Keys(f.Type) {
				k.Index = append([]int{i}, k.Index...)
				keys = append(keys, k)
			}
		} else if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" {
			keys = append(keys, Key{Name: name, Index: f.Index, Type: f.Type, Tag: f.Tag})
		}
	}
	return keys
}

// Worded is a struct that may also be written as one word, such as `sandbox: off`.
type Worded interface {
	Words() []string
	SetWord(string)
}

// isOptional reports whether the zero value of the field means that the key is left out.
func (k Key) isOptional() bool { return strings.Contains(k.Tag.Get("yaml"), ",omitempty") }

// Pattern returns the pattern that the key's text must match, or an empty string.
func (k Key) Pattern() string {
	t := k.Type
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if patterned, ok := reflect.Zero(t).Interface().(interface{ Pattern() string }); ok {
		return patterned.Pattern()
	}
	return k.Tag.Get("pattern")
}

// OneOf returns the only allowed values of the key; nil if others are allowed, too.
func (k Key) OneOf() []string {
	if words := k.Tag.Get("oneof"); words != "" {
		return strings.Split(words, "|")
	}
	return nil
}

// wantList is Want for a whole list, not for its elements.
func (k Key) wantList() string {
	if k.Type.Kind() != reflect.Slice {
		return k.Want()
	}
	want := "a list, each element " + k.Want()
	if zero := k.Tag.Get("zero"); zero != "" {
		want = zero + ", or " + want
	}
	return want
}

// Want describes a right value; for a list, a right element.
func (k Key) Want() string {
	want, after := k.Tag.Get("want"), ""
	if words := k.OneOf(); want == "" && words != nil {
		return OrList(words)
	}
	t := k.Type
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if want == "" {
		named, isNamed := reflect.Zero(t).Interface().(interface{ Want() string })
		switch {
		case isNamed:
			want = named.Want()
		case t == reflect.TypeFor[time.Duration]():
			want, after = "a duration with its unit", ", like 25ms"
		case t.Kind() == reflect.Bool:
			want = "true or false"
		case isInteger(t):
			want = "an integer"
		case isFloat(t):
			want = "a number"
		default:
			want = "a text; put it in quotes"
		}
	}
	if least, most := k.Tag.Get("min"), k.Tag.Get("max"); most != "" {
		want += " from " + least + " to " + most
	}
	if zero := k.Tag.Get("zero"); zero != "" && k.Type.Kind() != reflect.Slice {
		want = zero + ", or " + want
	}
	return want + after
}

// OrList formats words as a list for people.
func OrList[T ~string](words []T) string {
	var b strings.Builder
	for i, word := range words {
		switch i {
		case 0:
		case len(words) - 1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(string(word))
	}
	return b.String()
}

func isFloat(t reflect.Type) bool { return reflect.Zero(t).CanFloat() }

func isInteger(t reflect.Type) bool { return reflect.Zero(t).CanInt() || reflect.Zero(t).CanUint() }

// SetDefaults sets the fields of the struct at to to their defaults.
func SetDefaults(to any) { setDefaults(reflect.ValueOf(to).Elem()) }

func setDefaults(to reflect.Value) {
	for _, k := range Keys(to.Type()) {
		field := to.FieldByIndex(k.Index)
		text, ok := k.Tag.Lookup("default")
		if worded, isWorded := field.Addr().Interface().(Worded); ok && isWorded {
			worded.SetWord(text)
		} else if ok && field.Kind() != reflect.Slice && text != k.Tag.Get("zero") { // the default of a list is []
			must(parseText(text, field))
		} else if field.Kind() == reflect.Struct && !k.isOptional() {
			setDefaults(field)
		}
	}
}

// Decode reads a map into the struct at to. If a key is missing or its value is wrong, the field
// keeps its value. A struct behind a pointer or with omitempty gets its defaults if its key is
// present. Decode returns false if it found problems.
func (v Value) Decode(to any) bool {
	before := len(v.doc.problems)
	v.decodeStruct(reflect.ValueOf(to).Elem())
	return len(v.doc.problems) == before
}

func (v Value) decodeStruct(to reflect.Value) {
	keys := Keys(to.Type())
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	if !v.IsMap() {
		what := "a map of " + strings.Join(names, ", ")
		if _, isText := v.text(); isText {
			what += ", with a colon and a space after each key"
		}
		v.want(what)
		return
	}
	values, meant := v.keyed(names)
	for _, k := range keys {
		at, there := values[k.Name]
		if !there {
			at = Value{doc: v.doc, field: v.path(k.Name), line: v.line, column: v.column}
		}
		switch {
		case !at.Absent():
			at.decode(to.FieldByIndex(k.Index), k)
		case k.Tag.Get("required") == "true" && !slices.Contains(meant, k.Name): // a misspelt key is already reported
			at.Reject("is missing, want %s", k.wantList())
		}
	}
}

func (v Value) decode(to reflect.Value, k Key) {
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		setDefaults(to.Elem())
		to = to.Elem()
	}
	_, isText := to.Addr().Interface().(encoding.TextUnmarshaler)
	worded, isWorded := to.Addr().Interface().(Worded)
	switch {
	case to.Type() == reflect.TypeFor[Value]():
		to.Set(reflect.ValueOf(v)) // the caller reads it, because its form is none of these
	case isText:
		v.decodeScalar(to, k)
	case isWorded && !v.IsMap():
		if word, _ := v.text(); slices.Contains(worded.Words(), word) {
			worded.SetWord(word)
		} else {
			v.Reject("is %s, want %s%s", v.describe(), k.Want(), Near(word, worded.Words()))
		}
	case to.Kind() == reflect.Struct:
		if k.isOptional() {
			setDefaults(to)
		}
		v.decodeStruct(to)
	case to.Kind() == reflect.Slice:
		v.decodeList(to, k)
	case to.Kind() == reflect.Map:
		v.decodeMap(to, k)
	default:
		v.decodeScalar(to, k)
	}
}

// decodeList keeps a wrong element as its zero value, so that indexes are those of the file.
func (v Value) decodeList(to reflect.Value, k Key) {
	if !v.IsList() {
		if word, _ := v.text(); word == "" || word != k.Tag.Get("zero") {
			v.want(k.wantList())
		}
		return
	}
	elements := v.List(k.Want())
	if !v.checkLength(len(elements), k) {
		return
	}
	list := reflect.MakeSlice(to.Type(), len(elements), len(elements))
	for i, e := range elements {
		element := list.Index(i)
		if element.Kind() == reflect.Struct {
			if _, isText := element.Addr().Interface().(encoding.TextUnmarshaler); !isText {
				setDefaults(element)
			}
		}
		if e.Absent() {
			continue // List reported it
		}
		e.decode(element, k)
		if k.Tag.Get("unique") == "true" && !element.IsZero() {
			e.checkUnique(list, i)
		}
	}
	if len(elements) > 0 {
		to.Set(list)
	}
}

// checkLength rejects a list that has too few or too many elements.
func (v Value) checkLength(n int, k Key) bool {
	least, most := k.integer("minItems", 0), k.integer("maxItems", math.MaxInt)
	if n >= least && n <= most {
		return true
	}
	want := fmt.Sprintf("%d to %d", least, most)
	switch {
	case least == most:
		want = strconv.Itoa(least)
	case most == math.MaxInt:
		want = fmt.Sprintf("at least %d", least)
	}
	if elements := k.Tag.Get("elements"); elements != "" {
		want += " (" + elements + ")"
	}
	v.Reject("has %d elements, want %s", n, want)
	return false
}

// checkUnique rejects the element at i if the list already has it before i.
func (v Value) checkUnique(list reflect.Value, i int) {
	for j := range i {
		if list.Index(j).Equal(list.Index(i)) {
			v.Reject("is %s, which the list already has", v.describe())
		}
	}
}

func (v Value) decodeMap(to reflect.Value, k Key) {
	if !v.IsMap() {
		v.want("a map of names to values, each " + k.Want())
		return
	}
	to.Set(reflect.MakeMap(to.Type()))
	for _, e := range v.entries() {
		text, isText := e.value.text()
		if !isText {
			e.value.want(k.Want())
		}
		to.SetMapIndex(reflect.ValueOf(e.name), reflect.ValueOf(text))
	}
}

func (v Value) decodeScalar(to reflect.Value, k Key) {
	value := reflect.New(to.Type()).Elem()
	text, ok := v.scalarText(value)
	if _, isInteger := v.integer(); isInteger && k.Tag.Get("integers") == "true" {
		ok = true
	}
	if word, isString := v.text(); isString && word != "" && word == k.Tag.Get("zero") && k.Type.Kind() != reflect.Slice {
		to.SetZero()
		return
	}
	if ok && parseText(text, value) == nil && k.allows(text, value) {
		to.Set(value)
		return
	}
	is, hint := v.describe(), ""
	if k.Tag.Get("secret") == "true" {
		is = "another text" // by mistake it may be the secret
	}
	if to.Kind() == reflect.String {
		hint = Near(text, k.OneOf())
	}
	v.Reject("is %s, want %s%s", is, k.Want(), hint)
}

// scalarText returns the value as text for a type. It does not accept a number as text, or text
// as a number.
func (v Value) scalarText(kind reflect.Value) (string, bool) {
	text, isString := v.text()
	_, isText := kind.Addr().Interface().(encoding.TextUnmarshaler)
	t := kind.Type()
	switch n := v.node.(type) {
	case *ast.BoolNode:
		return strconv.FormatBool(n.Value), t.Kind() == reflect.Bool
	case *ast.IntegerNode:
		x, ok := v.integer()
		number := isFloat(t) || isInteger(t) && t != reflect.TypeFor[time.Duration]()
		return strconv.FormatInt(x, 10), ok && number
	case *ast.FloatNode:
		return strconv.FormatFloat(n.Value, 'g', -1, 64), isFloat(t)
	}
	return text, isString && text != "" && (isText || t.Kind() == reflect.String || t == reflect.TypeFor[time.Duration]())
}

// parseText sets a scalar from its text in a file or a tag.
func parseText(text string, to reflect.Value) (err error) {
	if u, ok := to.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch t := to.Type(); {
	case t == reflect.TypeFor[time.Duration]():
		var d time.Duration
		d, err = time.ParseDuration(text)
		to.SetInt(int64(d))
	case t.Kind() == reflect.String:
		to.SetString(text)
	case t.Kind() == reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		to.SetBool(b)
	case to.CanInt():
		var n int64
		n, err = strconv.ParseInt(text, 10, t.Bits())
		to.SetInt(n)
	case to.CanUint():
		var n uint64
		n, err = strconv.ParseUint(text, 10, t.Bits())
		to.SetUint(n)
	case to.CanFloat():
		var x float64
		x, err = strconv.ParseFloat(text, 64)
		to.SetFloat(x)
	default:
		panic(fmt.Sprintf("document: a key of type %v", t))
	}
	return err
}

// allows reports whether a value satisfies the tags.
func (k Key) allows(text string, value reflect.Value) bool {
	if words := k.OneOf(); words != nil && !slices.Contains(words, text) {
		return false
	}
	if pattern := k.Pattern(); pattern != "" && !regexp.MustCompile(pattern).MatchString(text) {
		return false
	}
	bound := func(tag string) (b float64, ok bool) {
		text := k.Tag.Get(tag)
		if text == "" {
			return 0, false
		}
		v := reflect.New(value.Type()).Elem()
		must(parseText(text, v))
		return number(v), true
	}
	if least, ok := bound("min"); ok && !(number(value) >= least) {
		return false
	}
	if most, ok := bound("max"); ok && !(number(value) <= most) { // false for NaN
		return false
	}
	return true
}

// number returns a scalar for comparisons: exact for all bounds below 2^53.
func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	}
	return v.Float()
}

// KeyOf returns a key of T.
func KeyOf[T any](name string) Key {
	keys := Keys(reflect.TypeFor[T]())
	return keys[slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })]
}

// Check returns the first key with a wrong value in a struct that was not read from a file; nil
// if there is none. A key without default may have its zero value. Check skips lists and maps.
func Check(value any) *Problem { return check(reflect.ValueOf(value).Elem(), "") }

func check(value reflect.Value, prefix string) *Problem {
	for _, k := range Keys(value.Type()) {
		value := value.FieldByIndex(k.Index)
		_, hasDefault := k.Tag.Lookup("default")
		left := value.IsZero() && !hasDefault && k.Tag.Get("required") == ""
		switch value.Kind() {
		case reflect.Slice, reflect.Map, reflect.Pointer:
		case reflect.Struct:
			if p := check(value, prefix+k.Name+"."); !left && p != nil {
				return p
			}
		default:
			if text := fmt.Sprint(value); !left && !k.allows(text, value) {
				return &Problem{Field: prefix + k.Name, Text: fmt.Sprintf("is %s, want %s", text, k.Want())}
			}
		}
	}
	return nil
}

func (k Key) integer(tag string, otherwise int) int {
	text, ok := k.Tag.Lookup(tag)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(err)
	return n
}

// must panics on an invalid tag; each test that reads a file would reveal it.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("document: struct tag: %v", err))
	}
}
