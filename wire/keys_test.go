package wire

import (
	"strings"
	"testing"
)

func TestDecodeKeys(t *testing.T) {
	const key = "0123456789abcdef"
	for name, c := range map[string]struct {
		text string
		want string // the keys, or a part of the error
	}{
		"one":               {key, key},
		"comments":          {"# for the line\n\n" + key + "\r\n  second-key-of-two  \n", key + " second-key-of-two"},
		"none":              {"# nothing\n\n", "has none; want one in a line"},
		"short":             {key + "\nshort\n", "keys:2: a key of 5 characters; want 16 to 256"},
		"long":              {strings.Repeat("k", 257), "keys:1: a key of 257 characters"},
		"too many":          {strings.Repeat(key+"\n", MaxKeys+1), "keys:9: one key too many; want at most 8"},
		"as many as can be": {strings.Repeat(key+"\n", MaxKeys), strings.TrimSpace(strings.Repeat(key+" ", MaxKeys))},
	} {
		keys, err := DecodeKeys("keys", []byte(c.text))
		got := []string{}
		for _, k := range keys {
			got = append(got, string(k))
		}
		if ok := strings.Join(got, " ") == c.want; err == nil && !ok || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, c.want)
		}
	}
}
