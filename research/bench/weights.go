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
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/mps"
)

// Weights is the report of `penstock-lab weights` (Table 1 of the paper): instances of a model
// with weights of their own, and with weights that they share, in the same run. All are
// clients of MPS, as a node's are.
type Weights struct {
	Machine testbed.Machine `json:"machine"`
	Device  string          `json:"device"`
	// Budget is the memory that instances are started into, by ballast that holds the rest
	// of the device's; MostInstances is when that is stopped, which is what MPS takes.
	BudgetBytes   int64          `json:"budget_bytes"`
	MostInstances int            `json:"most_instances"`
	Runs          int            `json:"runs"`
	Models        []WeightsModel `json:"models"`
	// Left are models for which the time did not suffice.
	Left []string `json:"left,omitempty"`
}

// WeightsModel is one model.
type WeightsModel struct {
	Model string `json:"model"`
	// FileBytes is the model's file, WeightsBytes what its weights take on the device
	// when they are shared: once, whatever there is of instances.
	FileBytes    int64       `json:"file_bytes"`
	WeightsBytes int64       `json:"weights_bytes"`
	Private      WeightsCase `json:"private"`
	Shared       WeightsCase `json:"shared"`
	// Prepared is the very first instance, for which the model is prepared, and Uploaded
	// the first on this device of one that is: the holder reads the weights for it. The
	// instances of Shared find both done.
	Prepared WeightsInstance `json:"prepared"`
	Uploaded WeightsInstance `json:"uploaded"`
}

// WeightsCase is a way to have weights.
type WeightsCase struct {
	// One has one batch size, which a card's ladder begins with: 1. Ladder has all.
	One    WeightsInstance `json:"one"`
	Ladder WeightsInstance `json:"ladder"`
	// Fit is how many instances with all batch sizes were started into the budget; Ended
	// says why there are no more.
	Fit   int    `json:"fit"`
	Ended string `json:"ended"`
}

// WeightsInstance is one instance: medians over the runs.
type WeightsInstance struct {
	Batches []int `json:"batches"`
	// LoadMillis is the process's start to a shadow that sleeps: the framework, and the
	// model in host memory with the CPU's answer. Of a model that is prepared it is the graph
	// alone, and the answer is read with it, which is a part of what is saved. WakeMillis is
	// from there to every batch size linked, checked and configured, and ContextMillis the
	// part of it that the driver takes for a context. Files are in the page cache.
	LoadMillis    float64 `json:"load_ms"`
	WakeMillis    float64 `json:"wake_ms"`
	ContextMillis float64 `json:"context_ms"`
	// Bytes is what the device has less of when it is there: context, sessions,
	// buffers, and weights where they are its own.
	Bytes int64 `json:"bytes"`
	// Runs are what these are the medians of; none of what is measured once.
	Runs []WeightsInstance `json:"runs,omitempty"`
}

// WeightsOptions say what RunWeights measures.
type WeightsOptions struct {
	Setup
	Models []string
	// BudgetBytes 0 starts no instances to see how many fit.
	BudgetBytes   int64
	MostInstances int
	Runs          int
	// AtOnce is how many instances are started at the same time to see how many fit.
	AtOnce int
	// Limit is how long all of it may take; 0 is as long as it takes. A model is not begun
	// that would take longer if it took as long as the one before.
	Limit time.Duration
	// Report, if not empty, is a file that has the report after each model. What it has
	// already is gone on with: a model that is in it is not measured again.
	Report string
}

// RunWeights measures each model.
func RunWeights(ctx context.Context, o WeightsOptions) (r Weights, err error) {
	r = Weights{Machine: o.Machine, BudgetBytes: o.BudgetBytes, MostInstances: o.MostInstances, Runs: o.Runs}
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
	// This process holds the ballast, and must outlive whatever becomes of MPS.
	if err := orchestrator.StayOut(dir); err != nil {
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
	b := &weightsBed{o: o, dir: dir, device: found, session: session, environment: daemon.Environment()}
	defer func() { err = errors.Join(err, b.empty()) }()
	err = r.measure(&o, func(i int) (WeightsModel, error) { return b.model(ctx, o.Models[i], cards[i]) })
	return r, err
}

// measure has each model measured that the report does not have, while there is time, and
// writes the report.
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

// goOn takes over what a file has of a report like this one; there may be no file, and none
// is asked for where its name is empty.
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
	is := func(w *Weights) string {
		return fmt.Sprintf("%d MiB of %s, %d instances at most, %d runs, Penstock %s", w.BudgetBytes>>20, w.Device, w.MostInstances, w.Runs, w.Machine.Penstock)
	}
	if was, now := is(&before), is(r); was != now {
		return fmt.Errorf("report %s is of %s; this one is of %s: name another file, or remove it", file, was, now)
	}
	r.Models = before.Models
	return nil
}

// write replaces a file by the report, whole; an empty name is none.
func (r *Weights) write(file string) error {
	if file == "" {
		return nil
	}
	return WriteReport(file, r)
}

// cards finds the models', before any is measured.
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

// weightsBed is a device, and what runs on it.
type weightsBed struct {
	o           WeightsOptions
	dir         string
	device      cuda.Device
	session     nvml.Session
	environment map[string]string
	holder      *weightsHolder // nil: weights are private
	instances   []*weightsInstance
	said        string // by the instance that once ended last
}

func (b *weightsBed) model(ctx context.Context, name string, card *models.Card) (m WeightsModel, err error) {
	m.Model = name
	// The parent-death signal comes when the thread that forked ends, which those that held
	// ballast do.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Reading it puts it into the page cache, where what is prepared of it will be, too.
	if m.FileBytes, err = readThrough(card.Model); err != nil {
		return m, err
	}
	b.o.Say("%s: weights of its own", name)
	if m.Private, err = b.cases(ctx, card); err != nil {
		return m, err
	}
	b.o.Say("%s: shared weights", name)
	cache := filepath.Join(b.dir, "cache-"+name)
	b.environment["XDG_CACHE_HOME"] = cache
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	// A model is prepared once, with one batch size as with all: no session of one is made.
	for _, first := range []*WeightsInstance{&m.Prepared, &m.Uploaded} {
		if b.holder, err = b.hold(ctx); err != nil {
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
	held := b.holder.state()
	if held.Files != 1 {
		return m, fmt.Errorf("its weights are not shared: the holder has %d files; it said %q, and the instance %q", held.Files, b.holder.log.last(), b.said)
	}
	m.WeightsBytes = held.Bytes
	m.Shared, err = b.cases(ctx, card)
	return m, err
}

// readThrough reads a file, and says how many bytes it has.
func readThrough(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(io.Discard, f)
}

func (b *weightsBed) cases(ctx context.Context, card *models.Card) (c WeightsCase, err error) {
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

// measured starts an instance as often as there are runs.
func (b *weightsBed) measured(ctx context.Context, card *models.Card, batches []int) (WeightsInstance, error) {
	var runs []WeightsInstance
	for range b.o.Runs {
		w, err := b.once(ctx, card, batches)
		if err != nil {
			return w, err
		}
		runs = append(runs, w)
	}
	median := func(of func(WeightsInstance) float64) float64 {
		list := make([]float64, len(runs))
		for i, w := range runs {
			list[i] = of(w)
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

// once starts an instance and ends it. What it takes is without what the holder has.
func (b *weightsBed) once(ctx context.Context, card *models.Card, batches []int) (w WeightsInstance, err error) {
	i, err := b.start(ctx, card, batches)
	if err != nil {
		return w, err
	}
	defer func() {
		err = errors.Join(err, i.end())
		b.said = i.said.last()
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
	if b.holder != nil {
		b.holder.await()
	}
	after, heldAfter, err := b.used()
	w.Batches, w.Bytes = batches, (after-heldAfter)-(before-held)
	return w, err
}

// used is the device's memory that is in use, and the part that the holder has.
func (b *weightsBed) used() (used, held int64, err error) {
	u, err := b.session.Usage(b.device.UUID())
	if b.holder != nil {
		held = b.holder.state().Bytes
	}
	return u.UsedBytes, held, err
}

// fit starts instances until one does not start.
func (b *weightsBed) fit(ctx context.Context, card *models.Card) (n int, ended string, err error) {
	defer func() { err = errors.Join(err, b.endAll()) }()
	give, err := b.ballast()
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, give()) }()
	atOnce := max(1, b.o.AtOnce)
	for n < b.o.MostInstances {
		var group []*weightsInstance
		for range min(atOnce, b.o.MostInstances-n) {
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
				_ = i.end() // it has said what is wrong
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
			atOnce /= 2 // those that start together are in one another's way
		default:
			return n, line(failed), nil
		}
	}
	return n, fmt.Sprintf("%d are as many as are tried", b.o.MostInstances), nil
}

// line is the first line of an error, not too long.
func line(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	const most = 300
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// ballast takes the device's memory but for the budget, of which shared weights have
// their part already.
func (b *weightsBed) ballast() (give func() error, err error) {
	leave := b.o.BudgetBytes
	if b.holder != nil {
		leave -= b.holder.state().Bytes
	}
	took, let, ended := make(chan error), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // to which the context is bound; it ends with the goroutine
		ended <- func() error {
			c, err := b.device.OpenContext(cuda.ScheduleAuto)
			if err == nil {
				err = c.Bind()
			}
			var arenas []*cuda.Arena
			for piece := int64(8) << 30; err == nil && piece >= 2<<20; {
				u, usageErr := b.session.Usage(b.device.UUID())
				if err = usageErr; err != nil {
					break
				}
				if u.FreeBytes-piece < leave {
					piece /= 2
					continue
				}
				var a *cuda.Arena
				if a, err = c.NewArena(int(piece)); err == nil {
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

func (b *weightsBed) endAll() error {
	var errs []error
	for _, i := range b.instances {
		errs = append(errs, i.end())
	}
	b.instances = nil
	return errors.Join(errs...)
}

// empty ends the instances and the holder.
func (b *weightsBed) empty() error {
	err := b.endAll()
	if b.holder != nil {
		err = errors.Join(err, b.holder.end())
		b.holder = nil
	}
	return err
}

// weightsHolder is `penstock weights`.
type weightsHolder struct {
	socket string
	cmd    *exec.Cmd
	log    spoken
	states chan control.WeightsHeld
	last   control.WeightsHeld
}

func (b *weightsBed) hold(ctx context.Context) (*weightsHolder, error) {
	h := &weightsHolder{socket: filepath.Join(b.dir, "weights.sock"), states: make(chan control.WeightsHeld, 64)}
	h.cmd = exec.CommandContext(ctx, b.o.Binary, "weights", "--socket", h.socket, "--linger", "1h")
	// As the orchestrator starts it: no client of MPS.
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

// state is what it said last.
func (h *weightsHolder) state() control.WeightsHeld {
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

// await waits until it has said that it has a file, but not for long: it says so while who
// asked for the file goes on, or there is none.
func (h *weightsHolder) await() {
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

func (h *weightsHolder) end() error {
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

// weightsInstance is RunInstance in a process of its own.
type weightsInstance struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said spoken
}

// spoken is what a process has written; it may be at it.
type spoken struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *spoken) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// last is its last line.
func (l *spoken) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(l.text.String())
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func (b *weightsBed) start(ctx context.Context, card *models.Card, batches []int) (*weightsInstance, error) {
	file, err := testbed.Variant(b.dir, card, batches)
	if err != nil {
		return nil, err
	}
	args := []string{"instance", "-o", "json", "--card", file}
	if b.holder != nil {
		args = append(args, "--weights", b.holder.socket)
	}
	i := &weightsInstance{cmd: exec.CommandContext(ctx, b.o.Lab, args...)}
	i.cmd.Env = os.Environ()
	for name, value := range b.environment {
		i.cmd.Env = append(i.cmd.Env, name+"="+value)
	}
	i.cmd.Stderr = &i.said
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

// ended is why it ended: the last line that it wrote. It ends where it has not.
func (i *weightsInstance) ended(err error) error {
	i.in.Close()
	_ = i.cmd.Wait() // what it says is better
	return fmt.Errorf("an instance ended: %s", cmp.Or(i.said.last(), err.Error()))
}

// heard reads what an instance says next.
func (i *weightsInstance) heard(w *WeightsInstance) error {
	text, err := i.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, w)
	}
	if err != nil {
		return i.ended(err)
	}
	return nil
}

func (i *weightsInstance) loaded() (w WeightsInstance, err error) { return w, i.heard(&w) }

func (i *weightsInstance) ready(w *WeightsInstance) error { return i.heard(w) }

// order wakes it.
func (i *weightsInstance) order() error {
	if _, err := io.WriteString(i.in, "wake\n"); err != nil {
		return i.ended(err)
	}
	return nil
}

// end has it give everything back.
func (i *weightsInstance) end() error {
	i.in.Close()
	if i.cmd.ProcessState != nil {
		return nil // it ended by itself
	}
	if err := i.cmd.Wait(); err != nil {
		return fmt.Errorf("an instance: %w: %s", err, i.said.last())
	}
	return nil
}

// RunInstance is one instance, as libml's process has one but for requests: it loads, says
// so on out, is woken by a line of in, says so again with what both took, and gives
// everything back when in ends. The device is not touched before it is woken. began is when
// the process did. Its weights are those of the holder at a socket, or its own.
func RunInstance(in io.Reader, out io.Writer, began time.Time, file, socket string, build libml.Build, log zerolog.Logger) (err error) {
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
	const first = "cuda" // the only one that it sees
	uuid := os.Getenv("CUDA_VISIBLE_DEVICES")
	environment := libml.Environment{Card: card, Threads: runtime.NumCPU(), Log: log, Device: cmp.Or(uuid, first),
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
		return nil // it is not woken
	}
	woken := time.Now()
	if d, err = openDevice(first, card.Input); err == nil {
		err = d.Bind()
	}
	if err != nil {
		return err
	}
	w.ContextMillis = millis(time.Since(woken))
	tensors, _, err := mapTensors(d, card, card.MaxBatch()) // the memory goes with the process
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
