package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/cuda/nvml"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/orchestrator/gpu"
	"github.com/penstock/penstock/orchestrator/mps"
)

// Weights is the report of `penstock-lab weights` (Table 1 of the paper). It compares
// instances of a model that have their own weights with instances that share them, in the same
// run. All are clients of MPS, as in a node.
type Weights struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	// Budget is the device memory for instances; ballast occupies the rest. MaxInstances is
	// the max number of instances that are started, which is the limit of MPS.
	BudgetBytes  int64          `json:"budget_bytes"`
	MaxInstances int            `json:"most_instances"`
	Runs         int            `json:"runs"`
	Models       []WeightsModel `json:"models"`
	// Left are models for which there was not enough time.
	Left []string `json:"left,omitempty"`
}

// WeightsModel is one model.
type WeightsModel struct {
	Model string `json:"model"`
	// FileBytes is the size of the model's file. WeightsBytes is the device memory of its
	// weights if they are shared: once, for any number of instances.
	FileBytes    int64       `json:"file_bytes"`
	WeightsBytes int64       `json:"weights_bytes"`
	Private      WeightsCase `json:"private"`
	Shared       WeightsCase `json:"shared"`
	// Prepared is the very first instance, for which the model is prepared. Uploaded is the
	// first instance of a prepared model on this device, for which the weight server reads the
	// weights. The instances of Shared come after both.
	Prepared WeightsInstance `json:"prepared"`
	Uploaded WeightsInstance `json:"uploaded"`
}

// WeightsCase is one way to hold weights.
type WeightsCase struct {
	// One is an instance with a single batch size, 1, the first of a card's ladder. Ladder has
	// all sizes.
	One    WeightsInstance `json:"one"`
	Ladder WeightsInstance `json:"ladder"`
	// Fit is how many instances with all batch sizes fit into the budget. Ended is why there
	// are no more.
	Fit   int    `json:"fit"`
	Ended string `json:"ended"`
}

// WeightsInstance has the figures of one instance: medians over the runs.
type WeightsInstance struct {
	Batches []int `json:"batches"`
	// LoadMillis is from the process's start until it is a sleeping shadow. It includes loading
	// the framework, and the model with the CPU's answer into host memory. For a prepared model
	// only the graph is loaded, and the answer is read with it, which is part of the saving.
	// WakeMillis is from there until every batch size is linked, checked and configured.
	// ContextMillis is the part in which the driver creates a context. Files are in the page
	// cache.
	LoadMillis    float64 `json:"load_ms"`
	WakeMillis    float64 `json:"wake_ms"`
	ContextMillis float64 `json:"context_ms"`
	// Bytes is the device memory that the instance uses: context, sessions, buffers, and
	// weights if they are its own.
	Bytes int64 `json:"bytes"`
	// Runs are the values behind the medians; empty for a single measurement.
	Runs []WeightsInstance `json:"runs,omitempty"`
}

// WeightsOptions say what RunWeights measures.
type WeightsOptions struct {
	Setup
	Models []string
	// BudgetBytes 0 omits the measurement of how many instances fit.
	BudgetBytes  int64
	MaxInstances int
	Runs         int
	// AtOnce is how many instances start at the same time in the measurement of how many fit.
	AtOnce int
	// Limit is the max duration of the call; 0 is no limit. A model is not begun if it would
	// exceed the limit by taking as long as the previous one.
	Limit time.Duration
	// Report, if not empty, is a file to which the report is written after each model. A model
	// that the file already contains is not measured again.
	Report string
}

// RunWeights measures each model.
func RunWeights(ctx context.Context, o WeightsOptions) (r Weights, err error) {
	r = Weights{Machine: o.Machine, BudgetBytes: o.BudgetBytes, MaxInstances: o.MaxInstances, Runs: o.Runs}
	if o.Device == configs.DeviceCPU {
		return r, errors.New("device cpu: weights are shared in a GPU's memory; want cuda, cuda:N or a GPU's UUID")
	}
	cards, err := o.cards()
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "penstock-weights-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// This process holds the ballast, and must survive any failure of MPS.
	if err := gpu.StayOut(dir); err != nil {
		return r, err
	}
	found, err := cuda.Find(o.Device)
	if err != nil {
		return r, err
	}
	r.Device = found.Name()
	if err := r.goOn(o.Report); err != nil {
		return r, err
	}
	session, err := nvml.Open()
	if err != nil {
		return r, err
	}
	if u, err := session.Usage(found.UUID()); err != nil {
		return r, err
	} else if o.BudgetBytes > u.FreeBytes {
		return r, fmt.Errorf("a budget of %d MiB: %d MiB of the device are free", o.BudgetBytes>>20, u.FreeBytes>>20)
	}
	daemon, err := mps.Start(ctx, mps.Options{Dir: dir, UUID: found.UUID(), Session: session, Log: zerolog.Nop()})
	if err != nil {
		return r, fmt.Errorf("instances are clients of MPS: %w", err)
	}
	defer func() { err = errors.Join(err, daemon.Close()) }()
	b := &weightsHarness{o: o, dir: dir, device: found, session: session, environment: daemon.Environment()}
	defer func() { err = errors.Join(err, b.empty()) }()
	err = r.measure(&o, func(i int) (WeightsModel, error) { return b.model(ctx, o.Models[i], cards[i]) })
	return r, err
}

// measure measures each model that the report lacks, while there is time, and writes the
// report.
func (r *Weights) measure(o *WeightsOptions, model func(int) (WeightsModel, error)) error {
	began, last := time.Now(), time.Duration(0)
	r.Left = nil
	for i, name := range o.Models {
		if slices.ContainsFunc(r.Models, func(m WeightsModel) bool { return m.Model == name }) {
			continue
		}
		if o.Limit > 0 && time.Since(began)+last > o.Limit {
			r.Left = append(r.Left, name)
			continue
		}
		start := time.Now()
		m, err := model(i)
		last = time.Since(start)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.Models = append(r.Models, m)
		if err := r.write(o.Report); err != nil {
			return err
		}
	}
	return r.write(o.Report)
}

// goOn takes over the results of an existing report. It returns an error if the report has
// other settings. The file may be missing, and an empty name means no file.
func (r *Weights) goOn(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("go on with a report: %w", err)
	}
	var before Weights
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("go on with report %s: %w", file, err)
	}
	identify := func(w *Weights) string {
		return fmt.Sprintf("%d MiB of %s, %d instances at most, %d runs, Penstock %s", w.BudgetBytes>>20, w.Device, w.MaxInstances, w.Runs, w.Machine.Penstock)
	}
	if old, now := identify(&before), identify(r); old != now {
		return fmt.Errorf("report %s is of %s; this one is of %s: name another file, or remove it", file, old, now)
	}
	r.Models = before.Models
	return nil
}

// write replaces the file with the report, completely or not at all; an empty name means no
// file.
func (r *Weights) write(file string) error {
	if file == "" {
		return nil
	}
	return WriteReport(file, r)
}

// cards finds the models' cards before any model is measured.
func (o *WeightsOptions) cards() (list []*models.Card, err error) {
	for _, name := range o.Models {
		card, err := o.Card(name)
		if err != nil {
			return nil, err
		}
		list = append(list, card)
	}
	return list, nil
}

// weightsHarness is a device and the processes that run on it.
type weightsHarness struct {
	o           WeightsOptions
	dir         string
	device      cuda.Device
	session     nvml.Session
	environment map[string]string
	server      *weightServer // nil: weights are private
	instances   []*weightsInstance
	output      string // last output of the instance that once() ended last
}

func (b *weightsHarness) model(ctx context.Context, name string, card *models.Card) (m WeightsModel, err error) {
	m.Model = name
	// The kernel sends the parent-death signal when the thread that forked ends. Threads that
	// held ballast do end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Reading the file puts it into the page cache, where the prepared files will be, too.
	if m.FileBytes, err = readThrough(card.Model); err != nil {
		return m, err
	}
	b.o.Printf("%s: weights of its own", name)
	if m.Private, err = b.cases(ctx, card); err != nil {
		return m, err
	}
	b.o.Printf("%s: shared weights", name)
	cache := filepath.Join(b.dir, "cache-"+name)
	b.environment["XDG_CACHE_HOME"] = cache
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	// A model is prepared once, in the same way for one batch size as for all: no session is
	// made for that.
	for _, first := range []*WeightsInstance{&m.Prepared, &m.Uploaded} {
		if b.server, err = b.hold(ctx); err != nil {
			return m, err
		}
		*first, err = b.once(ctx, card, card.Batches)
		if first == &m.Prepared || err != nil {
			err = errors.Join(err, b.empty())
		}
		if err != nil {
			return m, err
		}
	}
	defer func() { err = errors.Join(err, b.empty()) }()
	held := b.server.state()
	if held.Files != 1 {
		return m, fmt.Errorf("its weights are not shared: the holder has %d files; it said %q, and the instance %q", held.Files, b.server.log.last(), b.output)
	}
	m.WeightsBytes = held.Bytes
	m.Shared, err = b.cases(ctx, card)
	return m, err
}

// readThrough reads a file and returns its size in bytes.
func readThrough(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(io.Discard, f)
}

func (b *weightsHarness) cases(ctx context.Context, card *models.Card) (c WeightsCase, err error) {
	if c.One, err = b.measured(ctx, card, card.Batches[:1]); err != nil {
		return c, err
	}
	if c.Ladder, err = b.measured(ctx, card, card.Batches); err != nil {
		return c, err
	}
	if b.o.BudgetBytes > 0 {
		c.Fit, c.Ended, err = b.fit(ctx, card)
	}
	return c, err
}

// measured starts an instance once per run.
func (b *weightsHarness) measured(ctx context.Context, card *models.Card, batches []int) (WeightsInstance, error) {
	var runs []WeightsInstance
	for range b.o.Runs {
		w, err := b.once(ctx, card, batches)
		if err != nil {
			return w, err
		}
		runs = append(runs, w)
	}
	median := func(value func(WeightsInstance) float64) float64 {
		list := make([]float64, len(runs))
		for i, w := range runs {
			list[i] = value(w)
		}
		slices.Sort(list)
		n := len(list)
		return (list[(n-1)/2] + list[n/2]) / 2
	}
	return WeightsInstance{
		Batches:       batches,
		Runs:          runs,
		LoadMillis:    median(func(w WeightsInstance) float64 { return w.LoadMillis }),
		WakeMillis:    median(func(w WeightsInstance) float64 { return w.WakeMillis }),
		ContextMillis: median(func(w WeightsInstance) float64 { return w.ContextMillis }),
		Bytes:         int64(median(func(w WeightsInstance) float64 { return float64(w.Bytes) })),
	}, nil
}

// once starts an instance and ends it. Its figures exclude the memory of the weight server.
func (b *weightsHarness) once(ctx context.Context, card *models.Card, batches []int) (w WeightsInstance, err error) {
	i, err := b.start(ctx, card, batches)
	if err != nil {
		return w, err
	}
	defer func() {
		err = errors.Join(err, i.end())
		b.output = i.output.last()
	}()
	if w, err = i.loaded(); err != nil {
		return w, err
	}
	before, held, err := b.used()
	if err != nil {
		return w, err
	}
	if err := i.order(); err != nil {
		return w, err
	}
	if err := i.ready(&w); err != nil {
		return w, err
	}
	if b.server != nil {
		b.server.await()
	}
	after, heldAfter, err := b.used()
	w.Batches, w.Bytes = batches, (after-heldAfter)-(before-held)
	return w, err
}

// used returns the device memory in use, and the weight server's part of it.
func (b *weightsHarness) used() (used, held int64, err error) {
	u, err := b.session.Usage(b.device.UUID())
	if b.server != nil {
		held = b.server.state().Bytes
	}
	return u.UsedBytes, held, err
}

// fit starts instances until one fails to start.
func (b *weightsHarness) fit(ctx context.Context, card *models.Card) (n int, ended string, err error) {
	defer func() { err = errors.Join(err, b.endAll()) }()
	give, err := b.ballast()
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, give()) }()
	atOnce := max(1, b.o.AtOnce)
	for n < b.o.MaxInstances {
		var group []*weightsInstance
		for range min(atOnce, b.o.MaxInstances-n) {
			i, err := b.start(ctx, card, card.Batches)
			if err != nil {
				b.instances = append(b.instances, group...)
				return n, "", err
			}
			group = append(group, i)
		}
		errs := make([]error, len(group))
		for k, i := range group {
			if _, errs[k] = i.loaded(); errs[k] == nil {
				errs[k] = i.order()
			}
		}
		failed := error(nil)
		for k, i := range group {
			if errs[k] == nil {
				var w WeightsInstance
				errs[k] = i.ready(&w)
			}
			if errs[k] != nil {
				failed = errs[k]
				_ = i.end() // it has already reported its error
				continue
			}
			b.instances = append(b.instances, i)
			n++
		}
		switch {
		case failed == nil:
		case ctx.Err() != nil:
			return n, "", context.Cause(ctx)
		case atOnce > 1:
			atOnce /= 2 // instances that start together hinder each other
		default:
			return n, line(failed), nil
		}
	}
	return n, fmt.Sprintf("%d are as many as are tried", b.o.MaxInstances), nil
}

// line returns the first line of an error, shortened if necessary.
func line(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// ballast allocates the device's memory except for the budget. Shared weights already use a
// part of the budget.
func (b *weightsHarness) ballast() (give func() error, err error) {
	leave := b.o.BudgetBytes
	if b.server != nil {
		leave -= b.server.state().Bytes
	}
	took, let, ended := make(chan error), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the context is bound to this thread, which ends with the goroutine
		ended <- func() error {
			c, err := b.device.OpenContext()
			if err == nil {
				err = c.Bind()
			}
			var arenas []*cuda.Arena
			for fragment := int64(8) << 30; err == nil && fragment >= 2<<20; {
				u, usageErr := b.session.Usage(b.device.UUID())
				if err = usageErr; err != nil {
					break
				}
				if u.FreeBytes-fragment < leave {
					fragment /= 2
					continue
				}
				var a *cuda.Arena
				if a, err = c.NewArena(int(fragment)); err == nil {
					arenas = append(arenas, a)
				}
			}
			took <- err
			<-let
			var errs []error
			for _, a := range arenas {
				errs = append(errs, a.Close())
			}
			return errors.Join(append(errs, c.Close())...)
		}()
	}()
	give = func() error {
		close(let)
		return <-ended
	}
	if err := <-took; err != nil {
		return nil, errors.Join(fmt.Errorf("take the device's memory but for %d bytes: %w", leave, err), give())
	}
	return give, nil
}

func (b *weightsHarness) endAll() error {
	var errs []error
	for _, i := range b.instances {
		errs = append(errs, i.end())
	}
	b.instances = nil
	return errors.Join(errs...)
}

// empty ends the instances and the weight server.
func (b *weightsHarness) empty() error {
	err := b.endAll()
	if b.server != nil {
		err = errors.Join(err, b.server.end())
		b.server = nil
	}
	return err
}

// weightServer is a `penstock weights` process, the weight server.
type weightServer struct {
	socket string
	cmd    *exec.Cmd
	log    outputLines
	states chan control.WeightsHeld
	last   control.WeightsHeld
}

func (b *weightsHarness) hold(ctx context.Context) (*weightServer, error) {
	h := &weightServer{socket: filepath.Join(b.dir, "weights.sock"), states: make(chan control.WeightsHeld, 64)}
	h.cmd = exec.CommandContext(ctx, b.o.Binary, "weights", "--socket", h.socket, "--linger", "1h")
	// Start it as the orchestrator does: not as a client of MPS.
	h.cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+b.device.UUID())
	h.cmd.Stderr = &h.log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the holder of weights: %w", err)
	}
	go func() {
		defer close(h.states)
		for d := json.NewDecoder(out); ; {
			var now control.WeightsHeld
			if d.Decode(&now) != nil {
				return
			}
			h.states <- now
		}
	}()
	if _, ok := <-h.states; !ok {
		return nil, fmt.Errorf("the holder of weights does not start: %v: %s", h.cmd.Wait(), h.log.last())
	}
	return h, nil
}

// state returns its last report.
func (h *weightServer) state() control.WeightsHeld {
	for {
		select {
		case now, ok := <-h.states:
			if !ok {
				return h.last
			}
			h.last = now
		default:
			return h.last
		}
	}
}

// await waits until the weight server has reported that it holds a file. It does not wait
// long: the report comes while the process that requested the file continues, or not at all.
func (h *weightServer) await() {
	const patience = time.Second
	for deadline := time.After(patience); h.last.Files == 0; {
		select {
		case now, ok := <-h.states:
			if !ok {
				return
			}
			h.last = now
		case <-deadline:
			return
		}
	}
}

func (h *weightServer) end() error {
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	for range h.states { // until it has ended
	}
	if err := h.cmd.Wait(); err != nil {
		return fmt.Errorf("the holder of weights: %w: %s", err, h.log.last())
	}
	return nil
}

// weightsInstance is RunInstance in a separate process.
type weightsInstance struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	output outputLines
}

// outputLines collects the output of a process that may still be writing.
type outputLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *outputLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// last returns its last line.
func (l *outputLines) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(l.text.String())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func (b *weightsHarness) start(ctx context.Context, card *models.Card, batches []int) (*weightsInstance, error) {
	file, err := testbed.Variant(b.dir, card, batches)
	if err != nil {
		return nil, err
	}
	args := []string{"instance", "-o", "json", "--card", file}
	if b.server != nil {
		args = append(args, "--weights", b.server.socket)
	}
	i := &weightsInstance{cmd: exec.CommandContext(ctx, b.o.Lab, args...)}
	i.cmd.Env = os.Environ()
	for name, value := range b.environment {
		i.cmd.Env = append(i.cmd.Env, name+"="+value)
	}
	i.cmd.Stderr = &i.output
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := i.cmd.StdoutPipe()
	if err == nil {
		i.in, err = i.cmd.StdinPipe()
	}
	if err == nil {
		err = i.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start an instance: %w", err)
	}
	i.out = bufio.NewReader(out)
	return i, nil
}

// ended closes the instance's input, waits until it has exited, and returns why: the last line
// that it wrote, otherwise err.
func (i *weightsInstance) ended(err error) error {
	i.in.Close()
	_ = i.cmd.Wait() // its output is more useful
	return fmt.Errorf("an instance ended: %s", cmp.Or(i.output.last(), err.Error()))
}

// readState reads the instance's next report.
func (i *weightsInstance) readState(w *WeightsInstance) error {
	text, err := i.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, w)
	}
	if err != nil {
		return i.ended(err)
	}
	return nil
}

func (i *weightsInstance) loaded() (w WeightsInstance, err error) { return w, i.readState(&w) }

func (i *weightsInstance) ready(w *WeightsInstance) error { return i.readState(w) }

// order wakes the instance.
func (i *weightsInstance) order() error {
	if _, err := io.WriteString(i.in, "wake\n"); err != nil {
		return i.ended(err)
	}
	return nil
}

// end makes the instance release everything and exit.
func (i *weightsInstance) end() error {
	i.in.Close()
	if i.cmd.ProcessState != nil {
		return nil // it has exited already
	}
	if err := i.cmd.Wait(); err != nil {
		return fmt.Errorf("an instance: %w: %s", err, i.output.last())
	}
	return nil
}

// RunInstance is one instance, as in a process of libml but without requests. It loads and
// reports that on out. A line on in wakes it, and it reports again with both durations. When
// in ends, it releases everything. It does not touch the device before it is woken. began is
// the start time of the process. The weights are those of the weight server at socket, or its
// own.
func RunInstance(in io.Reader, out io.Writer, began time.Time, file, socket string, build libml.Build, log *slog.Logger) (err error) {
	card, err := models.ReadCard(file)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // devices are bound to threads
	defer runtime.UnlockOSThread()
	framework, err := build(card)
	if err != nil {
		return err
	}
	var d device.Device
	uuid := os.Getenv("CUDA_VISIBLE_DEVICES")
	environment := libml.Environment{Card: card, Threads: runtime.NumCPU(), Log: log, Device: cmp.Or(uuid, firstGPU),
		Stream: func(slot int) uintptr {
			if p, ok := d.(device.Partitioned); ok {
				return p.Stream(slot)
			}
			return 0
		}}
	var mapped *weights.Mappings
	if socket != "" {
		mapped = weights.NewMappings(socket)
		environment.Weights = func(file string) (libml.Weights, error) {
			at, loaded, err := mapped.Map(file)
			if err != nil {
				return libml.Weights{}, fmt.Errorf("%w: %w", libml.ErrNoWeights, err)
			}
			return libml.Weights{Address: uintptr(at), Bytes: int(loaded.Bytes), CRC32C: loaded.CRC}, nil
		}
	}
	defer func() {
		err = errors.Join(err, framework.Deinit())
		if mapped != nil {
			err = errors.Join(err, mapped.Close())
		}
		if d != nil {
			err = errors.Join(err, d.Bind(), d.Close())
		}
	}()
	if err := framework.Init(environment); err != nil {
		return fmt.Errorf("init %s: %w", card.Framework, err)
	}
	if err := framework.LoadModel(); err != nil && !errors.Is(err, libml.ErrNoHostStage) {
		return fmt.Errorf("load model %s: %w", card.Name, err)
	}
	say := json.NewEncoder(out)
	w := WeightsInstance{LoadMillis: millis(time.Since(began))}
	if err := say.Encode(w); err != nil {
		return err
	}
	orders := bufio.NewReader(in)
	if _, err := orders.ReadString('\n'); err != nil {
		return nil // it is never woken
	}
	woken := time.Now()
	if d, err = openDevice(firstGPU, card.Input); err == nil {
		err = d.Bind()
	}
	if err != nil {
		return err
	}
	w.ContextMillis = millis(time.Since(woken))
	tensors, _, err := mapTensors(d, card, card.MaxBatch()) // the memory is released with the process
	if err != nil {
		return err
	}
	if _, err := framework.LinkModel(); err != nil {
		return fmt.Errorf("link model %s: %w", card.Name, err)
	}
	for slot := range d.InFlight() {
		for _, n := range card.Batches {
			if err := configureBare(framework, card, tensors[slot], slot, n); err != nil {
				return fmt.Errorf("configure batch of %d: %w", n, err)
			}
		}
	}
	w.WakeMillis = millis(time.Since(woken))
	if err := say.Encode(w); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, orders)
	return nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
