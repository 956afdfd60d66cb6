package main

import (
	"io"
	"strings"
	"testing"
)

func TestIfAddZeroFlags(t *testing.T) {
	for _, row := range [][]string{
		{"--slo", "0", "--slo 0s: want more than 0", "the card's objective"},
		{"--share", "0", "--share 0: want more than 0", "a guarantee by its requests"},
		{"--receivers", "0", "--receivers 0: want more than 0", "the node's number"},
		{"--instances", "0", "instances of face is 0, want an integer from 1 to 64"},
		{"--max-picture", "4k", `max_picture of face is 4k, want WIDTHxHEIGHT`},
		{"--pictures", "1/h", `pictures of face is 1/h, want 1/s to 10/s, or 1/min to 60/min`},
		{"--slo", "-5ms", "slo of face is -5ms, want a duration"},
	} {
		cmd := root()
		cmd.SetArgs([]string{"if", "add", "face", "--runtime-dir", t.TempDir(), row[0], row[1]})
		err := cmd.Execute()
		for _, word := range row[2:] {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s %s: error %v, want %q in it", row[0], row[1], err, word)
			}
		}
	}
}

func TestFlagErrors(t *testing.T) {
	for flag, want := range map[string]string{
		"--slo=abc":     `--slo is "abc", want a duration with its unit, like 25ms; see ` + "`penstock if add --help`",
		"--slo=25":      `--slo is "25", want a duration`,
		"--port=x":      `--port is "x", want an integer`,
		"--share=x":     `--share is "x", want a number`,
		"--no-such=yes": "unknown flag: --no-such",
	} {
		cmd := root()
		cmd.SetArgs([]string{"if", "add", "fn", flag})
		if err := cmd.Execute(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %q", flag, err, want)
		}
	}
}

// TestUnknownVerb calls each group of verbs with a verb that it lacks.
func TestUnknownVerb(t *testing.T) {
	for _, group := range []string{"if", "guest", "completion"} {
		cmd := root()
		cmd.SetOut(io.Discard)
		cmd.SetArgs([]string{group, "foo"})
		if _, err := execute(t.Context(), cmd); err == nil || !strings.HasPrefix(err.Error(), `unknown command "foo" for "penstock `+group) {
			t.Errorf("%s foo: %v", group, err)
		}
	}
	cmd := root()
	var out strings.Builder
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"guest"})
	if _, err := execute(t.Context(), cmd); err != nil || !strings.Contains(out.String(), "penstock guest list") {
		t.Errorf("guest: %v, %q; want its help", err, out.String())
	}
}
