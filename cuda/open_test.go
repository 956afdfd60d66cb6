//go:build cgo

package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
)

func init() {
	children["open"] = func() error {
		err := cuda.Open()
		os.Unsetenv("PENSTOCK_LIBCUDA")
		if again := cuda.Open(); again != err {
			return fmt.Errorf("Open says %v, then %v", err, again)
		}
		for _, is := range []error{cuda.ErrNoDriver, cuda.ErrNoSymbol, cuda.ErrNoDevice, cuda.ErrLost} {
			if errors.Is(err, is) {
				fmt.Printf("[%v] ", is)
			}
		}
		if _, found := cuda.Find("cuda"); err != nil && found != err {
			return fmt.Errorf("Open says %v, Find %v", err, found)
		}
		return err
	}
	children["unopened"] = func() error { return cuda.StreamOf(1).Synchronize() }
	children["context"] = func() error {
		runtime.LockOSThread()
		d, err := cuda.Find("cuda")
		if err != nil {
			return err
		}
		c, err := d.OpenContext()
		if err != nil {
			return err
		}
		return errors.Join(c.Bind(), c.Close())
	}
	children["SMs"] = func() error {
		runtime.LockOSThread()
		d, err := cuda.Find("cuda")
		if err != nil {
			return err
		}
		c, err := d.OpenContext()
		if err != nil {
			return err
		}
		p, err := d.Properties()
		if err := errors.Join(c.Bind(), err); err != nil {
			return err
		}
		sms, err := c.SMs()
		return errors.Join(err, fmt.Errorf("%d of %d, MPS %v", sms, p.SMs, p.MPS))
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	must.OK(t, os.WriteFile(text, []byte("no library"), 0o600))
	old, err := cudafake.Build(dir, cudafake.Without("cuMemcpyAsync"))
	must.OK(t, err)
	here := cudafake.Library(os.Getenv("PENSTOCK_LIBCUDA"))
	for _, c := range []struct {
		name string
		env  []string
		want []string
	}{
		{"a file that is not there", []string{cudafake.Library("/nowhere/libcuda.so.1")}, []string{"[cuda: no driver library]", "/nowhere/libcuda.so.1"}},
		{"a file that is no library", []string{cudafake.Library(text)}, []string{"[cuda: no driver library]", "text.so"}},
		{"a library without a function", []string{cudafake.Library(old)}, []string{"[cuda: the driver library lacks a function]", old, "cuMemcpyAsync"}},
		{"a machine without a GPU", []string{here, cudafake.Env(cudafake.Devices(0))}, []string{"[cuda: no such device]", "cuInit: CUDA_ERROR_NO_DEVICE (100)"}},
		{"a driver that does not start", []string{here, cudafake.Env(cudafake.Refuse("cuInit", 0, 803))}, []string{"cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"}},
		{"an MPS daemon that is not there", []string{here, cudafake.Env(cudafake.Refuse("cuInit", 0, 805))}, []string{"[cuda: the device is lost to this process]", "MPS_CONNECTION_FAILED (805)"}},
		{"a driver that serves", []string{here}, []string{"<nil>"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			message := inChild(t, "open", c.env...)
			for _, want := range c.want {
				if !strings.Contains(message, want) {
					t.Errorf("Open says %q, without %q", message, want)
				}
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	must.OK(t, cuda.Open()) // the names are the driver's
	err := &cuda.Error{Op: "cuMemAlloc", Code: cuda.OutOfMemory}
	if got, want := err.Error(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
	if got, want := (&cuda.Error{Op: "cuX", Code: 12345}).Error(), "cuX: CUresult(12345) (12345)"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestNotOpen(t *testing.T) {
	if message := inChild(t, "unopened"); !strings.Contains(message, "cuStreamSynchronize: CUresult(3) (3)") {
		t.Errorf("an unopened library says %q", message)
	}
}

func TestOpenWaitsForMPS(t *testing.T) {
	var settings []cudafake.Setting
	for nth, code := range []cuda.Code{cuda.MPSServerNotReady, cuda.MPSConnectionFailed, cuda.MPSServerNotReady, cuda.MPSConnectionFailed, cuda.MPSServerNotReady} {
		settings = append(settings, cudafake.Refuse("cuInit", nth+1, code), cudafake.Refuse("cuDevicePrimaryCtxRetain", nth+1, code))
	}
	if message := inChild(t, "context", cudafake.Env(settings...)); message != "<nil>" {
		t.Errorf("the sixth time the server was ready, and the error is %q", message)
	}
	start := time.Now()
	message := inChild(t, "open", cudafake.Env(cudafake.Refuse("cuInit", 0, cuda.MPSServerNotReady)))
	if took := time.Since(start); took < cuda.ReadyTimeout || !strings.Contains(message, "(807)") || !strings.Contains(message, "lost") {
		t.Errorf("after %v the error is %q", took, message)
	}
}

func TestMPSPercentage(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "control"), nil, 0o600))
	for percent, want := range map[string]string{
		"10": "12 of 12, MPS true", "30": "38 of 38, MPS true", "60": "78 of 78, MPS true", "100": "132 of 132, MPS true",
	} {
		message := inChild(t, "SMs", "CUDA_MPS_PIPE_DIRECTORY="+dir, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+percent)
		if message != want {
			t.Errorf("at %s %% there are %s", percent, message)
		}
	}
	if message := inChild(t, "SMs", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10"); message != "132 of 132, MPS false" {
		t.Errorf("without MPS there are %s", message)
	}
}
