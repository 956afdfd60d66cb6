package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A phone opens the printed address, and its camera finds a face. Another phone is refused.
func TestPhone(t *testing.T) {
	modules := os.Getenv("PENSTOCK_NODE_MODULES")
	if modules == "" {
		t.Skip("not on this machine: PENSTOCK_NODE_MODULES names no folder with playwright-core (.ci/run installs it, and Chromium)")
	}
	nd := start(t, "functions:\n  - {name: face, port: 0, slo: 5s}\n")
	gateway := exec.Command(penstock, "gateway", "--phone=127.0.0.1:0", "--runtime-dir", nd.Dir)
	gateway.Stderr = os.Stderr
	out, err := gateway.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		gateway.Process.Signal(syscall.SIGTERM)
		if err := gateway.Wait(); err != nil {
			t.Errorf("penstock gateway --phone: %v", err)
		}
	}()
	url := ""
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		url = regexp.MustCompile(`https://127\.0\.0\.1:\S+`).FindString(lines.Text())
	}
	if url == "" {
		t.Fatal("no address was printed")
	}

	screenshots := t.TempDir()
	if kept := os.Getenv("PENSTOCK_SCREENSHOTS"); kept != "" {
		screenshots = kept
	}
	video := filepath.Join(t.TempDir(), "astronaut.mjpeg")
	if err := os.WriteFile(video, photoOf(t), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(longContext(t), "node", absolute(t, "../browser/phone.mjs"), modules, url, "face", screenshots, video)
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("phone.mjs: %v", err)
	}
	var seen struct {
		Address, Text, Why   string
		Boxes                []string
		ScrollWidth, Refused int
	}
	if err := json.Unmarshal(text, &seen); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if strings.Contains(seen.Address, "token") || !strings.HasPrefix(seen.Text, "face: ok, ") || !slices.Equal(seen.Boxes, []string{"face"}) || seen.ScrollWidth > 375 {
		t.Errorf("the phone shows %s", text)
	}
	if seen.Refused != 403 || !strings.Contains(seen.Why, "already used by another browser") {
		t.Errorf("another phone: %d %s", seen.Refused, seen.Why)
	}
}
