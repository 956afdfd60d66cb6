package stream

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Spec is a source that a Set keeps running.
type Spec struct {
	Name string
	// Source is as for ParseAddress, but standard input.
	Source  string
	To      []string
	HWAccel string
}

// SetOptions say what a Set does with its sources.
type SetOptions struct {
	Node Inferrer
	// Observe gets the answers of all streams; it may be called at the same time for several
	// streams, and keeps nothing of a frame. It may be nil.
	Observe func(Result)
	// FFmpeg is the program, "ffmpeg" if empty.
	FFmpeg string
	Log    zerolog.Logger
	// MinPause and MaxPause are the times before a source that ended is opened again: MinPause
	// at first, then twice as long each time. The defaults are 1 s and 1 min.
	MinPause, MaxPause time.Duration
}

// The defaults of SetOptions.
const (
	minPause = time.Second
	maxRetry = time.Minute
)

// steadyAfter is how long a source must have run for its next failure to count as the first.
const steadyAfter = 30 * time.Second

// Set keeps sources running: it opens one that ends or fails again. All are live, files too, which
// begin again at their end.
type Set struct {
	options SetOptions
	streams []*kept
}

// The states of a stream.
const (
	Starting = "starting" // no frame was answered since the source was opened
	Running  = "running"
	Waiting  = "waiting" // to open the source again
)

// kept is a stream of a Set.
type kept struct {
	Spec
	monitor *Monitor
	log     zerolog.Logger

	mu       sync.Mutex // guards below
	source   string     // without passwords
	state    string
	err      error
	since    time.Time // of state
	opened   uint64
	statuses map[string]string // last status of each function
}

// NewSet makes a Set, which Run starts.
func NewSet(specs []Spec, o SetOptions) *Set {
	o.MinPause, o.MaxPause = cmp.Or(o.MinPause, minPause), cmp.Or(o.MaxPause, maxRetry)
	s := &Set{options: o}
	for _, spec := range specs {
		k := &kept{Spec: spec, monitor: NewMonitor(spec.To), state: Starting, since: time.Now(), statuses: map[string]string{}}
		k.source, _, _ = strings.Cut(spec.Source, "://")
		if k.source != spec.Source {
			k.source += "://" + hidden // until it is parsed
		}
		k.log = o.Log.With().Str("stream", spec.Name).Logger()
		s.streams = append(s.streams, k)
	}
	return s
}

// Run keeps the sources running until ctx ends.
func (s *Set) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, k := range s.streams {
		all.Go(func() { s.keep(ctx, k) })
	}
	all.Wait()
}

func (s *Set) keep(ctx context.Context, k *kept) {
	pause := s.options.MinPause
	for ctx.Err() == nil {
		began := time.Now()
		err := s.open(ctx, k)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(began) >= steadyAfter {
			pause = s.options.MinPause
		}
		k.wait(err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, s.options.MaxPause)
	}
}

// open runs a stream until its source ends.
func (s *Set) open(ctx context.Context, k *kept) error {
	k.enter(Starting, nil)
	if k.Source == Stdin {
		return errors.New("source is standard input; want an address, a file or a device")
	}
	address, err := ParseAddress(k.Source)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.source = address.String()
	k.opened++
	k.mu.Unlock()
	return Run(ctx, Options{
		Name: k.Name, To: k.To, Node: s.options.Node, Monitor: k.monitor,
		Input: Input{Address: address, Live: true, HWAccel: k.HWAccel, FFmpeg: s.options.FFmpeg, Log: k.log},
		Observe: func(r Result) error {
			k.observe(r)
			if s.options.Observe != nil {
				s.options.Observe(r)
			}
			return nil
		},
	})
}

func (k *kept) enter(state string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state, k.err, k.since = state, err, time.Now()
}

func (k *kept) wait(err error, pause time.Duration) {
	k.enter(Waiting, err)
	if err == nil {
		k.log.Debug().Msg("source has ended; it begins again")
		return
	}
	k.log.Warn().Err(err).Dur("pause_ms", pause).Msg("stream failed; its source is opened again after a pause")
}

// observe logs what changes.
func (k *kept) observe(r Result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == Starting {
		k.state, k.since = Running, time.Now()
		k.log.Info().Str("source", k.source).Msg("stream runs")
	}
	bad := func(status string) bool { return status == StatusUnknown || status == StatusError }
	before := k.statuses[r.Function]
	k.statuses[r.Function] = r.Status
	if bad(r.Status) && before != r.Status {
		k.log.Warn().Err(r.Err).Str("if", r.Function).Msg("function takes no frames of the stream")
	}
}

// Status is what a stream does.
type Status struct {
	Name string `json:"name"`
	// Source has no passwords.
	Source string `json:"source"`
	// State is Starting, Running or Waiting, for that time. Error is why it is Waiting.
	State        string  `json:"state"`
	StateSeconds float64 `json:"state_s"`
	Error        string  `json:"error,omitempty"`
	// Opened is how often the source was opened.
	Opened uint64 `json:"opened"`
	Snapshot
}

// Status returns the state of each stream. It is empty, not nil, if there are none.
func (s *Set) Status() []Status {
	list := []Status{}
	for _, k := range s.streams {
		list = append(list, k.status())
	}
	return list
}

func (k *kept) status() Status {
	counts := k.monitor.Snapshot()
	k.mu.Lock()
	defer k.mu.Unlock()
	status := Status{
		Name: k.Name, Source: k.source, State: k.state, StateSeconds: time.Since(k.since).Seconds(), Opened: k.opened, Snapshot: counts,
	}
	if k.err != nil {
		status.Error = k.err.Error()
	}
	return status
}
