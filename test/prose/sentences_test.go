package main

import (
	"fmt"
	"slices"
	"testing"
)

func TestSentences(t *testing.T) {
	tests := []struct {
		name, file, text string
		want             []string // line: sentence
	}{
		{
			name: "Go",
			file: "a.go",
			text: "// Package a is short. It has\n// two sentences.\npackage a\n\n" +
				"//go:generate something\n// +kubebuilder:validation:Minimum=1\n\nvar s = \"// no comment\" // A comment.\n" +
				"var r = `\n// no comment\n`\n\n/* A block\n * of two lines. */\n",
			want: []string{"1: Package a is short.", "1: It has two sentences.", "8: A comment.", "13: A block of two lines."},
		},
		{
			name: "Go identifier",
			file: "a.go",
			text: "// What is a field.\nWhat int\n// What is no field.\n\n// What (t) is a method.\nfunc (t *T) What() {}\n",
			want: []string{"1: x is a field.", "3: What is no field.", "5: x (t) is a method."},
		},
		{
			name: "Go drawing and listing",
			file: "a.go",
			text: "// The steps:\n//\n//  1. Read.\n//     Then wait.\n//  2. Write.\n//\n//\tx := 1\n//\n//\ta ──> b\npackage a\n",
			want: []string{"1: The steps:", "3: Read.", "4: Then wait.", "5: Write."},
		},
		{
			name: "C in Go",
			file: "a.go",
			text: "// #include <a.h>\n// static void f(void);\nimport \"C\"\n",
		},
		{
			name: "C",
			file: "a.c",
			text: "char c = '\"'; // a quote\nint x; /* an x */\n",
			want: []string{"1: a quote", "2: an x"},
		},
		{
			name: "shell",
			file: "a.sh",
			text: "#!/bin/sh\n# Begin here. Then\n# end.\necho '#'\n",
			want: []string{"2: Begin here.", "2: Then end."},
		},
		{
			name: "Markdown",
			file: "a.md",
			text: "# A title\n\nText with `a.b c`, [a link](to/a.page) and\n**emphasis**.\n\n```\ncode\n```\n\n- One item\n  of two lines\n- another\n\n| a | table |\n\n<!-- A\ncomment -->\n> A quote.\n",
			want: []string{"3: Text with x, a link and emphasis.", "10: One item of two lines", "12: another", "18: A quote."},
		},
		{
			name: "abbreviations",
			file: "a.md",
			text: "One of two, e.g. this (Fig. 2, by A. Author). It takes 2 s. x follows.\n",
			want: []string{"1: One of two, e.g. this (Fig. 2, by A. Author).", "1: It takes 2 s.", "1: x follows."},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, s := range sentences(test.file, reader(test.file)(test.text)) {
				got = append(got, fmt.Sprintf("%d: %s", s.line, s.text))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}

	if reader("a.onnx") != nil {
		t.Error("a.onnx has no prose")
	}
}

func TestPlain(t *testing.T) {
	if text, words := plain("Run `make all` – or [this](x.md): 3 words."); words != 6 {
		t.Errorf("%q has %d words, want 6", text, words)
	}
}
