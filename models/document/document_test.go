package document

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func parsed(t *testing.T, text string) *Document {
	t.Helper()
	d, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestProblemOrder(t *testing.T) {
	d := parsed(t, "b: x\na: y\n")
	d.Root().Decode(&struct {
		A int `yaml:"a" min:"0" max:"1"`
		B int `yaml:"b" min:"0" max:"1"`
	}{})
	want := "f.yaml:1:4: b: is \"x\", want an integer from 0 to 1\nf.yaml:2:4: a: is \"y\", want an integer from 0 to 1"
	err := d.Err()
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	var p *Problem
	if !errors.As(err, &p) || p.Line != 1 || p.Field != "b" {
		t.Errorf("first problem is %+v", p)
	}
}

func TestProblemOneLine(t *testing.T) {
	d := parsed(t, `a: "x\ny"`)
	d.Root().Decode(&struct {
		A string `yaml:"a" oneof:"z"`
	}{})
	d.Root().Find("a").Reject("file %s", "x\ny")
	for _, p := range d.problems {
		if strings.ContainsAny(p.Error(), "\n\r") {
			t.Errorf("%q", p.Error())
		}
	}
}

func TestMissingKeys(t *testing.T) {
	type inner struct {
		C string `yaml:"c" required:"true" want:"a thing"`
	}
	for text, want := range map[string]string{
		"nmae: x\n":          `f.yaml:1:1: unknown key "nmae", did you mean "name"?`, // and not missing as well
		"name: x\n":          "",                                                     // what is below an absent map is not missing
		"name: x\nb: {}\n":   "f.yaml:2:4: b.c: is missing, want a thing",
		"name:\nb: {c: x}\n": "f.yaml:1:1: name: is missing, want a name",
	} {
		d := parsed(t, text)
		d.Root().Decode(&struct {
			Name string `yaml:"name" required:"true" want:"a name"`
			B    inner  `yaml:"b"`
		}{})
		if err := d.Err(); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestPlain(t *testing.T) {
	d := parsed(t, "a: [1, 2.5, x, true, ~]\nb: {c: {d: 7}}\n")
	want := map[string]any{"a": []any{int64(1), 2.5, "x", true, nil}, "b": map[string]any{"c": map[string]any{"d": int64(7)}}}
	if got := d.Root().Plain(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v", got)
	}
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

func TestPeek(t *testing.T) {
	d := parsed(t, "a: x\nb: [1]\n")
	for key, want := range map[string]string{"a": "x", "b": "", "c": ""} {
		if got := d.Root().Peek(key); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

func TestCorrect(t *testing.T) {
	keys := []string{"name", "batches", "outputs", "score_threshold", "hwc", "chw"}
	for word, want := range map[string]string{
		"nmae":            `, did you mean "name"?`,
		"Name":            `, did you mean "name"?`,
		"batch":           `, did you mean "batches"?`,
		"ouput":           `, did you mean "outputs"?`,
		"score-treshold":  `, did you mean "score_threshold"?`,
		"wch":             `; known are name, batches, outputs, score_threshold, hwc, chw`, // either of two
		"":                `; known are name, batches, outputs, score_threshold, hwc, chw`,
		"something quite": `; known are name, batches, outputs, score_threshold, hwc, chw`,
	} {
		if got := Correct(word, keys); got != want {
			t.Errorf("%s: got %s, want %s", word, got, want)
		}
	}
	if got := Correct(strings.Repeat("x", 1<<20), keys); !strings.HasPrefix(got, "; known") {
		t.Errorf("a word of a megabyte: %s", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"large":    {strings.Repeat("# \n", MaxBytes), "want at most 262144"},
		"binary":   {"a: \x00", "zero byte"},
		"deep":     {strings.Repeat("[", 100), "deeper than 64"},
		"empty":    {"", "is empty"},
		"two":      {"a: 1\n---\nb: 2\n", "f.yaml:2:1: second document"},
		"no YAML":  {"a: [1", "f.yaml:1:4:"},
		"unclosed": {`a: "x`, "f.yaml:1:4:"},
	} {
		d, err := Parse("f.yaml", []byte(c.text))
		var p *Problem
		if !errors.As(err, &p) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v, want %s", name, d, err, c.want)
		}
	}
}

func TestFindNull(t *testing.T) {
	root := parsed(t, "given: 1\nnothing: null\nlist: [null]\n").Root()
	for key, want := range map[string]bool{"given": true, "nothing": false, "missing": false} {
		if got := root.Has(key); got != want {
			t.Errorf("Has(%q) is %v, want %v", key, got, want)
		}
	}
	if at := root.Find("list", 0); !at.IsList() {
		t.Error("Find of a null element is not the list that has it")
	}
}
