package bench

import (
	"strings"
	"testing"
)

// A process measures the requested GPU, and sees no other.
func TestEntryOf(t *testing.T) {
	for _, c := range []struct {
		name, visible string
		want, wrong   string
	}{
		{name: "cuda", want: ""},
		{name: "cuda", visible: "3,1", want: ""},
		{name: "cuda:1", want: "1"},
		{name: "cuda:1", visible: "GPU-a, GPU-b", want: "GPU-b"},
		{name: "GPU-8d17", visible: "0,1", want: "GPU-8d17"},
		{name: "cuda:2", visible: "0,1", wrong: "CUDA_VISIBLE_DEVICES=0,1 has 2"},
		{name: "cuda:-1", wrong: "want cpu, cuda, cuda:N"},
		{name: "cuda:x", wrong: "want cpu, cuda, cuda:N"},
	} {
		got, err := entryOf(c.name, c.visible)
		if c.wrong == "" && (err != nil || got != c.want) {
			t.Errorf("%s of %q: %q, %v; want %q", c.name, c.visible, got, err, c.want)
		}
		if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s of %q: %v; want %q", c.name, c.visible, err, c.wrong)
		}
	}
}
