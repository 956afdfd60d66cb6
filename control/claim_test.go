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

func TestClaimErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ClaimOrchestrator(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
