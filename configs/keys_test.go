package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestKeys(t *testing.T) {
	sum := strings.Repeat("0123456789abcdef", 4)
	key := func(text string) string { return "keys:\n- {name: a, " + text + "}\n" }
	rest := "functions: [face, 'cam-*'], operations: [infer]"
	for text, want := range map[string]string{
		"keys: []\n": "",
		key("sha256: " + sum + ", until: 2030-01-31T12:00:00+01:00, " + rest): "",
		"":                                       "keys.yaml has no `keys:`",
		"secret":                                 "keys.yaml has no `keys:`, want a list of keys",
		key(rest):                                "2:4: keys[0].sha256: is missing, want 64 hex digits",
		key("sha256: " + sum[1:] + ", " + rest):  `keys[0].sha256: is another text, want 64 hex digits`,
		key("sha256: x" + sum[1:] + ", " + rest): `keys[0].sha256: is another text, want 64 hex digits`,
		key("sha256: " + sum + ", operations: [infer]"):                                                     "keys[0].functions: is missing",
		key("sha256: " + sum + ", functions: [], operations: [infer]"):                                      "keys[0].functions: has 0 elements",
		key("sha256: " + sum + ", functions: [face]"):                                                       "keys[0].operations: is missing",
		key("sha256: " + sum + ", until: 2030-01-31, " + rest):                                              "keys[0].until: is \"2030-01-31\", want a time like 2027-01-31T00:00:00Z",
		key("sha256: "+sum+", "+rest) + "- {name: b, sha256: " + strings.ToUpper(sum) + ", " + rest + "}\n": "3:21: keys[1].sha256: is that of another key",
	} {
		keys, err := DecodeKeys("keys.yaml", []byte(text))
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) || keys != nil) {
			t.Errorf("%q: %v, %v, want %q", text, keys, err, want)
		}
	}

	file := filepath.Join(t.TempDir(), "keys.yaml")
	must.OK(t, os.WriteFile(file, []byte("keys: []\n"), 0o600))
	must.OK(t, os.Chmod(file, 0o606))
	if _, err := ReadKeys(file); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Errorf("a file that each user may write: %v", err)
	}
}

// The gateway takes secrets in clear text from other machines only if the configuration says so, and webhooks likewise.
func TestClearText(t *testing.T) {
	const public, hook = "{gateway: {address: '0.0.0.0:9651'", "{publish: [{name: a, kind: webhook, address: "
	for text, want := range map[string]string{
		"{gateway: {address: '[::1]:9651', keys: k}}":    "",
		public + ", keys: k}}":                           "f.yaml:1:12: gateway.tls: is missing, and secrets of keys would cross the network to 0.0.0.0:9651 in clear text; want {certificate",
		public + "}}":                                    "gateway.tls: is missing, and secrets",
		public + ", tls: off}}":                          "",
		public + ", tls: {certificate: c, key: k}}}":     "",
		public + ", tls: {certificate: c}}}":             "gateway.tls.key: is missing, want a file",
		public + ", tls: none}}":                         `gateway.tls: is "none", want off, or {certificate: FILE, key: FILE}`,
		hook + "'http://127.0.0.1/', token_file: t}]}":   "",
		hook + "'http://me:pw@localhost:80/'}]}":         "",
		hook + "'http://h/'}]}":                          "",
		hook + "'http://h/', token_file: t, tls: off}]}": "",
		hook + "'https://h/', token_file: t}]}":          "",
	} {
		_, err := Decode("f.yaml", []byte(text))
		if (want == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
