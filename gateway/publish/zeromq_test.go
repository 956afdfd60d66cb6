package publish

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/internal/testing/zmtptest"
)

// startZeroMQ starts a Set with a socket, and returns its address.
func startZeroMQ(t *testing.T, timeout time.Duration) (*running, net.Addr) {
	t.Helper()
	runclock.Now() // starts the clock's goroutine
	openfiles.CheckLeaks(t)
	dir, err := os.MkdirTemp("", "ps") // short enough for a socket
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "answers.sock")
	s := newSet(configs.Publish{Name: "lab", Kind: configs.PublishZeroMQ, Address: "ipc://" + path, Timeout: timeout})
	s.start(t)
	wait.For(t, "the socket to listen", func() bool { return s.Status()[0].State == Running })
	return s, &net.UnixAddr{Net: "unix", Name: path}
}

// waitTopics waits until the subscribers have so many topics together.
func waitTopics(t *testing.T, s *running, want int) {
	t.Helper()
	z := s.receivers[0].sink.(*zeromq)
	wait.For(t, fmt.Sprint(want, " topics"), func() bool {
		z.mu.Lock()
		defer z.mu.Unlock()
		n := 0
		for one := range z.subscriptions {
			n += len(one.topics)
		}
		return n == want
	})
}

// subscribe connects a subscriber that does not read.
func subscribe(t *testing.T, address net.Addr, topics ...string) net.Conn {
	t.Helper()
	peer := zmtptest.Hostile{}
	for _, topic := range topics {
		peer.Bytes = append(peer.Bytes, zmtptest.Frame(0, "\x01"+topic)...)
	}
	return peer.Send(t, address, zmq4.Sub)
}

func TestZeroMQSubscribers(t *testing.T) {
	s, address := startZeroMQ(t, 5*time.Second)
	endpoint := "ipc://" + address.String()
	all := zmtptest.StartLibzmq(t, "connect", endpoint, "SUB", "subscribe", "heartbeat")
	yard := zmtptest.StartLibzmq(t, "connect", endpoint, "XSUB")
	yard.Send(t, "\x01yard/")
	waitTopics(t, s, 2)

	door := found("door", 1, 7)
	door.payload = []byte("wire")
	s.Publish(door)
	s.Publish(found("yard", 2))
	for _, want := range []struct {
		from  *zmtptest.Libzmq
		topic string
		frame uint64
		rest  string
	}{{all, "door/face ", 1, " wire"}, {all, "yard/face ", 2, " "}, {yard, "yard/face ", 2, " "}} {
		got := want.from.Receive(t)
		var a Answer
		text, ok := strings.CutPrefix(got, want.topic)
		text, ends := strings.CutSuffix(text, want.rest)
		if err := json.Unmarshal([]byte(text), &a); !ok || !ends || err != nil || a.Frame != want.frame {
			t.Errorf("received %q, want frame %d at topic %s, and %q", got, want.frame, want.topic, want.rest)
		}
	}
	wait.For(t, "both are counted", func() bool { return s.Status()[0].Sent == 2 })
	if got := s.Status()[0]; got.Dropped != 0 {
		t.Errorf("status is %+v, want none dropped", got)
	}
}

func TestZeroMQSlow(t *testing.T) {
	s, address := startZeroMQ(t, 200*time.Millisecond)
	slow := subscribe(t, address, "")
	waitTopics(t, s, 1)
	large := found("door", 1)
	large.payload = make([]byte, 1<<20)
	for i := range 3 * maxWaitingBytes >> 20 {
		s.Publish(large)
		wait.For(t, "the socket to take an answer", func() bool { return s.Status()[0].Sent == uint64(i+1) })
	}
	if dropped := s.Status()[0].Dropped; dropped == 0 {
		t.Error("no answer to a subscriber that does not read was dropped, or none was counted")
	}
	waitTopics(t, s, 0) // it does not read within the timeout
	slow.Close()

	subscribe(t, address, "door/") // and then
	waitTopics(t, s, 1)
}

func TestZeroMQHostile(t *testing.T) {
	peers := append(zmtptest.HostilePeers(zmtp.Limits{Bytes: 1 + maxTopic, Parts: 1}), zmtptest.Hostile{Name: "many topics", Want: errTopics.Error()})
	for i := range maxTopics + 1 {
		last := &peers[len(peers)-1]
		last.Bytes = append(last.Bytes, zmtptest.Frame(0, fmt.Sprint("\x01", i))...)
	}
	s, address := startZeroMQ(t, 5*time.Second)
	good := subscribe(t, address, "door/", "door/", "yard/")
	for _, peer := range peers {
		t.Run(peer.Name, func(t *testing.T) {
			zmtptest.WaitEnd(t, peer.Send(t, address, zmq4.Sub))
			wait.For(t, "the log to say "+peer.Want, func() bool { return strings.Contains(s.log.String(), peer.Want) })
		})
	}
	waitTopics(t, s, 2)
	s.Publish(found("door", 9))
	must.Get(good.Read(make([]byte, 1)))(t)
}

func TestZeroMQAddress(t *testing.T) {
	t.Run("a killed process", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
		must.OK(t, err)
		l.SetUnlinkOnClose(false)
		l.Close()
		again, err := zmtp.Listen("ipc://" + path)
		must.OK(t, err)
		if info := must.Get(os.Stat(path))(t); info.Mode().Perm() != 0o660 {
			t.Errorf("mode of the socket is %v, want 0660", info.Mode())
		}
		if _, err := zmtp.Listen("ipc://" + path); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second process listens: %v", err)
		}
		again.Close()
	})
	t.Run("another file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "precious")
		must.OK(t, os.WriteFile(path, []byte("x"), 0o600))
		if _, err := zmtp.Listen("ipc://" + path); err == nil {
			t.Error("listens in place of a file")
		}
		must.Get(os.Stat(path))(t)
	})
}
