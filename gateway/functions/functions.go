// Package functions follows a node's functions as a client of them: where each listens,
// what its model takes, and what its answers mean.
//
// A Set asks the manager for the status of the node several times per second. Pictures go to
// the functions over UDP, as those of any other client.
package functions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Interval is how often a Set asks the manager for the status.
const Interval = 250 * time.Millisecond

// MaxWait is the longest time that a request may wait for its answer.
const MaxWait = 10 * time.Second

// fragmentBytes is the size of fragments. A frame of 1080p is 190 of them, and would be 3,038 of the usual size.
const fragmentBytes = 16 << 10

// linger is how long the client of an old port or a removed function stays open for the
// requests that are under way.
const linger = MaxWait

// Set is the functions of one node. Any goroutine may use it.
type Set struct {
	dir     string // runtime folder
	observe func(*control.Sample)
	log     zerolog.Logger
	tried   chan struct{} // closed after the first attempt
	asking  sync.Mutex    // held while Refresh asks

	mu        sync.RWMutex
	functions map[string]*Function
	sample    control.Sample
	updated   time.Time // when sample was read; zero if it never was
	err       error     // why the last attempt failed
}

// Function is a function as it was when the Set was asked. It is immutable.
type Function struct {
	Name string
	// Card describes the model that serves. It is shared and read-only.
	Card *models.Card
	// Camera is the format of the cameras that the function takes pictures of; empty if it takes
	// those of clients.
	Camera string
	// LargestPicture is the size of the largest picture of another format and size than the card's, in bytes; 0: it takes none.
	LargestPicture int

	version version
	address string
	keyFile string
	client  *client.Client
	// sequences are those of client.
	sequences *sequences
}

// version identifies a served model within a run of a manager.
type version struct {
	started    time.Time
	model      string
	number     uint32
	generation uint32
}

// ErrUnknown is returned for a name that no function has.
var ErrUnknown = errors.New("no such function")

// NewSet returns the functions of the node with that runtime folder. It has none before Run.
// observe, if not nil, is called with each sample of the manager, from one goroutine at a time.
func NewSet(dir string, observe func(*control.Sample), log zerolog.Logger) *Set {
	return &Set{dir: dir, observe: observe, log: log, functions: map[string]*Function{}, err: errors.New("manager has not been asked yet"), tried: make(chan struct{})}
}

// Tried is closed after the first request to the manager.
func (s *Set) Tried() <-chan struct{} { return s.tried }

// Run follows the node until ctx ends. If the manager does not answer, the last known functions
// remain.
func (s *Set) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for first := true; ; first = false {
		err := s.Refresh(ctx)
		if first {
			close(s.tried)
		}
		if ctx.Err() != nil {
			s.close()
			return
		}

		s.mu.Lock()
		changed := (err == nil) != (s.err == nil)
		s.err = err
		s.mu.Unlock()
		if changed && err != nil {
			s.log.Warn().Err(err).Msg("manager does not answer; the last known functions stay")
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// Order sends an order to the manager, waits for its end, and refreshes the Set.
func (s *Set) Order(ctx context.Context, path string, order any) error {
	if _, err := control.SendOrder(ctx, s.dir, path, order); err != nil {
		return err
	}
	return s.Refresh(ctx)
}

// Refresh asks the manager once.
func (s *Set) Refresh(ctx context.Context) error {
	s.asking.Lock()
	defer s.asking.Unlock()
	sample, err := control.ReadSample(ctx, s.dir)
	if err != nil {
		return err
	}
	status := sample.Status
	if s.observe != nil {
		s.observe(&sample)
	}

	next := map[string]*Function{}
	var errs []error
	for i := range status.Functions {
		f, err := s.function(ctx, &status, &status.Functions[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		next[f.Name] = f
	}

	s.mu.Lock()
	before := s.functions
	s.functions, s.sample, s.updated = next, sample, time.Now()
	s.mu.Unlock()

	used := map[*client.Client]bool{}
	for _, f := range next {
		used[f.client] = true
	}
	for _, f := range before {
		if !used[f.client] {
			time.AfterFunc(linger, func() { f.client.Close() })
		}
	}
	return errors.Join(errs...)
}

// function returns the function of a status. It keeps the client and the card of the last one
// if they are the same.
func (s *Set) function(ctx context.Context, status *control.Status, f *control.FunctionStatus) (*Function, error) {
	next := &Function{Name: f.Name, LargestPicture: f.Input.LargestPicture, address: f.ClientAddr().String(), keyFile: f.KeyFile}
	if f.Camera != nil {
		next.Camera = f.Camera.Format
	}
	next.version = version{started: status.Started, model: f.Model, number: f.Version}
	for i := range f.Instances {
		if p, ok := f.Instances[i].Serving(); ok {
			next.version.generation = max(next.version.generation, p.Generation)
		}
	}

	s.mu.RLock()
	last := s.functions[f.Name]
	s.mu.RUnlock()
	if last != nil && last.version == next.version {
		next.Card = last.Card
	} else {
		text, err := control.ReadCard(ctx, s.dir, f.Name)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(text, &next.Card); err != nil {
			return nil, fmt.Errorf("read card of function %s: %w", f.Name, err)
		}
	}

	if last != nil && last.address == next.address && last.keyFile == next.keyFile {
		next.client, next.sequences = last.client, last.sequences
		return next, nil
	}
	c, err := client.Dial(ctx, next.address, client.Options{Timeout: MaxWait, LocalFragmentBytes: fragmentBytes, KeyFile: next.keyFile})
	if err != nil {
		return nil, fmt.Errorf("open client of function %s: %w", f.Name, err)
	}
	next.client, next.sequences = c, newSequences()
	return next, nil
}

func (s *Set) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.functions {
		f.client.Close()
	}
	s.functions = map[string]*Function{}
}

// Function returns a function by its name, or ErrUnknown.
func (s *Set) Function(name string) (*Function, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if f := s.functions[name]; f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("%w: %q; the node has %q", ErrUnknown, name, s.names())
}

// All returns the functions in the order of their names.
func (s *Set) All() []*Function {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []*Function
	for _, name := range s.names() {
		all = append(all, s.functions[name])
	}
	return all
}

// names returns the sorted names. The caller holds mu.
func (s *Set) names() []string {
	return slices.Sorted(maps.Keys(s.functions))
}

// Status returns the last known status and its age. The error says why the last attempt to
// read a newer one failed.
func (s *Set) Status() (status control.Status, age time.Duration, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sample.Status, time.Since(s.updated), s.err
}

// Counters returns the last known counters of a function.
func (s *Set) Counters(name string) (c control.FunctionSample) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if i := slices.IndexFunc(s.sample.Functions, func(c control.FunctionSample) bool { return c.Name == name }); i >= 0 {
		c = s.sample.Functions[i]
	}
	return c
}

// staleAfter is the age at which a status says nothing about the present.
const staleAfter = 2 * time.Second

// Alive returns nil if the manager answers.
func (s *Set) Alive() error {
	if _, age, err := s.Status(); age > staleAfter {
		return fmt.Errorf("manager does not answer: %w", cmp.Or(err, errors.New("it is slow")))
	}
	return nil
}

// Complete returns nil if the node has loaded all its functions.
func (s *Set) Complete() error {
	if status, _, _ := s.Status(); status.Loading != "" {
		return fmt.Errorf("the models in %s are not all loaded yet", status.Loading)
	}
	return s.Alive()
}

// Ready returns nil if the function has a process that serves, in every instance.
func (s *Set) Ready(name string) error {
	if err := s.Alive(); err != nil {
		return err
	}
	status, _, _ := s.Status()
	f, ok := status.Function(name)
	if !ok {
		return fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	for i := range f.Instances {
		if _, ok := f.Instances[i].Serving(); !ok {
			return fmt.Errorf("function %s has no process that serves", name)
		}
	}
	return nil
}

// Answer is the answer to one picture. Result.Kind says what its Content is.
type Answer struct {
	client.Result
	wire.Content
	// Latency is from the send of the first packet to the receipt of the last.
	Latency time.Duration
}

// Wanted is what a request wants. The zero value is all that the function answers within its objective.
type Wanted struct {
	// Deadline is how long an answer is useful; 0 is the function's objective.
	Deadline time.Duration
	// LowestScore is the score below which the answer has nothing; 0 is the card's.
	LowestScore float64
	// Only says for each class whether the answer may have it (models.Card.Only); nil: all.
	Only []bool
	// Sequence is that of a model with state.
	Sequence Sequence
	// Picture is the format and shape of the picture, if they are not the card's.
	Picture wire.Picture
	// place is that of a photo in the card's picture. The answer is about the photo.
	place wire.Place
}

// Infer sends a picture in the format that the function takes on the wire, and waits for the
// answer. The errors are those of client.Client.Do: client.StatusError for an answer other than ok.
func (f *Function) Infer(ctx context.Context, picture []byte, w Wanted) (a Answer, err error) {
	if f.Camera != "" {
		return a, fmt.Errorf("%w: %s takes those of cameras only (format: %s)", ErrNoPicture, f.Name, f.Camera)
	}
	options := client.RequestOptions{Deadline: w.Deadline, LowestScore: w.LowestScore, Picture: w.Picture}
	if len(f.Card.State) > 0 {
		options.Stream = f.sequences.stream(w.Sequence)
	}
	r, err := f.client.Do(ctx, picture, options)
	if err != nil {
		return a, err
	}
	if w.Only != nil {
		r.Payload = wire.Narrow(r.Kind, r.Payload, func(class uint16, _ float32) bool { return int(class) < len(w.Only) && w.Only[class] })
	}
	if err = wire.Check(r.Kind, r.Payload); err == nil && w.place != (wire.Place{}) {
		r.Payload = w.place.Append(nil, r.Kind, r.Payload)
	}
	a.Result, a.Latency = r, r.Received.Sub(r.Sent)
	if err = cmp.Or(err, a.Decode(r.Kind, r.Payload)); err != nil {
		return a, fmt.Errorf("decode answer of %s: %w", f.Name, err)
	}
	return a, nil
}

// Label is the name of a class; empty if the model has none.
func (f *Function) Label(class uint16) string {
	if int(class) < len(f.Card.Labels) {
		return f.Card.Labels[class]
	}
	return ""
}
