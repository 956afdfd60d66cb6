package fleet

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// function is one inference function: a model behind a UDP port. The control loop owns it.
type function struct {
	fleet  *Fleet
	name   string
	log    zerolog.Logger
	config configs.Function
	model  modelHistory
	setup  // the current one
	// byHand is the percent per instance that was set by hand, if shares are not tuned; else 0. shareEdits
	// counts edits of share_percent.
	byHand     float64
	shareEdits int
	port       *datapath.Port     // nil until it is open
	camera     *camera            // nil for Penstock's protocol
	following  sync.WaitGroup     // of the file of keys
	unfollow   context.CancelFunc // nil: there is none
	instances  instances
	fixed      bool               // an order has placed its instances
	costs      map[string]float64 // device time per request, by device, as package placement wants it
	peers      control.PeersOrder // the last one

	removing bool
	leaves   bool       // its share goes to the others: it is removed from a node that goes on
	removeBy time.Time  // when the manager stops waiting for answers
	gone     chan error // closed when the function is removed: its name and its port are free
	held     string     // why the function is held back; "" if it is not
	refuses  bool       // the port refuses requests, because no process may serve
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

// logWarnings logs the warnings of a card that a function gets.
func logWarnings(card *models.Card, log zerolog.Logger) {
	for _, w := range card.Warnings {
		log.Warn().Str("warning", w).Msg("card may be wrong")
	}
}

// minFragmentBytes is the min size of a fragment that is not the last of its request (docs/wire.md). It
// bounds the descriptors that a request needs.
const minFragmentBytes = 512

// newFunction opens the port and allocates the memory of a function with one instance. It starts no thread of the data path.
func newFunction(fl *Fleet, c configs.Function, card *models.Card, on *device) (_ *function, err error) {
	f := &function{
		fleet: fl, name: c.Name, config: c,
		log:   fl.log.With().Str("if", c.Name).Logger(),
		gone:  make(chan error),
		costs: map[string]float64{},
		setup: setupUnder(&fl.cfg, c, card),
	}
	f.model = modelHistory{desired: card, setups: map[*models.Card]setup{card: f.setup}}
	logWarnings(card, f.log)
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	sizes := card.Sizes()
	reader := readerOf(&c, &card.Input)
	if reader != nil {
		f.camera = &camera{Reader: reader}
	}
	keys, err := readKeys(c.Key)
	if err != nil {
		return nil, err
	}
	sources, err := fl.network.Open(c.Port, fl.cfg.ReceiversOf(c), c.Format == "")
	if err != nil {
		return nil, fmt.Errorf("open port of %s: %w", c.Name, err)
	}
	f.port, err = datapath.NewPort(sources, datapath.Options{
		Name:             c.Name,
		Queues:           1,
		RequestBytes:     card.Input.WireBytes(),
		Takes:            func(bytes int) bool { _, ok := sizes.OfBytes(bytes); return ok },
		LargestPicture:   f.setup.largest,
		ResultBytes:      card.ResultBytes(),
		MinFragmentBytes: min(minFragmentBytes, card.Input.WireBytes(), f.camera.maxMinFragment()),
		Camera:           reader,
		AnswersTo:        answersTo(&c),
		Allowed:          c.Allowed,
		Streams:          len(card.State) > 0,
		Keys:             keys,
		Slots:            fl.cfg.Aggregate.Slots,
		Objective:        f.slo,
		Gather:           gatherTimeout(&fl.cfg, f.slo),
		Transit:          fl.cfg.Transit,
		Trusted:          fl.cfg.Trusted,
		Version:          card.Version,
		Log:              f.log,
	})
	if err != nil {
		return nil, err
	}
	if err := f.grow(on); err != nil {
		return nil, err
	}
	f.port.SetPictures(c.Pictures.Interval())
	if c.Key != "" {
		following, unfollow := context.WithCancel(context.Background())
		f.unfollow = unfollow
		f.following.Go(func() { followKeys(following, c.Key, f.port.SetKeys, f.log) })
	}
	return f, nil
}

func (f *function) setPeers(o control.PeersOrder) {
	f.peers = o
	f.port.SetPeers(o.Peers, o.Self, o.Rate, o.Drain)
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

// largestPicture is the max size of a picture that says its format and shape; 0: there are none.
func largestPicture(c *configs.Function, card *models.Card) int {
	if r := readerOf(c, &card.Input); r != nil {
		return r.Largest
	}
	bytes := c.MaxPicture.Bytes()
	if len(card.Input.Widths) > 0 && card.Input.Picture().Format != 0 {
		bytes = max(bytes, card.Input.WireBytes())
	}
	return bytes
}

// maxRequestBytes is what the max number of fragments of the usual size holds.
const maxRequestBytes = wire.MaxFragments * wire.DefaultFragmentBytes

// checkMaxPicture returns an error if clients cannot send a model pictures of other formats and sizes.
func checkMaxPicture(c *configs.Function, card *models.Card) error {
	width, height := c.MaxPicture.Size()
	switch size := c.MaxPicture.Bytes(); {
	case size == 0:
		return nil
	case !card.Input.IsPicture():
		return fmt.Errorf("is %s, and model %s takes %d channels of %s; want a model that takes pictures (u8, 1 or 3 channels), or leave the key out", c.MaxPicture, card.Name, card.Input.Channels, card.Input.WireType)
	case max(width, height) > math.MaxUint16:
		return fmt.Errorf("is %s; want at most %d pixels on each side", c.MaxPicture, math.MaxUint16)
	case size > maxRequestBytes:
		return fmt.Errorf("is %s, or %d bytes; want at most %d", c.MaxPicture, size, maxRequestBytes)
	}
	return nil
}

// watch looks for refused pictures and hung processes.
func (f *function) watch() {
	if f.camera != nil {
		requests := f.port.Requests()
		f.camera.note(&requests, f.log)
	}
	now := runclock.Now()
	if f.refuses && f.port.Pending() > 0 {
		f.port.GiveUp()
	}
	for _, in := range f.instances {
		in.watch(now)
	}
}

func inputStatus(card *models.Card, largest int) control.InputStatus {
	in := &card.Input
	s := control.InputStatus{Bytes: in.WireBytes(), LargestPicture: largest}
	if len(card.Inputs) > 0 {
		for _, t := range card.Inputs {
			s.Tensors = append(s.Tensors, control.TensorStatus{Name: t.Name, Type: string(t.Type), Shape: t.Shape})
		}
		return s
	}
	s.Height, s.Width, s.Channels, s.WireType, s.WireLayout = in.Height, in.Width, in.Channels, string(in.WireType), string(in.WireLayout)
	s.Fit, s.Pad, s.Antialias = in.Fit, in.Pad, in.Antialias
	return s
}

// status describes the function for users and load generators.
func (f *function) status(stats *datapath.Stats) control.FunctionStatus {
	s := control.FunctionStatus{
		Name: f.name, Address: f.fleet.network.Address().String(), Port: int(f.port.LocalAddr().Port()),
		SLOMillis:       float64(f.slo) / float64(time.Millisecond),
		BatchesInFlight: f.streams, Receivers: stats.Receivers,
		Swaps: f.swaps.Count, SwapIdle: f.swaps.Idle(),
		Offered: stats.Requests.Offered(), Accepted: stats.Accepted, Replied: stats.Replied,
		Failed: stats.Results[wire.StatusFailed], Lost: stats.Lost,
		Hangs: f.hangs, HangTimeoutMillis: float64(f.hangTimeout) / float64(time.Millisecond),
		KernelDrops: stats.Source.KernelDrops, SheddingPercent: 100 * stats.Source.Shedding, HeldBytes: stats.Source.HeldBytes, InFlight: stats.InFlight,
		Input: inputStatus(f.model.desired, f.setup.largest),
		Model: f.model.desired.Name, Version: f.model.desired.Version, KeyFile: f.config.Key,
		Unsaved: f.fleet.file.unsaved(f.config, f.byHand), Worker: f.worker,
	}
	s.Residency = residencyStatus(f.instances[0].residency()) // a member has one instance
	s.Camera = f.camera.status(&f.config, &stats.Requests, f.log)
	if q := f.instances[0].pair.Active(); q != nil {
		s.Model, s.Version = q.Card.Name, q.Card.Version // the one that serves
	}
	for _, in := range f.instances {
		s.Instances = append(s.Instances, in.status())
	}
	for _, d := range f.fleet.devices {
		d.Status(&s)
	}
	return s
}
