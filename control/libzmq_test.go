package control

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/zmtptest"
)

// startLibzmq starts a peer at the link's socket of a runtime folder.
func startLibzmq(t *testing.T, verb, dir string, arguments ...string) *zmtptest.Libzmq {
	t.Helper()
	return zmtptest.StartLibzmq(t, append([]string{verb, "ipc://" + filepath.Join(dir, linkSocketName)}, arguments...)...)
}

// sendState makes a peer send a state from now on.
func sendState(t *testing.T, p *zmtptest.Libzmq, state any) {
	t.Helper()
	text, err := json.Marshal(state)
	must.OK(t, err)
	p.Send(t, string(text))
}

// manyObserved is a state of almost maxMessageBytes.
func manyObserved(t *testing.T, ack uint64) Observed {
	t.Helper()
	s := observed(ack)
	s.Version = Version
	for n := 1; ; n++ {
		text, err := json.Marshal(s)
		must.OK(t, err)
		if len(text) > maxMessageBytes-1<<10 {
			return s
		}
		for range max(1, (maxMessageBytes-len(text))>>10) {
			p := s.Processes[0]
			p.IF, p.Generation = fmt.Sprintf("f%d-%d", n, len(s.Processes)), uint32(len(s.Processes)+1)
			s.Processes = append(s.Processes, p)
		}
	}
}

// TestLibzmqOrchestrator has libzmq's PAIR as the orchestrator's end.
func TestLibzmqOrchestrator(t *testing.T) {
	invariants(t)
	dir := socketDir(t)
	m := listen(t, dir, zerolog.Nop())
	publish(t, m, desired("m", 1))
	peer := startLibzmq(t, "connect", dir, "PAIR", "heartbeat")

	s := observed(7)
	s.Version = Version
	sendState(t, peer, s)
	if got := waitState(t, m.Observed(), func(Observed) bool { return true }); !reflect.DeepEqual(got, s) {
		t.Errorf("received %+v, want %+v", got, s)
	}
	got, err := decodeDesired([]byte(peer.Receive(t)))
	want := desired("m", 1)
	if want.Version = Version; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("libzmq received %+v, %v; want %+v", got, err, want)
	}

	large := manyObserved(t, 8)
	sendState(t, peer, large)
	if got := waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 8 }); !reflect.DeepEqual(got, large) {
		t.Error("a long message changed on its way")
	}
	if !m.PeerAlive() {
		t.Error("the peer is not alive")
	}
	publish(t, m, desired("m", 2))
	eventually(t, "libzmq receives the next state", func() bool { return strings.Contains(peer.Receive(t), `"seq":2`) })
}

// TestLibzmqManager has libzmq's PAIR as the manager's end. It is replaced, as if the manager restarted.
func TestLibzmqManager(t *testing.T) {
	dir := socketDir(t)
	o := dial(t, dir, zerolog.Nop())
	publish(t, o, observed(3))
	for seq := uint64(1); seq <= 2; seq++ {
		t.Run(fmt.Sprint("manager ", seq), func(t *testing.T) {
			peer := startLibzmq(t, "bind", dir, "PAIR")
			s := desired(fmt.Sprint("m", seq), seq)
			s.Version = Version
			sendState(t, peer, s)
			if got := waitState(t, o.Desired(), func(d Desired) bool { return d.Seq == seq }); !reflect.DeepEqual(got, s) {
				t.Errorf("received %+v, want %+v", got, s)
			}
			got, err := decodeObserved([]byte(peer.Receive(t)))
			if err != nil || got.AckSeq != 3 {
				t.Errorf("libzmq received %+v, %v", got, err)
			}
		})
	}
}

// TestLibzmqRefused has peers of libzmq that are no end of the link. The next honest one connects.
func TestLibzmqRefused(t *testing.T) {
	good, err := json.Marshal(func() Observed { s := observed(1); s.Version = Version; return s }())
	must.OK(t, err)
	for name, c := range map[string]struct {
		arguments []string
		send      string
		want      string // in the log
	}{
		"SUB":             {[]string{"SUB", "subscribe"}, "", "not compatible with"},
		"XSUB":            {[]string{"XSUB"}, "\x01", "not compatible with"},
		"PUB":             {[]string{"PUB"}, string(good), "not compatible with"},
		"REQ":             {[]string{"REQ"}, string(good), "not compatible with"},
		"DEALER":          {[]string{"DEALER"}, string(good), "not compatible with"},
		"ROUTER":          {[]string{"ROUTER"}, "", "not compatible with"},
		"PUSH":            {[]string{"PUSH"}, string(good), "not compatible with"},
		"PLAIN":           {[]string{"PAIR", "plain"}, string(good), "handshake"},
		"CURVE":           {[]string{"PAIR", "curve"}, string(good), "handshake"},
		"several parts":   {[]string{"PAIR"}, "a\tb", "a message of several parts"},
		"no JSON":         {[]string{"PAIR"}, "hello", "bad message"},
		"another version": {[]string{"PAIR"}, fmt.Sprintf(`{"version":%d}`, Version+1), fmt.Sprintf("control version %d", Version+1)},
		"too long":        {[]string{"PAIR"}, strings.Repeat("x", maxMessageBytes+1), "message too long"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := socketDir(t)
			var log logged
			m := listen(t, dir, log.logger())
			publish(t, m, desired("m", 1))
			bad := startLibzmq(t, "connect", dir, c.arguments...)
			if c.send != "" {
				bad.Send(t, c.send)
			}
			eventually(t, "the log says "+c.want, func() bool { return log.Count(c.want) > 0 })
			o := dial(t, dir, zerolog.Nop())
			publish(t, o, observed(5))
			waitState(t, m.Observed(), func(s Observed) bool { return s.AckSeq == 5 })
		})
	}
}
