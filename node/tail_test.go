package node

import (
	"fmt"
	"strings"
	"testing"
)

func TestTailLines(t *testing.T) {
	var kept tail
	var all strings.Builder
	for i := range 5000 {
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", i%97))
		all.WriteString(line)
		// A pipe may cut the text anywhere.
		for cut := i % 11; len(line) > 0; line = line[cut:] {
			cut = min(max(1, cut), len(line))
			if n, err := kept.Write([]byte(line[:cut])); n != cut || err != nil {
				t.Fatalf("write %d bytes: %d, %v", cut, n, err)
			}
		}
		got := kept.String()
		switch {
		case !strings.HasSuffix(all.String(), got):
			t.Fatalf("after line %d it keeps what was not written last:\n%.200s", i, got)
		case len(got) > keptBytes:
			t.Fatalf("after line %d it keeps %d bytes, want at most %d", i, len(got), keptBytes)
		case all.Len() > keptBytes && len(got) < keptBytes-200:
			t.Fatalf("after line %d it keeps %d bytes, want nearly %d", i, len(got), keptBytes)
		case !strings.HasPrefix(got, "line "):
			t.Fatalf("after line %d it begins in the middle of a line: %.40q", i, got)
		}
	}
}

func TestTailLongLine(t *testing.T) {
	long := strings.Repeat("y", 3*keptBytes)
	for _, c := range []struct{ name, written, want string }{
		{"unfinished", long + "why", "why"},
		{"finished", long + "why\n", "why\n"},
		{"finished, and another", long + "\nwhy\n", "why\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var kept tail
			kept.Write([]byte(c.written))
			if got := kept.String(); !strings.HasSuffix(got, c.want) {
				t.Errorf("it keeps %d bytes that end in %q, want %q", len(got), got[max(0, len(got)-10):], c.want)
			}
		})
	}
}
