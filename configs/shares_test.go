package configs

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestFitShare(t *testing.T) {
	for name, row := range map[string]struct {
		text  string
		words []string // of the one error; nil: accepted
	}{
		"exactly 100":                {"functions: [{name: a, port: 1, share_percent: 60}, {name: b, port: 2, share_percent: 40}]", nil},
		"thirds":                     {"functions: [{name: a, port: 1, share_percent: 33.334, instances: 3}]", nil},
		"two functions":              {"functions: [{name: a, port: 1, share_percent: 60}, {name: b, port: 2, share_percent: 50}]", []string{"f.yaml:1:86: functions[1].share_percent", "is 50 %", "60 %", "110 % together", "at most 100 %"}},
		"instances":                  {"functions: [{name: a, port: 1, share_percent: 40, instances: 3}]", []string{"functions[0].share_percent", "is 40 % for each of 3 instances", "120 %"}},
		"one sum is said once":       {"functions: [{name: a, port: 1, share_percent: 60}, {name: b, port: 2, share_percent: 50}, {name: c, port: 3, share_percent: 40}]", []string{"functions[1]"}},
		"20 of the minimum":          {"functions: [{name: a, port: 1, instances: 20}]", nil},
		"40 of the minimum":          {"{shares: {policy: gslice}, functions: [{name: a, port: 1, instances: 40}]}", []string{"functions[0].instances", "minimum_percent", "5 % for each of 40 instances", "200 %", "fewer instances"}},
		"40 of a smaller one":        {"{shares: {policy: gslice, minimum_percent: 2.5}, functions: [{name: a, port: 1, instances: 40}]}", nil},
		"share below minimum":        {"{shares: {policy: gslice}, functions: [{name: a, port: 1, share_percent: 96}, {name: b, port: 2, share_percent: 1}]}", []string{"functions[1].share_percent", "minimum_percent", "101 %"}},
		"no share left at all":       {"{shares: {policy: gslice}, functions: [{name: a, port: 1, share_percent: 100}, {name: b, port: 2}]}", []string{"functions[1].name", "minimum_percent", "105 %"}},
		"minimum after the list":     {"{functions: [{name: a, port: 1, instances: 40}], shares: {policy: gslice, minimum_percent: 2}}", nil},
		"guarantees have no minimum": {"functions: [{name: a, port: 1, share_percent: 100}, {name: b, port: 2, instances: 40}]", nil},
	} {
		t.Run(name, func(t *testing.T) { decodeChecked(t, row.text, row.words) })
	}
}

// decodeChecked decodes a configuration. It wants an error of one line with all these words, or no
// error if there are none.
func decodeChecked(t *testing.T, text string, words []string) {
	t.Helper()
	_, err := Decode("f.yaml", []byte(text))
	if words == nil {
		if err != nil {
			t.Error(err)
		}
		return
	}
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %v, want one line", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not name %q", err, word)
		}
	}
}

func TestUnused(t *testing.T) {
	const functions = "functions: [{name: a, port: 1, change: shadow}, {name: b, port: 2, priority: 1}]"
	for text, want := range map[string]string{
		"{" + functions + "}": "change of a: no effect without `shares: {policy: gslice}`",
		"{shares: {change: shadow, tune: false, spread_slack: true}, " + functions + "}": "shares.change shares.tune shares.spread_slack change of a: no effect without `shares: {policy: gslice}`",
		"{shares: {policy: gslice, change: shadow}, " + functions + "}":                  "priority of b: no effect with `shares: {policy: gslice}`",
		"functions: [{name: b, port: 2}]":                                                "",
		"{shares: {policy: gslice}, functions: [{name: b, port: 2}]}":                    "",
	} {
		c, err := Decode("f.yaml", []byte(text))
		must.OK(t, err)
		keys, why := c.Unused()
		got := strings.Join(keys, " ")
		if len(keys) > 0 {
			got += ": " + why
		}
		if got != want {
			t.Errorf("%s: keys %q have no effect, want %q", text, got, want)
		}
	}
}
