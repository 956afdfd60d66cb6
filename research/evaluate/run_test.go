package evaluate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/research/bench"
)

// programs is the folder of the programs that nodes consist of, built once.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "penstock-evaluate-test-"); err != nil {
		panic(err)
	}
	// The sandbox's user runs these programs.
	if err = os.Chmod(programs, 0o755); err != nil {
		panic(err)
	}
	code := m.Run()
	removeMPS()
	os.RemoveAll(programs)
	os.Exit(code)
}

var penstock = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(programs, "penstock")
	out, err := exec.Command("go", "build", "-tags", "null", "-ldflags", "-s -w", "-o", binary, "../../cmd/penstock").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build penstock: %w: %s", err, out)
	}
	return binary, err
})

// builtPenstock returns the binary that nodes run.
func builtPenstock(t *testing.T) string {
	t.Helper()
	binary, err := penstock()
	must.OK(t, err)
	return binary
}

// lab is built once.
var lab = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(programs, "penstock-lab")
	out, err := exec.Command("go", "build", "-o", binary, "../cmd/penstock-lab").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build penstock-lab: %w: %s", err, out)
	}
	return binary, err
})

// builtLab returns the binary for measurements that need their own process.
func builtLab(t *testing.T) string {
	t.Helper()
	binary, err := lab()
	must.OK(t, err)
	return binary
}

// quickly returns options for a figure with small models on the CPU.
func quickly(t *testing.T, binary, figure string) Options {
	t.Helper()
	o := Options{Setup: bench.Setup{Setup: testbed.Setup{Binary: binary, Device: configs.DeviceCPU, Machine: testbed.ThisMachine("test")}, Lab: builtLab(t)},
		Figure: figure, Out: t.TempDir(), Runs: 1, Seed: 1, Quick: true}
	o.Progress = func(what string) { t.Log(what) }
	return o
}

// Runs whole nodes under open loops, and again under a script. On a machine with other users
// the test can only require that every request is counted once.
func TestRunOnCPU(t *testing.T) {
	binary := builtPenstock(t)
	t.Run("loads", func(t *testing.T) {
		checkSeveralReceivers(t)
		r := measured(t, quickly(t, binary, "fig11"))
		for _, x := range r.Results {
			if len(x.Loads) != 2 {
				t.Fatalf("%s, %s: %d loads", x.Case, x.Variant, len(x.Loads))
			}
			for _, l := range x.Loads {
				for _, f := range l.Functions {
					checkSum(t, x, f)
					if f.Receivers != rules.MaxReceivers {
						t.Errorf("%s, %s, %s: %d receivers, want %d", x.Case, x.Variant, f.Name, f.Receivers, rules.MaxReceivers)
					}
				}
			}
		}
		if len(r.Capacity) == 0 || r.Capacity[0].PerSecond <= 0 {
			t.Errorf("capacity %+v", r.Capacity)
		}
	})
	t.Run("timeline", func(t *testing.T) {
		if testing.Short() {
			t.Skip("not with -short: it plays scripts of several seconds")
		}
		r := measured(t, quickly(t, binary, "fig16"))
		for _, x := range r.Results {
			if x.Timeline == nil || len(x.Timeline.Functions) != 2 {
				t.Fatalf("%s, %s: %+v", x.Case, x.Variant, x.Timeline)
			}
			begun := 0
			for _, e := range x.Timeline.Events {
				if e.What == cueBegin {
					begun++
				}
			}
			if begun != 2 {
				t.Errorf("%s: %d functions began: %+v", x.Variant, begun, x.Timeline.Events)
			}
			for _, f := range x.Timeline.Functions {
				checkSum(t, x, f.Total)
				if f.Total.Receivers != 1 {
					t.Errorf("%s, %s: %d receivers for a small load", x.Variant, f.Name, f.Total.Receivers)
				}
				offered := 0
				for _, b := range f.Bins {
					offered += b.Offered
				}
				if uint64(offered) != f.Total.Sent {
					t.Errorf("%s, %s: the bins have %d requests of %d", x.Variant, f.Name, offered, f.Total.Sent)
				}
			}
		}
	})
}

// measured runs a figure until it is complete.
func measured(t *testing.T, o Options) *Report {
	t.Helper()
	r, err := Run(t.Context(), o)
	must.OK(t, err)
	written, err := read(filepath.Join(o.Out, o.Figure+".json"))
	must.OK(t, err)
	p, err := Prepare(o)
	must.OK(t, err)
	if r.Left != 0 || written.Left != 0 || p.Left != 0 || len(written.Results) != p.Steps {
		t.Errorf("%d of %d are left, %d as it is written: %+v", r.Left, p.Steps, written.Left, written.Results)
	}
	for _, x := range written.Results {
		if x.Error != "" || x.Lost != 0 {
			t.Errorf("%s, %s: %d lost, %q", x.Case, x.Variant, x.Lost, x.Error)
		}
	}
	return written
}

func checkSum(t *testing.T, x Result, f FunctionLoad) {
	t.Helper()
	if sum := f.OK + f.Late + f.Incomplete + f.Busy + f.Refused + f.Failed + f.Unanswered; f.Sent == 0 || sum != f.Sent {
		t.Errorf("%s, %s, %s: %d sent, %d accounted for", x.Case, x.Variant, f.Name, f.Sent, sum)
	}
}

// A killed call loses only its current measurement.
func TestResume(t *testing.T) {
	o := quickly(t, builtPenstock(t), "table5")
	o.Runs = 4
	before := killed(t, o)
	for attempt := 1; len(before.Results) == o.Runs; attempt++ { // the kill came too late
		if attempt == 10 {
			t.Fatalf("each of %d calls made all measurements before the kill", attempt)
		}
		o.Out = t.TempDir()
		before = killed(t, o)
	}
	after := measured(t, o)
	if len(after.Results) != o.Runs {
		t.Errorf("%d measurements, want %d", len(after.Results), o.Runs)
	}
	for i, x := range before.Results {
		if after.Results[i].TookSeconds != x.TookSeconds {
			t.Errorf("run %d was measured again", x.Run)
		}
	}
}

// killed starts a call and kills it after its first measurement. It returns the report that is left.
func killed(t *testing.T, o Options) *Report {
	t.Helper()
	file := filepath.Join(o.Out, o.Figure+".json")
	command := exec.Command(builtLab(t), "evaluate", "--figure", o.Figure, "--device", o.Device, "--quick", "--runs", strconv.Itoa(o.Runs), "--out", o.Out)
	var said strings.Builder
	command.Stderr = &said
	must.OK(t, command.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		command.Wait()
	}()
	const patience = 5 * time.Minute
	deadline := time.After(patience)
	for running := true; running; {
		if r, err := read(file); err == nil && len(r.Results) > 0 {
			break
		}
		select {
		case <-ended:
			running = false
		case <-deadline:
			t.Errorf("nothing was written within %v", patience)
			running = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	command.Process.Kill()
	<-ended
	r, err := read(file)
	if err != nil || len(r.Results) == 0 {
		t.Fatalf("no measurement: %v\n%s", err, said.String())
	}
	return r
}

// A measurement that is not expected to end within the limit does not start and stays in the
// plan.
func TestLimit(t *testing.T) {
	o := quickly(t, "/nowhere/penstock", "table5")
	o.Limit = time.Millisecond
	r, err := Run(t.Context(), o)
	if err != nil || r.Left != 1 || r.Tried != 0 || len(r.Results) != 0 {
		t.Errorf("%+v, %v: want one measurement left and none made", r, err)
	}
	p, err := Prepare(o)
	if err != nil || p.Next != p.Takes || p.Next <= o.Limit {
		t.Errorf("%+v, %v: want the shortest to be the one that there is", p, err)
	}
}

// The report records a failed measurement with its reason, and the next call repeats it.
func TestFailureRetried(t *testing.T) {
	o := quickly(t, builtPenstock(t), "table5")
	o.Lab = "/nowhere/penstock-lab"
	_, err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "/nowhere/penstock-lab") {
		t.Fatalf("without a binary: %v", err)
	}
	r, err := read(filepath.Join(o.Out, "table5.json"))
	if err != nil || len(r.Results) != 1 || !strings.Contains(r.Results[0].Error, "/nowhere/penstock-lab") || r.Left != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	o.Lab = builtLab(t)
	if r := measured(t, o); len(r.Results) != 1 || len(r.Results[0].Points) == 0 {
		t.Errorf("tried again: %+v", r.Results)
	}
}

func TestRepeatedFailures(t *testing.T) {
	o := quickly(t, builtPenstock(t), "table5")
	o.Lab, o.Runs = "/nowhere/penstock-lab", 10
	r, err := Run(t.Context(), o)
	if err == nil || len(r.Results) != hopeless || r.Left != 10 {
		t.Errorf("%d of 10 were tried, %d left, %v: want %d tried", len(r.Results), r.Left, err, hopeless)
	}
}

func TestInterrupt(t *testing.T) {
	o := quickly(t, "/bin/true", "table5")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, o); err == nil {
		t.Error("an interrupted run reports no error")
	}
	if _, err := os.Stat(filepath.Join(o.Out, "table5.json")); err == nil {
		t.Error("an interrupted measurement was written")
	}
}

// If another version continues a figure, the earlier results keep their version.
func TestResultVersion(t *testing.T) {
	o := quickly(t, "", "fig16")
	o.Machine.Penstock = "first"
	r, err := newRunner(o)
	must.OK(t, err)
	r.report.Results = []Result{{Case: "wrong shares", Variant: partition, Run: 1, Error: "nobody served"}}
	must.OK(t, r.report.Write(r.file))
	o.Machine.Penstock = "second"
	if r, err = newRunner(o); err != nil {
		t.Fatal(err)
	}
	if got := r.report.Results[0].Penstock; got != "first" {
		t.Errorf("the result is of version %q, want first", got)
	}
}

// An error that is too long for a report keeps its start and its last output.
func TestLongError(t *testing.T) {
	long := shortened(errors.New("vgg16 does not serve: " + strings.Repeat("é", 5000) + " the end"))
	if !strings.HasPrefix(long, "vgg16 does not serve: ") || !strings.HasSuffix(long, " the end") || len([]rune(long)) > 810 {
		t.Errorf("%d characters: %s", len([]rune(long)), long)
	}
	if short := shortened(errors.New("no GPU")); short != "no GPU" {
		t.Errorf("a short one is %q", short)
	}
}

// A step that failed slowly is expected to take as long again. A measured step is expected to
// take as long as before.
func TestStepEstimate(t *testing.T) {
	r, err := newRunner(quickly(t, "", "fig16"))
	must.OK(t, err)
	v, err := variantOf(partition)
	must.OK(t, err)
	s := step{c: &r.figure.Cases[0], variant: v, run: 2}
	guess := s.c.takes(v)
	for _, test := range []struct {
		took  float64
		err   string
		wants time.Duration
	}{{1000, "nobody serves", 1000 * time.Second}, {0.5, "no such model", guess}, {1, "", time.Second}} {
		r.report.Results = []Result{{Case: s.c.Name, Variant: v.name, Run: 1, TookSeconds: test.took, Error: test.err}}
		if got := r.takes(s); got != test.wants {
			t.Errorf("after %v s, %q: expects %v, want %v", test.took, test.err, got, test.wants)
		}
	}
}
