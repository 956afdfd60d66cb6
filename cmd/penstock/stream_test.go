package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestStreamFlags checks flags that fail before the command contacts a node.
func TestStreamFlags(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := os.Stdin
	os.Stdin = null // no terminal
	defer func() { os.Stdin = before }()

	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-"}, "--to is missing; want the names of functions, like --to face,detect"},
		{[]string{}, "penstock stream has 0 arguments; want `penstock stream SOURCE --to FUNCTION,...`"},
		{[]string{"-", "--to", "face", "-o", "csv"}, "--output is \"csv\", want text or jsonl; see `penstock stream --help`"},
		{[]string{"-", "--to", "face", "--hwaccel", "-y"}, `--hwaccel is "-y", want a name of ffmpeg's: lower case letters, digits and '_'`},
		{[]string{"-", "--to", "face", "--size", "640"}, `--size is "640", want WIDTHxHEIGHT, like 640x480`},
		{[]string{"-", "--to", "face", "--size", "640x480x2"}, `--size is "640x480x2", want WIDTHxHEIGHT, like 640x480`},
		{[]string{"-", "--to", "face", "--size", "640x480", "--rate", "nan"}, "--rate is NaN, want frames per second, like 25"},
		{[]string{"rtsp://me:secret@door/", "--to", "face", "--size", "640x480"}, "--size describes raw frames on standard input, and the source is rtsp://***@door/; want it left out"},
		{[]string{"/no/such.mp4", "--to", "face"}, "find source: stat /no/such.mp4: no such file or directory"},
	} {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"stream"}, test.args...))
		if err := cmd.Execute(); err == nil || strings.TrimSuffix(err.Error(), " [flags]`") != strings.TrimSuffix(test.want, " [flags]`") {
			t.Errorf("%q: %v, want %s", test.args, err, test.want)
		}
	}
}
