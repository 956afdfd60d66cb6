package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClaimOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := ClaimOrchestrator(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = ClaimOrchestrator(dir)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("orchestrator %d uses it", os.Getpid())) {
		t.Errorf("the second: %v", err)
	}
	release()
	again, err := ClaimOrchestrator(dir)
	if err != nil {
		t.Fatal("after release:", err)
	}
	again()
}

func TestClaimNode(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	release, err := ClaimNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := ClaimNode(dir); !errors.Is(err, ErrInUse) || !strings.HasPrefix(err.Error(), fmt.Sprintf("a node already runs: process %d, ", os.Getpid())) {
		t.Errorf("the second: %v", err)
	}
	orchestrator, err := ClaimOrchestrator(dir)
	if err != nil {
		t.Fatal("the node's orchestrator:", err)
	}
	orchestrator()
}

func TestClaimErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ClaimOrchestrator(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
