package document

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func parsed(t *testing.T, text string) *Document {
	t.Helper()
	d, err := Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestEveryReaderTakesWhatItIsFor(t *testing.T) {
	d := parsed(t, "text: a b\nblock: |\n  c\nint: -3\nfloat: 1.5\nwhole: 2\nbool: true\nduration: 1m30s\nlist: [a, b]\nchoice: red\n")
	m := d.Root().Map("text", "block", "int", "float", "whole", "bool", "duration", "list", "choice", "absent")
	var list []string
	for _, v := range m.May("list").List("words") {
		list = append(list, v.Text("a word"))
	}
	for _, c := range []struct{ got, want any }{
		{m.May("text").Text("text"), "a b"},
		{m.May("block").Text("text"), "c\n"},
		{m.May("int").Int(-5, 5), int64(-3)},
		{m.May("float").Float(0, 2), 1.5},
		{m.May("whole").Float(0, 2), 2.0},
		{m.May("bool").Bool(), true},
		{m.May("duration").Duration(0, time.Hour), 90 * time.Second},
		{list, []string{"a", "b"}},
		{m.May("choice").Choice("red", "blue"), "red"},
		{m.May("absent").Absent(), true},
		{m.May("absent").Text("text"), ""},
		{m.May("absent").Int(1, 2), int64(0)},
		{m.May("absent").Float(1, 2), 0.0},
		{m.May("absent").Duration(1, 2), time.Duration(0)},
		{m.May("absent").Choice("red"), ""},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("got %#v, want %#v", c.got, c.want)
		}
	}
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

func TestProblemsComeInTheOrderOfTheFile(t *testing.T) {
	d := parsed(t, "b: x\na: y\n")
	m := d.Root().Map("a", "b")
	m.May("a").Int(0, 1)
	m.May("b").Int(0, 1)
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

func TestAProblemIsOneLineWhateverItQuotes(t *testing.T) {
	d := parsed(t, `a: "x\ny"`)
	d.Root().Map("a").May("a").Choice("z")
	d.Root().Map("a").May("a").Reject("file %s", "x\ny")
	for _, p := range d.problems {
		if strings.ContainsAny(p.Error(), "\n\r") {
			t.Errorf("%q", p.Error())
		}
	}
}

func TestAMisspeltKeyIsNotMissingAsWell(t *testing.T) {
	d := parsed(t, "nmae: x\n")
	d.Root().Map("name", "version").Need("name", "a name")
	if err := d.Err(); err == nil || err.Error() != `f.yaml:1:1: unknown key "nmae", did you mean "name"?` {
		t.Errorf("got %v", err)
	}
}

func TestAnAbsentMapHasNoMissingKeys(t *testing.T) {
	d := parsed(t, "a: 1\n")
	d.Root().Map("a", "b").May("b").Map("c").Need("c", "a thing")
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

func TestNullIsAbsent(t *testing.T) {
	d := parsed(t, "a:\nb: ~\n")
	m := d.Root().Map("a", "b")
	if !m.May("a").Absent() || !m.May("b").Absent() {
		t.Error("null stands for something")
	}
	m.Need("b", "a thing")
	if err := d.Err(); err == nil || err.Error() != "f.yaml:2:1: b: is missing, want a thing" {
		t.Errorf("got %v", err)
	}
}

func TestPlainIsTheWholeTree(t *testing.T) {
	d := parsed(t, "a: [1, 2.5, x, true, ~]\nb: {c: {d: 7}}\n")
	want := map[string]any{"a": []any{int64(1), 2.5, "x", true, nil}, "b": map[string]any{"c": map[string]any{"d": int64(7)}}}
	if got := d.Root().Plain(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v", got)
	}
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

func TestPeekComplainsOfNothing(t *testing.T) {
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

func TestMeantFindsSlipsOfThePen(t *testing.T) {
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
		if got := Meant(word, keys); got != want {
			t.Errorf("%s: got %s, want %s", word, got, want)
		}
	}
	if got := Meant(strings.Repeat("x", 1<<20), keys); !strings.HasPrefix(got, "; known") {
		t.Errorf("a word of a megabyte: %s", got)
	}
}

func TestParseRefusesWhatIsNoSmallText(t *testing.T) {
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
