package configs

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestAppendFunction(t *testing.T) {
	f := Function{Name: "new", Port: 5009, Instances: 1, SLO: 25 * time.Millisecond}
	const entry = "- name: new\n  port: 5009\n  slo: 25ms\n"
	indented := "  " + strings.ReplaceAll(strings.TrimSuffix(entry, "\n"), "\n", "\n  ") + "\n"
	for name, row := range map[string]struct{ text, want string }{
		"at the end":           {"functions:\n  - name: a # first\n    port: 1\n", "functions:\n  - name: a # first\n    port: 1\n" + indented},
		"without a newline":    {"functions:\n  - {name: a, port: 1}", "functions:\n  - {name: a, port: 1}\n" + indented},
		"not indented":         {"functions:\n- name: a\n  port: 1\n", "functions:\n- name: a\n  port: 1\n" + entry},
		"before another key":   {"functions:\n  - name: a\n    port: 1\n\n# about the log\nlog: {level: debug}\n", "functions:\n  - name: a\n    port: 1\n" + indented + "\n# about the log\nlog: {level: debug}\n"},
		"after own comments":   {"functions:\n  - name: a\n    port: 1\n    # port: 2\n\n# end\n", "functions:\n  - name: a\n    port: 1\n    # port: 2\n" + indented + "\n# end\n"},
		"an element of lists":  {"functions:\n  - name: a\n    port: 1\n    environment:\n      A: |\n        x\n\n        y\nhttp: 127.0.0.1:1\n", "functions:\n  - name: a\n    port: 1\n    environment:\n      A: |\n        x\n\n        y\n" + indented + "http: 127.0.0.1:1\n"},
		"no functions":         {"log: {level: debug}\n", "log: {level: debug}\nfunctions:\n" + indented},
		"nothing of functions": {"functions: # none yet\nlog: {level: debug}\n", "functions: # none yet\n" + indented + "log: {level: debug}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := AppendFunction("f.yaml", []byte(row.text), f)
			must.OK(t, err)
			if string(got) != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
	for text, want := range map[string]string{
		"functions: [{name: a, port: 1}]\n":           "brackets",
		"functions: []\n":                             "brackets",
		"functions:\n  - {name: new, port: 1}\n":      "another function has",
		"functions:\n  - {name: a, port: 5009}\n":     "5009",
		"functions:\n  - {name: a, prot: 5009}\n":     "prot",
		"{log: {level: debug}}\n":                     "",
		"log: {level: debug}\n...\n":                  "",
		"functions:\n  - {name: a, port: 1}\n---\n{}": "second document",
	} {
		got, err := AppendFunction("f.yaml", []byte(text), f)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "f.yaml") {
			t.Errorf("%q: got %q, error %v; want one with %q", text, got, err, want)
		}
	}
}

// A function with any fields survives a round trip through the file.
func TestAppendRoundTrip(t *testing.T) {
	f := Function{
		Name: "new", Model: "/cards/a b.yaml", Port: 5009, Instances: 3, SLO: 1500 * time.Microsecond, SharePercent: 12.5, Change: ChangeShadow,
		Weights: WeightsPrivate, Receivers: 2, InFlight: 1, Environment: map[string]string{"A": "1", "B": "x: y # z", "C": ""},
	}
	text, err := AppendFunction("f.yaml", []byte("functions:\n  - {name: a, port: 1}\n"), f)
	must.OK(t, err)
	c, err := Decode("f.yaml", text)
	if err != nil || !reflect.DeepEqual(c.Functions[1], f) {
		t.Errorf("%s\nreads as %+v, %v; want %+v", text, c.Functions[1], err, f)
	}
}
