package datapath

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/datapath/udp"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// Real clients, each with more credit than a socket's buffer holds, send until many requests
// have been shed. Every request must get an answer: ok, busy, or incomplete. A request is
// incomplete if it lost fragments in a full buffer before shedding began.
func TestOverrun(t *testing.T) {
	const clients, shed = 2, 50
	// A busy machine may also answer late: the objective is 100 ms.
	tolerated := map[client.Status]bool{client.StatusBusy: true, client.StatusIncomplete: true, client.StatusLate: true}
	p := overrunNode(t, 4*time.Microsecond, 100*time.Millisecond, 512, 1<<20)
	deadline := time.Now().Add(datapathtest.Patience)
	var mu sync.Mutex
	ends := map[client.Status]int{}
	total, left, ended := 0, 0, make(chan struct{}, 1<<16)
	var all []*client.Client
	for range clients {
		c, err := client.Dial(context.Background(), p.LocalAddr().String(), client.Options{
			Timeout: datapathtest.Patience,
			Deliver: func(r *client.Result) {
				if r.Err != nil {
					t.Errorf("request %d: %v", r.ID, r.Err)
				}
				mu.Lock()
				ends[r.Status]++
				mu.Unlock()
				ended <- struct{}{}
			},
		})
		must.OK(t, err)
		defer c.Close()
		all = append(all, c)
	}
	picture := make([]byte, overrunPicture)
	for p.Requests().Shed < shed {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests were shed of %d, want %d", p.Requests().Shed, total, shed)
		}
		for ; left < clients*512; left++ {
			must.Get(all[total%clients].Send(picture, client.RequestOptions{Deadline: datapathtest.Patience}))(t)
			total++
		}
		<-ended
		left--
	}
	for ; left > 0; left-- {
		<-ended // with an error after the client's timeout at the latest
	}
	mu.Lock()
	ok, busy, other := ends[client.StatusOK], ends[client.StatusBusy], total-ends[client.StatusOK]
	for status := range tolerated {
		other -= ends[status]
	}
	if ok == 0 || busy < shed || other != 0 {
		t.Errorf("requests ended %v, want ok, at least %d busy, perhaps incomplete or late", ends, shed)
	}
	mu.Unlock()
	// The clients have their credit back, and the node its slots.
	wait.For(t, "the shedding to end, without requests", func() bool { return p.sources.stats().Shedding == 0 })
	for _, c := range all {
		for answered := 0; answered < 10; {
			r, err := c.Do(context.Background(), picture, client.RequestOptions{Deadline: datapathtest.Patience})
			var status client.StatusError
			switch {
			case errors.As(err, &status) && tolerated[client.Status(status)] && time.Now().Before(deadline):
				// For a second after an overrun, a receiver without CPU time sheds again.
			case err != nil:
				t.Fatal(err)
			case r.Credit < 190:
				t.Fatalf("credit %d after the overrun, want a fair part of 512", r.Credit)
			default:
				answered++
			}
		}
	}
	if n := p.InFlight(); n != 0 {
		t.Errorf("%d requests are in flight, want none", n)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

func TestLogOverrun(t *testing.T) {
	var out bytes.Buffer
	logOverrun(zerolog.New(&out), 7001, udp.Overrun{Receiver: 2, Err: errors.New("attach filter: operation not permitted")})
	for _, want := range []string{`"level":"warn"`, `"port":7001`, `"receiver":2`, "operation not permitted", "cannot shed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("logged %s, want it to say %s", out.String(), want)
		}
	}
}
