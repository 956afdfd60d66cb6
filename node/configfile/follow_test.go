package configfile

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

// followed is a fake manager that sends the configurations it receives.
type followed chan configs.Config

func (f followed) Reconfigure(c configs.Config) error {
	f <- c
	return nil
}

func (f followed) RejectConfiguration(error) {}

// follows watches a configuration that was read as text, until the test ends. on is the
// file's text when the watch starts.
func follows(t *testing.T, text, on string) (reported followed, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "node.yaml")
	writes(t, file, text)
	begun, err := configs.Read(file)
	must.OK(t, err)
	writes(t, file, on)
	reported = make(followed, 16)
	ctx, cancel := context.WithCancel(context.Background())
	var ends sync.WaitGroup
	ends.Go(func() { Follow(ctx, reported, begun, func(configs.Config) {}, zerolog.Nop()) })
	t.Cleanup(func() {
		cancel()
		ends.Wait()
	})
	return reported, file
}

func writes(t *testing.T, file, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
}

const (
	oneFunction  = "functions:\n  - name: face\n    port: 0\n"
	twoFunctions = oneFunction + "  - name: fashion\n    port: 0\n"
)

// next returns the next configuration that the manager receives.
func (f followed) next(t *testing.T) configs.Config {
	t.Helper()
	select {
	case c := <-f:
		return c
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is followed")
		return configs.Config{}
	}
}

// A node takes seconds to start, and an edit in this time must not be lost.
func TestFollowEditBeforeWatch(t *testing.T) {
	reported, _ := follows(t, oneFunction, twoFunctions)
	if c := reported.next(t); len(c.Functions) != 2 {
		t.Errorf("followed %d functions, want the 2 of the edit", len(c.Functions))
	}
}

// A change of the file's mode must not discard changes made at run time.
func TestFollowIgnoresModes(t *testing.T) {
	reported, file := follows(t, oneFunction, oneFunction)
	for range 3 { // the watch may start after the first
		time.Sleep(100 * time.Millisecond)
		must.OK(t, os.Chmod(file, 0o640))
	}
	time.Sleep(500 * time.Millisecond)
	select {
	case c := <-reported:
		t.Errorf("followed %d functions, and nobody wrote the file", len(c.Functions))
	default:
	}
	writes(t, file, twoFunctions)
	if c := reported.next(t); len(c.Functions) != 2 {
		t.Errorf("followed %d functions, want the 2 of the edit", len(c.Functions))
	}
}
