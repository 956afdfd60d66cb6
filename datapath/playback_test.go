package datapath

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/replay"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/shm"
)

// fakeCapture is a capture of left datagrams, which ends with an error.
type fakeCapture struct {
	ingest.Source
	left   int
	end    error
	asked  []int // the batch sizes
	closed bool
}

func (c *fakeCapture) Receive(batch []ingest.Datagram, _ int64) (int, error) {
	if c.closed {
		return 0, ingest.ErrClosed
	}
	c.asked = append(c.asked, len(batch))
	if c.left == 0 {
		return 0, c.end
	}
	n := min(c.left, len(batch))
	c.left -= n
	return n, nil
}

func (c *fakeCapture) Stats() ingest.Stats     { return ingest.Stats{Datagrams: 7} }
func (c *fakeCapture) Skipped() replay.Skipped { return replay.Skipped{Foreign: 3} }
func (c *fakeCapture) Close() error {
	c.closed = true
	return nil
}

// fakeLoad is a port with that many requests in flight.
type fakeLoad struct {
	serves   atomic.Bool
	inFlight int
}

func (l *fakeLoad) serving() bool { return l.serves.Load() }
func (l *fakeLoad) InFlight() int { return l.inFlight }

func TestPlayback(t *testing.T) {
	const room = 32
	batch := make([]ingest.Datagram, burst)

	for _, row := range []struct {
		name     string
		speed    float64
		inFlight int
		n, asked int
	}{
		{"full speed", 0, 0, room, room},
		{"full speed, some in flight", 0, 30, 2, 2},
		{"full speed, no room", 0, 32, 0, 0},
		{"full speed, more than room", 0, 40, 0, 0},
		{"recorded speed", 1, 40, burst, burst},
	} {
		t.Run(row.name, func(t *testing.T) {
			capture, load := &fakeCapture{left: 1000}, &fakeLoad{inFlight: row.inFlight}
			load.serves.Store(true)
			p := &playback{capture: capture, speed: row.speed}
			p.feed(load, room, zerolog.Nop())
			n, err := p.Receive(batch, 0)
			if n != row.n || err != nil {
				t.Errorf("received %d, %v; want %d", n, err, row.n)
			}
			if asked := append(capture.asked, 0)[0]; asked != row.asked {
				t.Errorf("asked for %d datagrams, want %d", asked, row.asked)
			}
		})
	}
}

func TestPlaybackBegin(t *testing.T) {
	for name, open := range map[string]bool{"served": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			capture, load := &fakeCapture{left: 1}, &fakeLoad{}
			p := &playback{capture: capture, speed: 1}
			p.feed(load, 1, zerolog.Nop())
			received := make(chan error)
			go func() {
				_, err := p.Receive(make([]ingest.Datagram, 1), 0)
				received <- err
			}()
			select {
			case err := <-received:
				t.Fatalf("received before a process serves: %v", err)
			case <-time.After(2 * beforePlay):
			}

			want := error(nil)
			if open {
				load.serves.Store(true)
			} else {
				want = ingest.ErrClosed
				p.Close()
			}
			select {
			case err := <-received:
				if !errors.Is(err, want) {
					t.Errorf("error %v, want %v", err, want)
				}
			case <-time.After(datapathtest.Patience):
				t.Fatal("Receive blocks")
			}
		})
	}
}

func TestPlaybackEnd(t *testing.T) {
	for _, row := range []struct {
		name  string
		end   error
		level string
	}{
		{"end of file", io.EOF, "info"},
		{"bad file", errors.New("frame 3 is cut"), "error"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var log bytes.Buffer
			load := &fakeLoad{}
			load.serves.Store(true)
			p := &playback{capture: &fakeCapture{end: row.end}, file: "a.pcap", speed: 1}
			p.feed(load, 1, zerolog.New(&log))
			for range 3 { // the receive thread goes on
				if n, err := p.Receive(make([]ingest.Datagram, 1), shm.Now()); n != 0 || err != nil {
					t.Errorf("received %d, %v; want none", n, err)
				}
			}
			if !p.ended.Load() {
				t.Error("the playback has not ended")
			}
			want := `"file":"a.pcap","datagrams":7,"skipped_frames":{"foreign":3,`
			if got := log.String(); strings.Count(got, "capture played to its end") != 1 || !strings.Contains(got, want) || !strings.Contains(got, `"level":"`+row.level+`"`) {
				t.Errorf("logged %s, want %s once, level %s", got, want, row.level)
			}
			p.Close()
		})
	}
}
