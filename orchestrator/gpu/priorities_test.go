package gpu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestDamagedPriorities(t *testing.T) {
	g := Found{UUID: "GPU-1", Name: "Fake", Driver: "1.2"}
	want := control.StreamPriorities{Hold: true, AloneMicros: 1, HighMicros: 2, EqualMicros: 30}
	for _, c := range []struct {
		name    string
		of      Found
		damage  func(text []byte) []byte
		missing bool // else another error
		ok      bool
	}{
		{name: "none", of: g, damage: func(text []byte) []byte { return text }, ok: true},
		{name: "cut", of: g, damage: func(text []byte) []byte { return text[:len(text)/2] }},
		{name: "empty", of: g, damage: func([]byte) []byte { return nil }},
		{name: "zeros", of: g, damage: func(text []byte) []byte { return make([]byte, len(text)) }},
		{name: "too long", of: g, damage: func([]byte) []byte { return make([]byte, maxProbeBytes+1) }},
		{name: "another driver", of: Found{UUID: g.UUID, Name: g.Name, Driver: "1.3"}, damage: func(text []byte) []byte { return text }, missing: true},
		{name: "another GPU", of: Found{UUID: "GPU-2", Name: g.Name, Driver: g.Driver}, damage: func(text []byte) []byte { return text }, missing: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Here{Cache: filepath.Join(t.TempDir(), "cache")}
			if _, err := p.read(g); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("read without a file: %v", err)
			}
			must.OK(t, p.write(g, want))
			file := filepath.Join(p.Cache, probeFile(&g))
			text, err := os.ReadFile(file)
			must.OK(t, err)
			must.OK(t, os.WriteFile(file, c.damage(text), 0o600))
			got, err := p.read(c.of)
			if c.ok != (err == nil) || c.ok && got != want || err != nil && c.missing != errors.Is(err, fs.ErrNotExist) {
				t.Errorf("read %+v, %v", got, err)
			}
			// The next result replaces a damaged one.
			must.OK(t, p.write(c.of, want))
			if got, err := p.read(c.of); got != want || err != nil {
				t.Errorf("read %+v, %v after it was written again", got, err)
			}
		})
	}
}
