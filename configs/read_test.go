package configs

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("penstock.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("penstock.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("penstock.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// valid reports what the schema says of a YAML text.
func valid(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return err
	}
	var v any
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		return err
	}
	return s.Validate(v)
}

func TestReferenceStatesTheDefaults(t *testing.T) {
	c, err := Read("reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File, want.Functions = c.File, c.Functions
	if !reflect.DeepEqual(c, want) {
		t.Errorf("reference.yaml says\n%+v, the defaults are\n%+v", c, want)
	}
}

func TestShippedConfigurationsAreRight(t *testing.T) {
	s := schema(t)
	for _, file := range []string{"demo.yaml", "reference.yaml"} {
		if _, err := Read(file); err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(t, s, string(text)); err != nil {
			t.Errorf("%s: schema: %v", file, err)
		}
	}
	if _, err := Read(""); err != nil {
		t.Errorf("built-in configuration: %v", err)
	}
}

// wrong are texts that must be refused, with what the one line must name.
var wrong = map[string][]string{
	"functions: [{name: a, prot: 1}]":                      {"f.yaml:1:", `"prot"`, `"port"`},
	"functions: [{name: a}]":                               {"f.yaml:1:", "port"},
	"functions: [{port: 1}]":                               {"f.yaml:1:", "name"},
	"functions: [{name: Upper, port: 1}]":                  {"Upper", "lower case"},
	"functions: [{name: a, port: 70000}]":                  {"70000", "65535"},
	"functions: [{name: a, port: 1, slo: 10}]":             {"slo", "10"},
	"functions: [{name: a, port: 1, instances: 0}]":        {"instances", "0"},
	"functions: [{name: a, port: 1, change: swap}]":        {"swap", "shadow", "in-place"},
	"functions: [{name: a, port: 1, environment: {A: 1}}]": {"environment", "A"},
	"functions: {name: a}":                                 {"functions"},
	"shares: {minimum_percent: 101}":                       {"minimum_percent", "101"},
	"shares: {tune: maybe}":                                {"tune", "maybe"},
	"shares: {hold_down: -1s}":                             {"hold_down"},
	"aggregate: {slots: 65}":                               {"slots", "65"},
	"aggregate: {slots: 32}":                               {"slots", "32"},
	"aggregate: {deadline: soon}":                          {"deadline", "soon"},
	"slab: {size: lots}":                                   {"size", "lots"},
	"batching: clipper":                                    {"clipper", "slab", "aimd"},
	"log: {level: loud}":                                   {"loud", "debug"},
	"lsiten: 127.0.0.1":                                    {`"lsiten"`, `"listen"`},
}

func TestWrongConfigurationsAreNamedByReaderAndSchema(t *testing.T) {
	s := schema(t)
	for text, words := range wrong {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil {
			t.Errorf("accepted %q", text)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: error %q does not name %q", text, err, word)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error has several lines: %q", text, err)
		}
		if valid(t, s, text) == nil {
			t.Errorf("schema accepts %q", text)
		}
	}
}

// What no schema can say.
func TestReaderFindsWhatSchemasCannot(t *testing.T) {
	for text, words := range map[string][]string{
		"listen: nowhere":    {"listen", "127.0.0.1"},
		"http: nowhere:1":    {"http", "127.0.0.1:9650"},
		"slab: {size: 1KiB}": {"size", "1KiB", "MiB"},
		"functions: [{name: a, port: 1}, {name: a, port: 2}]": {`"a"`, "another function"},
		"functions: [{name: a, port: 1}, {name: b, port: 1}]": {"port", `"a"`},
	} {
		_, err := Decode("f.yaml", []byte(text))
		if err == nil {
			t.Errorf("accepted %q", text)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: error %q does not name %q", text, err, word)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("functions: [{name: a, port: 1}]"))
	f.Add(builtIn)
	for text := range wrong {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode("f.yaml", data)
		if err != nil {
			return
		}
		for _, fn := range c.Functions {
			if fn.Name == "" || fn.Instances < 1 {
				t.Fatalf("accepted function %+v", fn)
			}
		}
	})
}
