package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// mosquitto is a broker of a test.
type mosquitto struct {
	program, config, address string
	process                  *exec.Cmd
}

// newMosquitto starts Debian's broker with the user "me" on a free port.
func newMosquitto(t *testing.T) *mosquitto {
	t.Helper()
	find := func(name string) string {
		for _, candidate := range []string{name, "/usr/sbin/" + name} {
			if path, err := exec.LookPath(candidate); err == nil {
				return path
			}
		}
		return ""
	}
	m := &mosquitto{program: find("mosquitto")}
	if m.program == "" {
		t.Skip("mosquitto is not installed: apt-get install mosquitto")
	}

	dir := t.TempDir()
	passwords := filepath.Join(dir, "passwords")
	if out, err := exec.Command(cmp.Or(find("mosquitto_passwd"), "mosquitto_passwd"), "-b", "-c", passwords, "me", "pass-word").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at, err := freeport.Find()
	must.OK(t, err)
	m.address = at.String()
	m.config = filepath.Join(dir, "mosquitto.conf")
	text := fmt.Sprintf("listener %d 127.0.0.1\nallow_anonymous false\npassword_file %s\npersistence false\nlog_dest stderr\n", at.Port(), passwords)
	if current, err := exec.Command("id", "-un").Output(); err == nil {
		text += "user " + string(current) // else it becomes mosquitto, which cannot read the passwords
	}
	must.OK(t, os.WriteFile(m.config, []byte(text), 0o600))
	m.start(t)
	t.Cleanup(m.kill)
	return m
}

func (m *mosquitto) start(t *testing.T) {
	t.Helper()
	m.process = exec.Command(m.program, "-c", m.config)
	must.OK(t, m.process.Start())
	wait.For(t, "mosquitto to listen", func() bool {
		c, err := net.Dial("tcp", m.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (m *mosquitto) kill() {
	_ = m.process.Process.Kill() // it may have ended
	_ = m.process.Wait()
}

// subscriber collects the messages of a broker.
type subscriber struct {
	mu       sync.Mutex
	messages map[string]*paho.Publish // the last one of each topic
}

func (m *mosquitto) subscribe(t *testing.T) *subscriber {
	t.Helper()
	s := &subscriber{messages: map[string]*paho.Publish{}}
	conn, err := net.Dial("tcp", m.address)
	must.OK(t, err)
	client := paho.NewClient(paho.ClientConfig{Conn: conn, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(r paho.PublishReceived) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.messages[r.Packet.Topic] = r.Packet
			return true, nil
		},
	}})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	must.Get(client.Connect(ctx, &paho.Connect{ClientID: "test", CleanStart: true, UsernameFlag: true, Username: "me", PasswordFlag: true, Password: []byte("pass-word")}))(t)
	t.Cleanup(func() { _ = client.Disconnect(&paho.Disconnect{}) })
	must.Get(client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "#", QoS: 1}}}))(t)
	return s
}

// last returns the last message of a topic, or "".
func (s *subscriber) last(topic string) (payload string, retained bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.messages[topic]; p != nil {
		return string(p.Payload), p.Retain
	}
	return "", false
}

// A real broker passes on the states. It keeps the entities and the availability for subscribers that
// come later, and publishes offline when the gateway ends.
func TestMosquitto(t *testing.T) {
	broker := newMosquitto(t)
	const status, state = "penstock/hall/status", "penstock/hall/door/face"
	const discovery = "homeassistant/binary_sensor/penstock-hall-door/face-found/config"

	set := newSet(mqttSpec(broker.address))
	set.start(t)
	early := broker.subscribe(t)
	wait.For(t, "online", func() bool { text, _ := early.last(status); return text == online })
	set.Publish(found("door", 1, 4))
	wait.For(t, "the state", func() bool { text, _ := early.last(state); return strings.Contains(text, `"class4"`) })

	late := broker.subscribe(t)
	wait.For(t, "the retained messages", func() bool {
		text, retained := late.last(status)
		entity, entityRetained := late.last(discovery)
		return text == online && retained && entityRetained && json.Valid([]byte(entity))
	})
	if text, _ := late.last(state); text != "" {
		t.Errorf("the state is retained: %s", text)
	}

	set.stop()
	wait.For(t, "offline", func() bool { text, _ := late.last(status); return text == offline })
	if s := set.Status()[0]; s.Sent != 1 || s.Dropped != 0 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
}

// The gateway dies without a word: the broker publishes the last will.
func TestMosquittoLastWill(t *testing.T) {
	broker := newMosquitto(t)
	spec := mqttSpec(broker.address)
	set := newSet(spec)
	sink := set.receivers[0].sink.(*mqtt)
	must.OK(t, sink.open(t.Context()))
	subscriber := broker.subscribe(t)
	wait.For(t, "online", func() bool { text, _ := subscriber.last("penstock/hall/status"); return text == online })
	sink.client.TerminateConnectionForTest()
	wait.For(t, "offline", func() bool { text, _ := subscriber.last("penstock/hall/status"); return text == offline })
}

func TestMosquittoPassword(t *testing.T) {
	broker := newMosquitto(t)
	spec := mqttSpec(broker.address)
	spec.Address = strings.Replace(spec.Address, "pass-word", "other-word", 1)
	set := newSet(spec)
	set.start(t)
	wait.For(t, "an error", func() bool { return strings.Contains(set.Status()[0].Error, "it refuses the connection: ") })
	if strings.Contains(fmt.Sprint(set.Status(), set.log.String()), "other-word") {
		t.Errorf("%+v\n%s", set.Status(), set.log.String())
	}
	set.stop()
}

// Answers that wait while the broker is away arrive when it is back.
func TestMosquittoRestart(t *testing.T) {
	broker := newMosquitto(t)
	set := newSet(mqttSpec(broker.address))
	set.start(t)
	wait.For(t, "the connection", func() bool { return set.Status()[0].State == Running })
	broker.kill()
	wait.For(t, "the loss", func() bool { return set.Status()[0].State == Waiting })
	for i := range uint64(10) {
		set.Publish(found("door", i))
	}
	broker.start(t)
	wait.For(t, "the answers", func() bool { s := set.Status()[0]; return s.Sent == 10 && s.Dropped == 0 && s.Waiting == 0 })
	set.stop()
}
