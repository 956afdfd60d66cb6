package control

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// A manager that is stopped takes connections, as its kernel does that, and says nothing.
func TestAManagerThatSaysNothingIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, AdminSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	interrupted := errors.New("interrupted")
	ctx, stop := context.WithCancelCause(context.Background())
	time.AfterFunc(10*time.Millisecond, func() { stop(interrupted) })
	if _, err := SendOrder(ctx, dir, ReplacePath, NameOrder{Name: "face"}); !errors.Is(err, interrupted) {
		t.Errorf("an order: %v", err)
	}
	if _, err := ReadStatus(context.Background(), dir); !errors.Is(err, errMute) {
		t.Errorf("status: %v", err)
	}
}
