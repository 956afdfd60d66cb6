package null

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

func card() *models.Card {
	return &models.Card{
		Name:    "null",
		Input:   models.Input{Height: 3, Width: 5, Channels: 3, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC},
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{4}}, {Name: "b", Type: models.F32, Shape: []int64{2, 3}}},
		Batches: []int{1, 2, 4},
	}
}

// configured configures a framework for a batch of n in slot 0.
func configured(t *testing.T, words string, n int) (f *Framework, input []byte, outputs [][]byte) {
	t.Helper()
	t.Setenv(Variable, words)
	f, c := New(), card()
	if err := f.Init(framework.Environment{Card: c, Threads: 1, Log: slog.New(slog.DiscardHandler), Device: framework.DeviceCPU}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Deinit(); err != nil {
			t.Error(err)
		}
	})
	input = make([]byte, n*c.Input.TensorBytes())
	for i := range input {
		input[i] = byte(i * 7)
	}
	for i := range c.Outputs {
		outputs = append(outputs, make([]byte, n*c.Outputs[i].Bytes()))
	}
	if _, err := f.ConfigureBatch(0, n, device.HostBuffers(input), device.HostBuffers(outputs...)); err != nil {
		t.Fatal(err)
	}
	return f, input, outputs
}

func float(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}

func TestAnswers(t *testing.T) {
	f, input, outputs := configured(t, "", 4)
	if err := f.InferBatch(0, 4); err != nil {
		t.Fatal(err)
	}
	size := card().Input.TensorBytes()
	for i := range 4 {
		digest := Digest(input[i*size : (i+1)*size])
		for o, out := range card().Outputs {
			for e := range out.Elements() {
				if got, want := float(outputs[o], i*out.Elements()+e), Value(digest, o, e); got != want {
					t.Fatalf("image %d, output %d[%d] is %g, want %g", i, o, e, got, want)
				}
			}
		}
	}
}

func TestDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		image := rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(t, "image")
		at := rapid.IntRange(0, len(image)-1).Draw(t, "at")
		before := Digest(image)
		image[at] ^= 1
		if Digest(image) == before {
			t.Fatalf("flipping byte %d changes nothing", at)
		}
	})
	a, b := make([]byte, 64), make([]byte, 64)
	a[0], b[8] = 1, 1
	if Digest(a) == Digest(b) {
		t.Error("a byte in another place changes nothing")
	}
}

func TestBusy(t *testing.T) {
	f, _, _ := configured(t, "busy=3ms,busy_per_image=1ms", 2)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	if err := f.InferBatch(0, 2); err != nil {
		t.Fatal(err)
	}
	if used := threadTime() - before; used < 5*time.Millisecond {
		t.Errorf("used %v of CPU time, want 5ms", used)
	}
}

func TestSleep(t *testing.T) {
	f, _, _ := configured(t, "sleep=5ms", 1)
	before := time.Now()
	if err := f.InferBatch(0, 1); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(before); took < 5*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

func TestNaN(t *testing.T) {
	f, _, outputs := configured(t, "nan", 1)
	if err := f.InferBatch(0, 1); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if v := float(outputs[0], i); !math.IsNaN(float64(v)) {
			t.Errorf("element %d is %g", i, v)
		}
	}
}

func TestFailStep(t *testing.T) {
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			t.Setenv(Variable, "fail="+step)
			f, c := New(), card()
			calls := []func() error{
				func() error { return f.Init(framework.Environment{Card: c}) },
				f.LoadModel,
				func() error { _, err := f.LinkModel(); return err },
				func() error {
					_, err := f.ConfigureBatch(0, 1, device.HostBuffers(make([]byte, 45)), device.HostBuffers(make([]byte, 16), make([]byte, 24)))
					return err
				},
				func() error { return f.InferBatch(0, 1) },
			}
			for k, call := range calls[:i+1] {
				if err := call(); errors.Is(err, ErrOrdered) != (k == i) {
					t.Errorf("%s: %v", steps[k], err)
				}
			}
		})
	}
}

func TestFailAfter(t *testing.T) {
	f, _, _ := configured(t, "fail_after=3", 1)
	for i := range 5 {
		if err := f.InferBatch(0, 1); errors.Is(err, ErrOrdered) != (i >= 3) {
			t.Errorf("batch %d: %v", i, err)
		}
	}
}

func TestNoHostStage(t *testing.T) {
	f, _, _ := configured(t, "host_stage=no", 1)
	if err := f.LoadModel(); !errors.Is(err, framework.ErrNoHostStage) {
		t.Errorf("got %v", err)
	}
}

// childVariable is set in child processes of the test, which may crash.
const childVariable = "NULL_TEST_CHILD"

// child runs the calling test again in a child process.
func child(t *testing.T) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childVariable+"=1")
	return cmd
}

func TestHang(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		f, _, _ := configured(t, "hang_after=1", 1)
		if err := f.InferBatch(0, 1); err != nil {
			t.Fatal(err)
		}
		fmt.Println("the first batch is done")
		t.Fatal(f.InferBatch(0, 1))
	}
	cmd := child(t)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.Contains(line, "first batch") {
		t.Errorf("child says %q, %v", line, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-ended
}

func TestCrash(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		f, _, _ := configured(t, "crash_after=0", 1)
		t.Fatal(f.InferBatch(0, 1))
	}
	var exit *exec.ExitError
	if err := child(t).Run(); !errors.As(err, &exit) {
		t.Fatalf("ended with %v", err)
	}
	if status := exit.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", exit)
	}
}

func TestParseBehaviour(t *testing.T) {
	for words, want := range map[string]string{
		"busi=1ms":       `did you mean "busy"?`,
		"busy=1":         "like 1ms",
		"sleep=-1s":      "from 0 to 1h",
		"hang_after=x":   "a number of batches",
		"fail=loading":   "init, load, link",
		"nan=1":          "no value",
		"host_stage=yes": "want no",
		"spin=2":         "like 1ms",
		"fault_after=-1": "a number of batches",
		"allocate=1GB":   "a number of bytes",
		"allocate=-1":    "a number of bytes",
		"wrong=":         "want ranges",
		"wrong=30":       "want ranges",
		"wrong=8-4":      "want ranges",
		"wrong=0-4/8-9":  "want ranges",
		"zzz":            "known are busy",
	} {
		if _, err := parseBehaviour(words); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), Variable) {
			t.Errorf("%s: got %v, want %s", words, err, want)
		}
	}
	if b, err := parseBehaviour(" busy=1ms , nan,"); err != nil || b.Busy != time.Millisecond || !b.NaN || b.HangAt != 0 {
		t.Errorf("got %+v, %v", b, err)
	}
}

func TestAllocations(t *testing.T) {
	f, _, _ := configured(t, "busy=1us", 2)
	if n := testing.AllocsPerRun(100, func() {
		if err := f.InferBatch(0, 2); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
