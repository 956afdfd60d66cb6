package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
)

// drainTimeout is how long Run sends what waits after its context has ended.
const drainTimeout = 2 * time.Second

// Set sends answers to receivers. Any goroutine may use it.
type Set struct {
	receivers []*receiver
	log       zerolog.Logger
	drain     time.Duration
}

// NewSet makes the receivers of a configuration, which Run starts.
func NewSet(specs []configs.Publish, version string, log zerolog.Logger) *Set {
	s := &Set{log: log, drain: drainTimeout}
	for i := range specs {
		spec := &specs[i]
		r := &receiver{
			spec: spec, filter: newFilter(spec), queue: newQueue(), log: log.With().Str("publish", spec.Name).Logger(),
			pause: minPause, state: Starting, since: time.Now(),
		}
		switch spec.Kind {
		case configs.PublishJSONL:
			r.place = spec.File
			if spec.File == standardOutput {
				r.place = "standard output"
			}
			r.sink = &lines{path: spec.File}
		case configs.PublishZeroMQ:
			r.place = spec.Address
			r.sink = &zeromq{spec: spec, dropped: r.queue.dropped, log: r.log}
		default:
			u, err := url.Parse(spec.Address)
			if err != nil {
				u = &url.URL{} // the configuration was checked
			}
			r.place, r.hide = u.Scheme+"://"+u.Host, secrets(u, spec.Kind)
			if spec.Kind == configs.PublishWebhook {
				r.sink = newWebhook(u, spec.TokenFile, spec.Timeout)
			} else {
				r.place += "/" + spec.Topic
				r.sink = newMQTT(u, spec, version)
			}
		}
		s.receivers = append(s.receivers, r)
	}
	return s
}

// minSecret is the min length of a secret that is removed from errors. To remove shorter texts
// would make errors unreadable.
const minSecret = 4

// secrets are the parts of an address that no line may show, the longest first. The path and the
// query of a webhook often contain a key.
func secrets(u *url.URL, kind configs.PublishKind) (list []string) {
	add := func(text string) {
		if len(text) >= minSecret {
			list = append(list, text)
		}
	}
	if kind == configs.PublishWebhook {
		add(u.RequestURI())
		add(u.Path)
		add(u.RawQuery)
	}
	if password, ok := u.User.Password(); ok {
		add(u.User.String())
		add(url.QueryEscape(password))
		add(password)
	} else {
		add(u.User.Username()) // a token
	}
	return list
}

// Publish offers an answer to each receiver. It never waits, and keeps nothing of the answer but the
// payload, which does not change. A nil answer is ignored.
func (s *Set) Publish(a *Answer) {
	if a == nil {
		return
	}
	var text []byte
	for _, r := range s.receivers {
		if !r.filter.pass(a) {
			continue
		}
		if text == nil {
			var err error
			if text, err = json.Marshal(a); err != nil { // a model that computes NaN
				r.refuse(fmt.Errorf("encode answer of %s: %w", a.Function, err))
				text = nil
				continue
			}
		}
		m := message{lane: lane{a.Stream, a.Function}, kind: a.Kind, at: a.Time, text: text}
		if r.spec.Kind == configs.PublishZeroMQ {
			m.payload = a.payload
		}
		r.queue.put(m)
	}
}

// Empty reports whether there are no receivers.
func (s *Set) Empty() bool { return len(s.receivers) == 0 }

// Run sends until ctx ends, and then, for a short time, what still waits.
func (s *Set) Run(ctx context.Context) {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var all sync.WaitGroup
	for _, r := range s.receivers {
		all.Go(func() { r.run(ctx, hard) })
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()

	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(s.drain):
		cancel()
		// A write to a pipe that is not read ends with the process only.
		select {
		case <-ended:
		case <-time.After(s.drain):
		}
	}
	for _, r := range s.receivers {
		if waiting, dropped := r.queue.counts(); waiting > 0 || dropped > 0 {
			r.log.Warn().Int("waiting", waiting).Uint64("dropped", dropped).Msg("answers were not delivered")
		}
	}
}

// Status returns the state of each receiver. It is empty, not nil, if there are none.
func (s *Set) Status() []Status {
	list := []Status{}
	for _, r := range s.receivers {
		list = append(list, r.status())
	}
	return list
}
