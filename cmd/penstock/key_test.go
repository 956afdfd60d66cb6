package main

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
)

// A made key is valid in a file, and is that of the secret.
func TestKeyCommand(t *testing.T) {
	cmd, out := root(), &bytes.Buffer{}
	cmd.SetArgs(strings.Fields("key line-3 --functions cam-*,face --operations infer,look --valid 1h"))
	cmd.SetOut(out)
	if _, err := execute(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	secret, key, found := strings.Cut(strings.TrimPrefix(out.String(), "secret: "), "\nkey:\n")
	if !found {
		t.Fatal(out)
	}
	keys, err := configs.DecodeKeys("keys.yaml", []byte("keys:\n"+key))
	if err != nil {
		t.Fatal(err)
	}
	k := keys[0]
	if k.SHA256 != sha256.Sum256([]byte(secret)) || len(secret) < 26 || k.Name != "line-3" || time.Until(k.Until) > time.Hour || time.Until(k.Until) < time.Minute {
		t.Errorf("secret %q, key %+v", secret, k)
	}
	if !k.Allows("cam-2") || !k.Allows("face") || k.Allows("detect") || len(k.Operations) != 2 {
		t.Errorf("key %+v", k)
	}

	for line, want := range map[string]string{
		"key Line":                     `keys[0].name: is "Line", want lower case letters`,
		"key a --functions b/c":        `keys[0].functions[0]: is "b/c", want the name of a function, or a pattern`,
		"key a --operations inferring": `keys[0].operations[0]: is "inferring", want infer, look or change`,
	} {
		cmd := root()
		cmd.SetArgs(strings.Fields(line))
		if _, err := execute(t.Context(), cmd); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("penstock %s: %v, want %s", line, err, want)
		}
	}
}
