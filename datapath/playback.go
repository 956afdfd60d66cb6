package datapath

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/replay"
)

// playback is a source that plays a capture to a port. Unlike a capture, it receives at the pace
// of the port, and it does not end before it is closed:
//
//   - It begins when a process serves.
//   - A capture that is played at full speed keeps half of the slots for requests with
//     interleaved fragments. So no request is rejected that would have found room a moment later.
//   - After the capture has ended, Receive returns now and then without a datagram, so that the
//     receive thread checks the deadlines of requests that have begun.
type playback struct {
	capture
	file    string
	speed   float64 // 0: full speed
	log     zerolog.Logger
	port    load
	room    int // the max number of requests in flight at full speed
	playing bool
	ended   atomic.Bool
	closed  atomic.Bool
}

// capture is a replay.Source, or a test's fake.
type capture interface {
	ingest.Source
	Skipped() replay.Skipped
}

// load is what a playback asks of its port.
type load interface {
	serving() bool
	InFlight() int
}

const (
	beforePlay = 10 * time.Millisecond
	afterPlay  = 10 * time.Millisecond
	noPlayRoom = time.Millisecond
)

// feed sets the port that the capture is played to. room is the max number of its requests in
// flight.
func (p *playback) feed(port load, room int, log zerolog.Logger) {
	p.port, p.room, p.log = port, room, log
}

// Receive returns the datagrams that are due; see ingest.Source.
func (p *playback) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	if !p.await() {
		return 0, ingest.ErrClosed
	}
	if p.ended.Load() {
		time.Sleep(afterPlay)
		return 0, nil
	}
	if p.speed == 0 {
		room := p.room - p.port.InFlight()
		if room <= 0 {
			time.Sleep(noPlayRoom)
			return 0, nil
		}
		batch = batch[:min(room, len(batch))]
	}
	n, err := p.capture.Receive(batch, deadline)
	if err == nil || errors.Is(err, ingest.ErrClosed) {
		return n, err
	}
	p.end(err)
	return 0, nil
}

// await waits until a process serves. It returns false if the playback was closed before.
func (p *playback) await() bool {
	for !p.playing {
		if p.closed.Load() {
			return false
		}
		if p.port.serving() {
			p.playing = true
			p.log.Info().Str("file", p.file).Float64("speed", p.speed).Msg("playing capture")
			break
		}
		time.Sleep(beforePlay)
	}
	return true
}

// end records the end of the capture: io.EOF, or the error that stopped the replay.
func (p *playback) end(cause error) {
	p.ended.Store(true)
	e := p.log.Info()
	if !errors.Is(cause, io.EOF) {
		e = p.log.Error().Err(cause)
	}
	s := p.Skipped()
	e.Str("file", p.file).Uint64("datagrams", p.Stats().Datagrams).
		Dict("skipped_frames", zerolog.Dict().Uint64("foreign", s.Foreign).Uint64("fragments", s.Fragments).
			Uint64("cut", s.Cut).Uint64("malformed", s.Malformed)).
		Msg("capture played to its end")
}

// Close stops the playback; see ingest.Source.
func (p *playback) Close() error {
	p.closed.Store(true)
	return p.capture.Close()
}
