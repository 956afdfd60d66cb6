package client

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestCredit checks that the last answer sets the credit.
func TestCredit(t *testing.T) {
	c := credit{more: 2}
	for i, want := range []bool{true, true, false} {
		ok, probe := c.allow(0, i)
		if ok != want || probe {
			t.Fatalf("request %d: %v, probe %v", i, ok, probe)
		}
		if ok {
			c.recordSent(probe)
		}
	}
	c.recordAnswer(5, 2)
	if c.more != 3 {
		t.Errorf("5 granted, 2 of them taken by requests under way: %d left", c.more)
	}
	c.recordAnswer(1, 2)
	if c.more != 0 {
		t.Errorf("more under way than granted: %d left", c.more)
	}
	c.recordUnanswered()
	if c.more != 1 {
		t.Errorf("a request that ended unanswered gives its room back: %d left", c.more)
	}
}

func TestProbePauses(t *testing.T) {
	var c credit
	now, pause := int64(1000), minPause
	for range 12 {
		c.recordAnswer(0, 0)
		if ok, _ := c.allow(now, 1); ok {
			t.Fatal("sent without credit while an answer is to come")
		}
		if ok, _ := c.allow(now, 0); ok {
			t.Fatal("probed without a pause")
		}
		now += int64(pause)
		if ok, _ := c.allow(now-1, 0); ok {
			t.Fatalf("probed before %v were over", pause)
		}
		ok, probe := c.allow(now, 0)
		if !ok || !probe {
			t.Fatalf("no probe after %v", pause)
		}
		c.recordSent(probe)
		if c.more != 0 {
			t.Fatalf("a probe took credit: %d", c.more)
		}
		pause = min(2*pause, maxPause)
	}
	c.recordAnswer(1, 0)
	c.recordSent(false)
	c.recordAnswer(0, 0)
	if c.allow(now, 0); c.probeAt != now+int64(minPause) {
		t.Errorf("after credit was given the first pause is %v", time.Duration(c.probeAt-now))
	}
}

// A manager with room for a number of requests answers them in batches. Each answer reports
// the current room. Requests and answers have a delay, which the client knows. The client
// must never exceed the room, and never stop.
func TestCreditProperties(t *testing.T) {
	type answer struct {
		at      int64
		granted int
	}
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(1, 20).Draw(t, "room")
		oneWay := rapid.Int64Range(1, 30).Draw(t, "oneWay")
		total := rapid.IntRange(1, 200).Draw(t, "requests")
		batch := rapid.SliceOfN(rapid.IntRange(1, 8), 1, 8).Draw(t, "batches")
		every := rapid.Int64Range(1, 40).Draw(t, "every")

		c := credit{more: rapid.IntRange(1, room).Draw(t, "initial"), roundTrip: 2 * oneWay}
		var sentAt []int64 // of requests in flight, as the client sees it
		var arriving []int64
		var answers []answer
		held, sent, done := 0, 0, 0
		for now := int64(0); done < total; now++ {
			if now > int64(total)*(every+4*oneWay+2)+1000 {
				t.Fatalf("stands still with %d of %d answered, credit %+v", done, total, c)
			}
			for len(answers) > 0 && answers[0].at == now {
				// The credit does not depend on which request is answered. A FIFO manager
				// answers the oldest.
				sentAt = sentAt[1:]
				unseen := 0
				for _, at := range sentAt {
					if at > now-c.roundTrip {
						unseen++
					}
				}
				c.recordAnswer(answers[0].granted, unseen)
				answers = answers[1:]
				done++
			}
			for ok, _ := c.allow(now, len(sentAt)); ok && sent < total; ok, _ = c.allow(now, len(sentAt)) {
				c.recordSent(false)
				sent++
				sentAt = append(sentAt, now)
				arriving = append(arriving, now+oneWay)
			}
			for len(arriving) > 0 && arriving[0] == now {
				arriving = arriving[1:]
				if held++; held > room {
					t.Fatalf("%d requests at a manager with room for %d", held, room)
				}
			}
			if now%every == 0 {
				for range min(held, batch[int(now/every)%len(batch)]) {
					held--
					answers = append(answers, answer{now + oneWay, room - held})
				}
			}
		}
	})
}
