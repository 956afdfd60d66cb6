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
	for _, file := range []string{"demo.yaml", "gpu.yaml", "reference.yaml"} {
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
	"device: gpu":                                        {"f.yaml:1:", "device", `"gpu"`, "cuda"},
	"device: cuda:one":                                   {"device", "cuda:N"},
	"devcie: cuda":                                       {`"devcie"`, `"device"`},
	"shares: {change: partiton}":                         {"partiton", `"partition"`},
	"shares: {change: partition}":                        {"change", "cpu", "shadow", "device: cuda"},
	"{device: cuda, shares: {change: in-place}}":         {"change", "cuda", "partition"},
	"functions: [{name: a, port: 1, change: partition}]": {"change", "cpu", "shadow"},
	"{device: GPU-1a2b, functions: [{name: a, port: 1, change: in-place}]}": {"change", "GPU-1a2b", "partition"},
	"functions: [{name: a, port: 1, streams: 3}]":                           {"streams", "3", "auto"},
	"functions: [{name: a, port: 1, streams: many}]":                        {"streams", "many", "auto"},
	"shares: {sm_grain: -8}":                                                {"sm_grain", "-8"},
	"functions: {name: a}":                                                  {"functions"},
	"shares: {minimum_percent: 101}":                                        {"minimum_percent", "101"},
	"shares: {tune: maybe}":                                                 {"tune", "maybe"},
	"shares: {hold_down: -1s}":                                              {"hold_down"},
	"aggregate: {slots: 65}":                                                {"slots", "65"},
	"aggregate: {slots: 32}":                                                {"slots", "32"},
	"aggregate: {deadline: soon}":                                           {"deadline", "soon"},
	"slab: {size: lots}":                                                    {"size", "lots"},
	"fault_hold: long":                                                      {"fault_hold", "long"},
	"busy_poll: 2s":                                                         {"busy_poll", "1s"},
	"batching: clipper":                                                     {"clipper", "slab", "aimd"},
	"log: {level: loud}":                                                    {"loud", "debug"},
	"lsiten: 127.0.0.1":                                                     {`"lsiten"`, `"listen"`},
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

func TestDevicesAreNamedAsTheDriverNamesThem(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]string{
		"log: {}":          "cpu",
		"device: cpu":      "cpu",
		"device: auto":     "auto",
		"device: cuda":     "cuda",
		"device: cuda:1":   "cuda:1",
		"device: GPU-1a2b": "GPU-1a2b",
		"device: GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0": "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0",
	} {
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Error(err)
		}
		if c.Device != want {
			t.Errorf("%q: device is %q, want %q", text, c.Device, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
		}
	}
}

func TestWaysToChangeASharePerDevice(t *testing.T) {
	for _, c := range []struct {
		change Change
		device string
		says   string // of the error; empty for none
	}{
		{ChangeAuto, "cpu", ""},
		{ChangeShadow, "cpu", ""},
		{ChangeInPlace, "cpu", ""},
		{ChangeRestart, "cpu", ""},
		{ChangePartition, "cpu", "device: cuda"},
		{ChangeAuto, "cuda", ""},
		{ChangeShadow, "cuda", ""},
		{ChangePartition, "GPU-1a2b", ""},
		{ChangeRestart, "cuda:1", ""},
		{ChangeInPlace, "cuda:1", "want partition"},
		{"", "cuda", ""},
		// What auto comes to is not known yet.
		{ChangePartition, "auto", ""},
		{ChangeInPlace, "auto", ""},
	} {
		cfg := Default()
		cfg.Functions = []Function{{Name: "a", Instances: 1}, {Name: "b", Instances: 1, Change: c.change}}
		err := cfg.On(c.device)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s on %s: %v", c.change, c.device, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "function b") {
			t.Errorf("%s on %s: error %v, want one about function b that says %q", c.change, c.device, err, c.says)
		}
		cfg.Shares.Change = c.change
		if err := cfg.On(c.device); err == nil || !strings.Contains(err.Error(), "shares.change") {
			t.Errorf("shares.change %s on %s: error %v, want one that names the key", c.change, c.device, err)
		}
	}
}

func TestStreamsAreOneOrTwoOrLeftToLibml(t *testing.T) {
	s := schema(t)
	for text, want := range map[string]int{"": 0, ", streams: auto": 0, ", streams: 1": 1, ", streams: 2": 2} {
		text = "functions: [{name: a, port: 1" + text + "}]"
		c, err := Decode("f.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Functions[0].Streams; got != want {
			t.Errorf("%q: streams are %d, want %d", text, got, want)
		}
		if err := valid(t, s, text); err != nil {
			t.Errorf("%q: schema: %v", text, err)
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
