package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPhoneAddress(t *testing.T) {
	for flag, want := range map[string]string{
		"192.168.1.5": "192.168.1.5:9652", "192.168.1.5:1": "192.168.1.5:1", "fd00::1": "[fd00::1]:9652", "home": "--phone=home", "192.168.1": "--phone=192.168.1",
	} {
		address, err := phoneAddress(flag)
		switch {
		case err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %q", flag, err, want)
		case err == nil && address.String() != want:
			t.Errorf("%s: %v, want %s", flag, address, want)
		}
	}
}

// Each line has the same number of characters, and the margin is light.
func TestPrintCode(t *testing.T) {
	var b bytes.Buffer
	if err := printCode(&b, "https://192.168.1.5:9652/?token=ABCDEFGHIJKLMNOPQRSTUVWXYZ"); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	for i, line := range lines {
		modules, ok := strings.CutPrefix(line, "\x1b[97;40m")
		modules, reset := strings.CutSuffix(modules, "\x1b[0m")
		if n := utf8.RuneCountInString(modules); !ok || !reset || n < 2*len(lines)-2 || n > 2*len(lines) {
			t.Errorf("line %d of %d has %d modules: %q", i, len(lines), n, line)
		}
		if !strings.HasPrefix(modules, "██") || !strings.HasSuffix(modules, "██") || i == 0 && strings.Trim(modules, "█") != "" {
			t.Errorf("line %d has no margin: %q", i, modules)
		}
	}
}
