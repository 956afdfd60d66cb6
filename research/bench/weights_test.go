//go:build cgo

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	fakenvml "github.com/penstock/penstock/internal/testing/nvmlfake"
	"github.com/penstock/penstock/models"
)

// The tests use their own binary as the penstock binary. Its instances and its weight
// server are processes that follow the real protocol. Their memory is files of that size
// in the folder that weightsFolderEnv names.
const (
	weightsFolderEnv = "WEIGHTS_TEST_FOLDER"
	budgetBytes      = 20 << 20
	contextBytes     = 4 << 20 // of an instance, with its own or shared weights
	modelBytes       = 2 << 20 // of its weights
	deviceBytes      = 100 << 20
)

func init() {
	dir := os.Getenv(weightsFolderEnv)
	if dir == "" || len(os.Args) < 2 {
		return
	}
	flag := func(name string) string {
		if i := slices.Index(os.Args, name); i >= 0 {
			return os.Args[i+1]
		}
		return ""
	}
	var err error
	switch os.Args[1] {
	case "weights":
		err = fakeWeightServer(dir, flag("--socket"))
	case "instance":
		err = fakeInstance(dir, flag("--weights"))
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// heldBytes returns the memory of all processes.
func heldBytes(dir string) (sum int64) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.held"))
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may have been removed
		n, _ := strconv.ParseInt(string(text), 10, 64)
		sum += n
	}
	return sum
}

// fakeWeightServer has the weights as soon as an instance requests them.
func fakeWeightServer(dir, socket string) error {
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { l.Close() })
	say := json.NewEncoder(os.Stdout)
	file := filepath.Join(dir, "weights.held")
	os.Remove(file) // left by an earlier weight server
	if err := say.Encode(control.WeightsHeld{}); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if first {
			if err := os.WriteFile(file, []byte(strconv.Itoa(modelBytes)), 0o600); err != nil {
				return err
			}
			if err := say.Encode(control.WeightsHeld{Files: 1, Bytes: modelBytes}); err != nil {
				return err
			}
		}
		c.Close()
	}
}

// fakeInstance reports as its loading time, in milliseconds, how many instances have
// started.
func fakeInstance(dir, socket string) error {
	count, err := os.OpenFile(filepath.Join(dir, "count"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := count.Write([]byte{1}); err != nil {
		return err
	}
	about, err := count.Stat()
	if err != nil {
		return err
	}
	say, orders := json.NewEncoder(os.Stdout), bufio.NewReader(os.Stdin)
	w := WeightsInstance{LoadMillis: float64(about.Size())}
	if err := say.Encode(w); err != nil {
		return err
	}
	if _, err := orders.ReadString('\n'); err != nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "unshared")); err == nil {
		fmt.Fprintln(os.Stderr, "weights are not shared, because")
		socket = ""
	}
	bytes := contextBytes + modelBytes
	if socket != "" {
		bytes = contextBytes
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF { // it has started
			return err
		}
	}
	file := filepath.Join(dir, strconv.Itoa(os.Getpid())+".held")
	if err := os.WriteFile(file, []byte(strconv.Itoa(bytes)), 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	if heldBytes(dir) > budgetBytes {
		return fmt.Errorf("no room for %d bytes", bytes)
	}
	w.WakeMillis = 7
	if err := say.Encode(w); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, orders)
	return err
}

// filesSession reports files as memory, and this process's memory on the fake device.
type filesSession struct {
	*fakenvml.Session
	dir string
}

func (s filesSession) Usage(string) (nvml.Usage, error) {
	used := heldBytes(s.dir) + cudafake.Now().Bytes
	return nvml.Usage{UsedBytes: used, FreeBytes: deviceBytes - used, TotalBytes: deviceBytes}, nil
}

func fakeHarness(t *testing.T) (*weightsHarness, *models.Card) {
	t.Helper()
	cudafake.Check(t)
	dir := t.TempDir()
	t.Setenv(weightsFolderEnv, dir)
	device, err := cuda.Find("cuda")
	must.OK(t, err)
	card := &models.Card{Name: "m", Model: filepath.Join(dir, "m.onnx"), Batches: []int{1, 8}}
	must.OK(t, os.WriteFile(card.Model, []byte("model"), 0o600))
	return &weightsHarness{
		o:   WeightsOptions{Setup: Setup{Setup: testbed.Setup{Binary: os.Args[0]}, Lab: os.Args[0]}, BudgetBytes: budgetBytes, MaxInstances: 20, Runs: 3, AtOnce: 4},
		dir: dir, device: device, session: filesSession{fakenvml.New(), dir}, environment: map[string]string{},
	}, card
}

func TestWeights(t *testing.T) {
	b, card := fakeHarness(t)
	m, err := b.model(t.Context(), "m", card)
	must.OK(t, err)
	if m.FileBytes != 5 || m.WeightsBytes != modelBytes {
		t.Errorf("the file has %d bytes, its weights %d", m.FileBytes, m.WeightsBytes)
	}
	for what, got := range map[string][2]int64{
		"private, one size":   {m.Private.One.Bytes, contextBytes + modelBytes},
		"private, all":        {m.Private.Ladder.Bytes, contextBytes + modelBytes},
		"shared, one size":    {m.Shared.One.Bytes, contextBytes},
		"shared, all":         {m.Shared.Ladder.Bytes, contextBytes},
		"shared, put there":   {m.Uploaded.Bytes, contextBytes},
		"private, they fit":   {int64(m.Private.Fit), budgetBytes / (contextBytes + modelBytes)},
		"shared, they fit":    {int64(m.Shared.Fit), (budgetBytes - modelBytes) / contextBytes},
		"load, median of 123": {int64(m.Private.One.LoadMillis), 2},
		"load, median of 456": {int64(m.Private.Ladder.LoadMillis), 5},
		"runs":                {int64(len(m.Shared.Ladder.Runs)), 3},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, want %d", what, got[0], got[1])
		}
	}
	if !slices.Equal(m.Private.One.Batches, []int{1}) || !slices.Equal(m.Shared.Ladder.Batches, []int{1, 8}) || m.Shared.Ladder.Runs[0].WakeMillis != 7 {
		t.Errorf("%+v", m)
	}
	for _, c := range []WeightsCase{m.Private, m.Shared} {
		if !strings.Contains(c.Ended, "no room for") {
			t.Errorf("no more fit because %q", c.Ended)
		}
	}
	if left, err := filepath.Glob(filepath.Join(b.dir, "[0-9]*.held")); err != nil || len(left) > 0 {
		t.Errorf("instances are left: %v, %v", left, err)
	}
}

// The error is what the instance reported, instead of a comparison of two equal figures.
func TestWeightsNotShared(t *testing.T) {
	b, card := fakeHarness(t)
	must.OK(t, os.WriteFile(filepath.Join(b.dir, "unshared"), nil, 0o600))
	if _, err := b.model(t.Context(), "m", card); err == nil || !strings.Contains(err.Error(), "not shared, because") {
		t.Errorf("%v", err)
	}
}

func TestWeightsErrors(t *testing.T) {
	t.Setenv("PENSTOCK_LIBCUDA", filepath.Join(t.TempDir(), "no.so"))
	for what, o := range map[string]WeightsOptions{
		"device cpu": {Setup: Setup{Setup: testbed.Setup{Device: "cpu"}}, Models: []string{"face"}},
		"nope":       {Setup: Setup{Setup: testbed.Setup{Device: "cuda"}}, Models: []string{"face", "nope"}},
	} {
		if _, err := RunWeights(t.Context(), o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Table 1 takes longer than a call may: the next call continues the results of the first.
func TestWeightsResume(t *testing.T) {
	o := WeightsOptions{Models: []string{"a", "b", "c"}, Report: filepath.Join(t.TempDir(), "weights.json")}
	var measured []string
	broken := errors.New("broken")
	call := func(fails string) (Weights, error) {
		t.Helper()
		measured = nil
		r := Weights{Device: "H200", Runs: 3}
		must.OK(t, r.goOn(o.Report))
		err := r.measure(&o, func(i int) (WeightsModel, error) {
			if measured = append(measured, o.Models[i]); o.Models[i] == fails {
				return WeightsModel{}, broken
			}
			return WeightsModel{Model: o.Models[i], FileBytes: int64(i)}, nil
		})
		return r, err
	}
	if _, err := call("b"); !errors.Is(err, broken) || !slices.Equal(measured, []string{"a", "b"}) {
		t.Errorf("measured %v, %v", measured, err)
	}
	o.Limit = 1
	if r, err := call(""); err != nil || len(measured) != 0 || len(r.Models) != 1 || !slices.Equal(r.Left, []string{"b", "c"}) {
		t.Errorf("without time: measured %v, %+v, %v", measured, r, err)
	}
	o.Limit = 0
	if r, err := call(""); err != nil || !slices.Equal(measured, []string{"b", "c"}) || len(r.Models) != 3 || r.Left != nil {
		t.Errorf("measured %v, %+v, %v", measured, r, err)
	}
	if r, err := call(""); err != nil || measured != nil || len(r.Models) != 3 || r.Models[2].FileBytes != 2 {
		t.Errorf("when all is there: measured %v, %+v, %v", measured, r, err)
	}
	other := Weights{Device: "H200", Runs: 5}
	if err := other.goOn(o.Report); err == nil || !strings.Contains(err.Error(), "3 runs") || !strings.Contains(err.Error(), "5 runs") || len(other.Models) != 0 {
		t.Errorf("a report of others: %v", err)
	}
	must.OK(t, os.WriteFile(o.Report, []byte("{"), 0o600))
	if err := other.goOn(o.Report); err == nil || !strings.Contains(err.Error(), o.Report) {
		t.Errorf("a damaged report: %v", err)
	}
}

func TestMedian(t *testing.T) {
	b, card := fakeHarness(t)
	b.o.Runs = 2
	if w, err := b.measured(t.Context(), card, card.Batches); err != nil || w.LoadMillis != 1.5 {
		t.Errorf("%+v, %v", w, err)
	}
}
