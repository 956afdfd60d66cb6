package manager

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// function is one inference function: a model behind a UDP port. The control loop owns it.
type function struct {
	m         *Manager
	name      string
	log       zerolog.Logger
	config    configs.Function
	model     modelHistory
	setup     // the current one
	sharing   *sharing.Function
	port      *datapath.Port // nil until it is open
	camera    *camera        // nil for Penstock's protocol
	instances []*instance

	removing bool
	removeBy time.Time  // when the manager stops waiting for answers
	gone     chan error // closed when the function is removed: its name and its port are free
	held     string     // why the function is held back; "" if it is not
	trial    *trial     // nil once it has served, and for functions of the configuration

	// For status and metrics.
	swaps  observe.Swaps
	hangs  uint64
	memory memory
}

// memory is the device memory of a function's model.
type memory struct {
	persistentBytes int64 // of the linked model
	ephemeralBytes  int64 // of the largest batch beyond that
}

// logWarnings logs the warnings of a card that the function gets.
func (f *function) logWarnings(card *models.Card) {
	for _, w := range card.Warnings {
		f.log.Warn().Str("warning", w).Msg("card may be wrong")
	}
}

// newFunction opens the port and allocates the memory. It starts no thread.
func newFunction(m *Manager, c configs.Function, card *models.Card) (_ *function, err error) {
	f := &function{
		m: m, name: c.Name, config: c,
		log:   m.log.With().Str("if", c.Name).Logger(),
		gone:  make(chan error),
		setup: m.setupOf(c, card),
	}
	f.model = modelHistory{desired: card, setups: map[*models.Card]setup{card: f.setup}}
	f.logWarnings(card)
	f.sharing = m.sharing.NewFunction(f, f.log)
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	reader := readerOf(c.Format, &card.Input)
	if reader != nil {
		f.camera = &camera{Reader: reader}
	}
	sources, err := m.openSources(c)
	if err != nil {
		return nil, fmt.Errorf("open port of %s: %w", c.Name, err)
	}
	f.port, err = datapath.NewPort(sources, datapath.Options{
		Name:             c.Name,
		Queues:           c.Instances,
		RequestBytes:     wireCard(c.Format, card).Input.WireBytes(),
		ResultBytes:      card.ResultBytes(),
		MinFragmentBytes: min(int(m.cfg.Aggregate.MinimumFragment), card.Input.WireBytes(), f.maxMinFragment()),
		Camera:           reader,
		AnswersTo:        answersTo(&c),
		Slots:            m.cfg.Aggregate.Slots,
		Objective:        f.slo,
		Gather:           f.gatherTimeout(),
		Transit:          m.cfg.Transit,
		AnsweredFor:      m.cfg.Aggregate.AnsweredFor,
		Trusted:          m.cfg.Trusted,
		Lab:              datapath.Lab{RunLate: m.cfg.Lab.RunLate, LoadComplete: m.cfg.Lab.LoadComplete},
		Version:          card.Version,
		Log:              f.log,
	})
	if err != nil {
		return nil, err
	}
	for i := range c.Instances {
		in, err := newInstance(f, i)
		if err != nil {
			return nil, err
		}
		f.instances = append(f.instances, in)
	}
	f.port.SetPictures(c.Pictures.Interval())
	return f, nil
}

// checkPictures returns an error if the page cannot show the requests of a model.
func checkPictures(rate configs.PictureRate, card *models.Card) error {
	in := &card.Input
	switch {
	case rate == "":
		return nil
	case !in.IsPicture():
		return fmt.Errorf("is %s, and model %s takes %d channels of %s; want a model that takes pictures (u8, 1 or 3 channels), or leave the key out", rate, card.Name, in.Channels, in.WireType)
	case in.WireBytes() > control.MaxPictureBytes:
		return fmt.Errorf("is %s, and model %s takes pictures of %d bytes; the page shows at most %d; leave the key out", rate, card.Name, in.WireBytes(), control.MaxPictureBytes)
	}
	return nil
}

// Configuration, Objective and WorkerOf make a function a sharing.Host.
func (f *function) Configuration() configs.Function { return f.config }

func (f *function) Objective() time.Duration { return f.slo }

func (f *function) WorkerOf(card *models.Card) string { return f.setupFor(card).worker }

// served reports whether any instance of the function has an active process.
func (f *function) served() bool {
	return slices.ContainsFunc(f.instances, func(in *instance) bool { return in.pair.Active() != nil })
}

// localAddr is the address that the function listens on.
func (f *function) localAddr() netip.AddrPort { return f.port.LocalAddr() }

// serving reports whether every instance has a process that serves.
func (f *function) serving() bool {
	for _, in := range f.instances {
		if q := in.pair.Active(); q == nil || q.State != control.Active {
			return false
		}
	}
	return true
}

// failure tells why the last process failed, for an instance without an active process. It is
// "" if none failed.
func (f *function) failure() string {
	if f.held != "" {
		return f.held
	}
	for _, in := range f.instances {
		if in.failures.reason != "" {
			return in.failures.reason
		}
	}
	return ""
}

// processFailures counts the processes that ended unexpectedly.
func (f *function) processFailures() (n uint64) {
	for _, in := range f.instances {
		n += in.failures.count
	}
	return n
}

// processes counts the processes that exist or should exist.
func (f *function) processes() int {
	n := 0
	for _, in := range f.instances {
		n += len(in.pair.Processes())
	}
	return n
}

// maxMinFragment is the max of the min size of a fragment. A camera may send each line of a picture
// in a packet, however short the lines are.
func (f *function) maxMinFragment() int {
	if f.camera == nil {
		return math.MaxInt
	}
	return f.camera.Width * f.camera.PixelBytes
}

// watch looks for refused pictures and hung processes.
func (f *function) watch() {
	if f.camera != nil {
		requests := f.port.Requests()
		f.camera.note(&requests, f.log)
	}
	now := runclock.Now()
	if f.held != "" && f.port.Pending() > 0 {
		f.port.GiveUp()
	}
	for _, in := range f.instances {
		in.watch(now)
	}
}

// status describes the function for users and load generators.
func (f *function) status(stats *datapath.Stats) control.FunctionStatus {
	s := control.FunctionStatus{
		Name: f.name, Address: f.m.network.Address().String(), Port: int(f.localAddr().Port()),
		SLOMillis:       float64(f.slo) / float64(time.Millisecond),
		BatchesInFlight: f.streams, Receivers: stats.Receivers,
		Swaps: f.swaps.Count, SwapIdle: f.swaps.Idle(),
		Accepted: stats.Accepted, Replied: stats.Replied,
		Failed: stats.Results[wire.StatusFailed], Lost: stats.Lost,
		Hangs: f.hangs, HangTimeoutMillis: float64(f.hangTimeout) / float64(time.Millisecond),
		KernelDrops: stats.Source.KernelDrops, SheddingPercent: 100 * stats.Source.Shedding, HeldBytes: stats.Source.HeldBytes, InFlight: stats.InFlight,
		Input: control.InputStatus{
			Height: f.model.desired.Input.Height, Width: f.model.desired.Input.Width, Channels: f.model.desired.Input.Channels,
			Bytes: f.model.desired.Input.WireBytes(), WireType: string(f.model.desired.Input.WireType), WireLayout: string(f.model.desired.Input.WireLayout),
		},
		Model: f.model.desired.Name, Version: f.model.desired.Version,
		Unsaved: f.unsaved(), Worker: f.worker,
	}
	s.Residency = f.instances[0].currentResidency() // a member has one instance
	s.Camera = f.cameraStatus(&stats.Requests)
	if q := f.instances[0].pair.Active(); q != nil {
		s.Model, s.Version = q.Card.Name, q.Card.Version // the one that serves
	}
	for _, in := range f.instances {
		s.Instances = append(s.Instances, in.status())
	}
	f.sharing.Status(&s)
	return s
}
