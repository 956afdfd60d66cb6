package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestClaimOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := ClaimOrchestrator(dir)
	must.OK(t, err)
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
	must.OK(t, os.Chmod(dir, 0o700))
	release, err := ClaimNode(dir)
	must.OK(t, err)
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
	must.OK(t, os.WriteFile(file, nil, 0o600))
	if _, err := ClaimOrchestrator(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
