//go:build cgo

package onnx

import (
	"os"
	"os/exec"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// A refused session is nil, not an interface that holds a nil pointer. ONNX Runtime opens in
// a child process: the other tests of this package play it.
func TestRefusedSession(t *testing.T) {
	const child = "PENSTOCK_REFUSED_SESSION"
	if os.Getenv(child) == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), child+"=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	must.OK(t, open())
	if err := openProvider(environment.path); err != nil {
		t.Logf("it has no CUDA: %v", err) // and refuses for that
	}
	made, err := onnxRuntime{}.session([]byte("no model"), settings{}, new(pool))
	if made != nil || err == nil {
		t.Errorf("a session %#v of no model: %v", made, err)
	}
}
