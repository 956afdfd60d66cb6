package main

import (
	"testing"
	"time"

	"github.com/penstock/penstock/client"
)

func TestCount(t *testing.T) {
	at := time.Now()
	ended := func(status client.Status, after time.Duration, late bool) request {
		return request{intended: at, received: at.Add(after), status: status, late: late}
	}
	got := count([]request{
		ended(client.StatusOK, 20*time.Millisecond, false),
		ended(client.StatusOK, 700*time.Millisecond, true),
		ended(client.StatusLate, time.Second, true),
		ended(client.StatusUnanswered, 2*time.Second, true), // the client gave it up
		ended(client.StatusUnanswered, patience, false),
		ended(client.StatusBusy, time.Millisecond, false),
		ended(client.StatusFailed, time.Millisecond, false),
	})
	want := tally{sent: 7, answered: 2, lost: 1, busy: 1, late: 3, failed: 1, worst: 700 * time.Millisecond}
	if got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestSilence(t *testing.T) {
	from := time.Now()
	own, other := &flow{}, &flow{}
	var ended []request
	for _, r := range []struct {
		flow   *flow
		after  time.Duration
		status client.Status
	}{
		{own, -time.Second, client.StatusOK},
		{own, 1 * time.Second, client.StatusOK},
		{own, 2 * time.Second, client.StatusBusy},
		{other, 3 * time.Second, client.StatusOK},
		{own, 5 * time.Second, client.StatusOK},
	} {
		ended = append(ended, request{flow: r.flow, received: from.Add(r.after), status: r.status})
	}
	if got := silence(ended, own, from, from.Add(8*time.Second)); got != 4*time.Second {
		t.Errorf("silence of %s, want 4s", got)
	}
	if got := silence(ended, other, from, from.Add(8*time.Second)); got != 5*time.Second {
		t.Errorf("silence of %s until the end, want 5s", got)
	}
}
