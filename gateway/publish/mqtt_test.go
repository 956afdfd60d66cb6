package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/internal/testing/openfiles"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

func mqttSpec(address string) configs.Publish {
	return configs.Publish{
		Name: "home", Kind: configs.PublishMQTT, Address: "mqtt://me:pass-word@" + address, Topic: "penstock/hall",
		Discovery: "homeassistant", Timeout: patience,
	}
}

// fakeBroker answers one connection. connack answers CONNECT, puback each PUBLISH; they return nil
// for no answer.
type fakeBroker struct {
	connack func(*packets.Connect) packets.Packet
	puback  func(*packets.Publish) packets.Packet

	mu        sync.Mutex
	connects  []*packets.Connect
	published []*packets.Publish
	left      []*packets.Disconnect
}

// accept takes a connection.
func accept(*packets.Connect) packets.Packet {
	return &packets.Connack{Properties: &packets.Properties{}}
}

// confirm takes a message.
func confirm(p *packets.Publish) packets.Packet {
	return &packets.Puback{PacketID: p.PacketID, Properties: &packets.Properties{}}
}

func (b *fakeBroker) serve(c net.Conn) {
	for {
		p, err := packets.ReadPacket(c)
		if err != nil {
			return
		}
		var answer packets.Packet
		b.mu.Lock()
		switch content := p.Content.(type) {
		case *packets.Connect:
			b.connects = append(b.connects, content)
			answer = b.connack(content)
		case *packets.Publish:
			b.published = append(b.published, content)
			answer = b.puback(content)
		case *packets.Pingreq:
			answer = &packets.Pingresp{}
		case *packets.Disconnect:
			b.left = append(b.left, content)
		}
		b.mu.Unlock()
		if answer == nil {
			continue
		}
		if _, err := answer.WriteTo(c); err != nil {
			return
		}
	}
}

// topics returns the messages by topic, and the topics in order.
func (b *fakeBroker) topics() (messages map[string]*packets.Publish, order []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages = map[string]*packets.Publish{}
	for _, p := range b.published {
		messages[p.Topic] = p
		order = append(order, p.Topic)
	}
	return messages, order
}

// The broker gets the availability, the discovery messages once, and each answer.
func TestMQTT(t *testing.T) {
	openfiles.CheckLeaks(t)
	broker := &fakeBroker{connack: accept, puback: confirm}
	address := listen(t, broker.serve)
	s := mqttSpec(address)
	s.Every = time.Second
	set := newSet(s)
	set.start(t)
	set.Publish(found("door", 1, 4))
	set.Publish(found("door", 2))
	wait.For(t, "the answers", func() bool { return set.Status()[0].Sent == 2 })
	set.stop()

	messages, order := broker.topics()
	want := []string{
		"penstock/hall/status", "homeassistant/binary_sensor/penstock-hall-door/face-found/config",
		"homeassistant/sensor/penstock-hall-door/face-count/config", "penstock/hall/door/face", "penstock/hall/door/face",
	}
	if fmt.Sprint(order) != fmt.Sprint(want) {
		t.Errorf("topics %q, want %q", order, want)
	}
	connect := broker.connects[0]
	if connect.Username != "me" || string(connect.Password) != "pass-word" || !connect.CleanStart || connect.KeepAlive != keepAlive ||
		connect.WillTopic != want[0] || string(connect.WillMessage) != offline || !connect.WillRetain || connect.WillQOS != 1 {
		t.Errorf("%+v", connect)
	}
	for topic, p := range messages {
		if p.QoS != 1 || p.Retain != (topic != want[3]) {
			t.Errorf("%s: QoS %d, retained %v", topic, p.QoS, p.Retain)
		}
	}
	if string(messages[want[0]].Payload) != online {
		t.Errorf("%s", messages[want[0]].Payload)
	}
	const discovery = `{"name":"face","unique_id":"penstock/penstock/hall/door/face/found","state_topic":"penstock/hall/door/face",` +
		`"value_template":"{{ 'ON' if value_json.found | default([]) | length \u003e 0 else 'OFF' }}","json_attributes_topic":"penstock/hall/door/face",` +
		`"availability_topic":"penstock/hall/status","expire_after":33,` +
		`"device":{"identifiers":["penstock/penstock/hall/door"],"name":"door","manufacturer":"Penstock","sw_version":"test"},"origin":{"name":"Penstock","sw_version":"test"}}`
	if got := string(messages[want[1]].Payload); got != discovery {
		t.Errorf("got\n%s, want\n%s", got, discovery)
	}
	var a Answer
	if err := json.Unmarshal(messages[want[3]].Payload, &a); err != nil || a.Frame != 2 || len(a.Found) != 0 {
		t.Errorf("%s, %v", messages[want[3]].Payload, err)
	}
	// The broker publishes the last will.
	wait.For(t, "the end of the connection", func() bool {
		broker.mu.Lock()
		defer broker.mu.Unlock()
		return len(broker.left) == 1 && broker.left[0].ReasonCode == packets.DisconnectDisconnectWithWillMessage
	})
	if status := set.Status()[0]; status.To != "mqtt://"+address+"/penstock/hall" {
		t.Errorf("%+v", status)
	}
	checkSecrets(t, set)
}

func TestEntities(t *testing.T) {
	m := newMQTT(nil, &configs.Publish{Topic: "penstock", Discovery: "homeassistant"}, "test")
	for _, c := range []struct {
		kind wire.Kind
		want []string
	}{
		{wire.KindBoxes, []string{"binary_sensor/penstock-door/face-found", "sensor/penstock-door/face-count"}},
		{wire.KindTopK, []string{"sensor/penstock-door/face-class"}},
		{wire.KindRaw, []string{"sensor/penstock-door/face-value"}},
		{wire.KindTensors, []string{"sensor/penstock-door/face-value"}},
	} {
		var got []string
		ids := map[string]bool{}
		for _, e := range entities(message{lane: lane{"door", "face"}, kind: c.kind}) {
			topic, payload := m.discover(e)
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(topic, "homeassistant/"), "/config"))
			var d discovery
			if err := json.Unmarshal(payload, &d); err != nil || d.Template == "" || ids[d.UniqueID] {
				t.Errorf("%s, %v", payload, err)
			}
			ids[d.UniqueID] = true
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v: %q, want %q", c.kind, got, c.want)
		}
	}
	// Pictures over HTTP come when they come.
	if _, payload := m.discover(entity{lane{configs.FromHTTP, "face"}, entityFound}); strings.Contains(string(payload), "expire_after") {
		t.Errorf("%s", payload)
	}
}

// Whatever a broker does, the receiver says what is wrong, and nothing else suffers.
func TestHostileBroker(t *testing.T) {
	refuse := func(reason byte) func(*packets.Connect) packets.Packet {
		return func(*packets.Connect) packets.Packet {
			return &packets.Connack{ReasonCode: reason, Properties: &packets.Properties{}}
		}
	}
	// scripted answers CONNECT with bytes.
	scripted := func(answer ...byte) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := packets.ReadPacket(c); err == nil {
				_, _ = c.Write(answer)
				_, _ = io.Copy(io.Discard, c)
			}
		}
	}
	connack := []byte{packets.CONNACK << 4, 3, 0, 0, 0}
	after := func(more ...byte) func(net.Conn) {
		return scripted(append(append([]byte(nil), connack...), more...)...)
	}

	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string
	}{
		"wrong password": {(&fakeBroker{connack: refuse(packets.ConnackBadUsernameOrPassword)}).serve, "connect to broker: it refuses the connection: Bad User Name or Password"},
		"old protocol":   {(&fakeBroker{connack: refuse(packets.ConnackUnsupportedProtocolVersion)}).serve, "it refuses the connection: Unsupported Protocol Version"},
		"unknown reason": {(&fakeBroker{connack: refuse(0xfe)}).serve, "it refuses the connection: reason 0xfe"},
		"hangs up":       {func(c net.Conn) { c.Close() }, "connect to broker: "},
		"no broker":      {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, "want a broker that speaks MQTT 5"},
		"long answer":    {scripted(packets.CONNACK<<4, 0xff, 0xff, 0xff, 0x7f), "more than 16384 bytes"},
		"endless length": {scripted(packets.CONNACK<<4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01), "more than 16384 bytes"},
		"empty answer":   {scripted(packets.CONNACK<<4, 0), "connect to broker: "},
		"authentication": {scripted(packets.AUTH<<4, 2, 0x18, 0), "broker sends a packet that is not expected: type 15"},
		"unasked method": {scripted(packets.CONNACK<<4, 7, 0, 0, 4, 0x15, 0, 1, 'x'), ""},
		"publishes":      {after(packets.PUBLISH<<4, 0xff, 0xff, 0xff, 0x7f), ""},
		"leaves":         {after(packets.DISCONNECT<<4, 2, packets.DisconnectServerShuttingDown, 0), ""},
		"strange answer": {after(packets.PUBACK<<4, 2, 0, 99, packets.PINGRESP<<4, 0, packets.CONNACK<<4, 3, 0, 0, 0), ""},
		"refuses status": {(&fakeBroker{connack: accept, puback: func(p *packets.Publish) packets.Packet {
			return &packets.Puback{PacketID: p.PacketID, ReasonCode: packets.PubackNotAuthorized, Properties: &packets.Properties{}}
		}}).serve, "broker does not take topic penstock/hall/status: reason 0x87"},
	} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			s := mqttSpec(listen(t, c.serve))
			s.Timeout = 200 * time.Millisecond
			set := newSet(s)
			set.start(t)
			set.Publish(found("door", 1))
			wait.For(t, "an error", func() bool {
				status := set.Status()[0]
				return status.State == Waiting && status.Error != "" && strings.Contains(status.Error, c.want) && status.Sent == 0 && status.Refused == 0
			})
			checkSecrets(t, set)
			set.stop()
		})
	}
}

// A broker that does not answer, or does not read, costs a timeout.
func TestSilentBroker(t *testing.T) {
	for name, broker := range map[string]*fakeBroker{
		"connect": {connack: func(*packets.Connect) packets.Packet { return nil }},
		"publish": {connack: accept, puback: func(*packets.Publish) packets.Packet { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			openfiles.CheckLeaks(t)
			s := mqttSpec(listen(t, broker.serve))
			s.Timeout = 20 * time.Millisecond
			set := newSet(s)
			set.start(t)
			set.Publish(found("door", 1))
			wait.For(t, "a timeout", func() bool { return strings.Contains(set.Status()[0].Error, "deadline exceeded") })
			set.stop()
		})
	}
	t.Run("never reads", func(t *testing.T) {
		openfiles.CheckLeaks(t)
		s := mqttSpec(listen(t, func(c net.Conn) {
			_, _ = packets.ReadPacket(c)
			_, _ = accept(nil).WriteTo(c)
			for {
				p, err := packets.ReadPacket(c)
				if err != nil {
					return
				}
				if status, ok := p.Content.(*packets.Publish); ok { // else it is a ping
					_, _ = confirm(status).WriteTo(c)
					return
				}
			}
		}))
		s.Timeout, s.Discovery = 200*time.Millisecond, ""
		set := newSet(s)
		set.start(t)
		wait.For(t, "the connection", func() bool { return set.Status()[0].State == Running })
		a := found("door", 1)
		a.Values = make([]float32, 1<<20) // more than sockets hold
		set.Publish(a)
		wait.For(t, "a timeout", func() bool { s := set.Status()[0]; return s.State == Waiting && s.Sent == 0 })
		set.stop()
	})
}

// A broker may not take an answer: it is refused, and the next one is sent.
func TestRefusedTopic(t *testing.T) {
	openfiles.CheckLeaks(t)
	broker := &fakeBroker{connack: accept, puback: func(p *packets.Publish) packets.Packet {
		answer := confirm(p).(*packets.Puback)
		if strings.HasPrefix(p.Topic, "penstock/hall/door/") {
			answer.ReasonCode = packets.PubackNotAuthorized
		}
		return answer
	}}
	set := newSet(mqttSpec(listen(t, broker.serve)))
	set.start(t)
	set.Publish(found("door", 1))
	set.Publish(found("gate", 2))
	wait.For(t, "both", func() bool { s := set.Status()[0]; return s.Sent == 1 && s.Refused == 1 })
	set.stop()
}

// After the connection was lost the gateway connects again, and announces again what it publishes.
func TestBrokerRestart(t *testing.T) {
	openfiles.CheckLeaks(t)
	var mu sync.Mutex
	var last net.Conn
	broker := &fakeBroker{connack: accept, puback: confirm}
	set := newSet(mqttSpec(listen(t, func(c net.Conn) {
		mu.Lock()
		last = c
		mu.Unlock()
		broker.serve(c)
	})))
	set.start(t)
	for i := range uint64(3) {
		set.Publish(found("door", i))
		wait.For(t, "the answer", func() bool { return set.Status()[0].Sent == i+1 })
		mu.Lock()
		last.Close()
		mu.Unlock()
		wait.For(t, "the next connection", func() bool {
			broker.mu.Lock()
			defer broker.mu.Unlock()
			return len(broker.connects) == int(i)+2
		})
	}
	set.stop()
	announced := 0
	for _, topic := range topicsOf(broker) {
		if strings.HasPrefix(topic, "homeassistant/binary_sensor/") {
			announced++
		}
	}
	if announced != 3 {
		t.Errorf("announced %d times: %q", announced, topicsOf(broker))
	}
}

func topicsOf(b *fakeBroker) []string {
	_, order := b.topics()
	return order
}

// brokerConn passes packets on however they are cut, and nothing else.
func TestBrokerConn(t *testing.T) {
	good := []byte{packets.CONNACK << 4, 3, 0, 0, 0, packets.PUBACK << 4, 0x82, 0x01}
	good = append(good, make([]byte, 130)...)
	good = append(good, packets.PINGRESP<<4, 0, packets.DISCONNECT<<4, 1, 0)
	for _, c := range []struct {
		text []byte
		want error
	}{
		{good, io.EOF},
		{append(append([]byte(nil), good...), packets.PUBLISH<<4, 0), errBrokerPacket},
		{append(append([]byte(nil), good...), packets.PUBACK<<4, 0x81, 0x80, 0x01), errBrokerPacket},
		{[]byte{packets.PUBACK << 4, 0x80, 0x80, 0x80, 0x80}, errBrokerPacket},
	} {
		for part := 1; part < len(c.text); part++ {
			conn := &brokerConn{Conn: &scriptedConn{text: c.text, part: part}}
			_, err := io.ReadAll(conn)
			if c.want == io.EOF && err != nil || c.want != io.EOF && !errors.Is(err, c.want) {
				t.Fatalf("%x in parts of %d: %v, want %v", c.text, part, err, c.want)
			}
		}
	}
}

// scriptedConn reads a text in parts.
type scriptedConn struct {
	net.Conn
	text []byte
	part int
}

func (c *scriptedConn) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.text[:min(c.part, len(c.text))])
	c.text = c.text[n:]
	return n, nil
}

// Answers of classifiers and of raw models say what their entities show.
func TestEntityAnswers(t *testing.T) {
	openfiles.CheckLeaks(t)
	broker := &fakeBroker{connack: accept, puback: confirm}
	set := newSet(mqttSpec(listen(t, broker.serve)))
	set.start(t)
	best := found("door", 1)
	best.Kind, best.Found = wire.KindTopK, []functions.Item{{Label: "shoe", Score: 0.9}, {Label: "bag", Score: 0.1}}
	values := found("gate", 2)
	values.Kind, values.Values = wire.KindRaw, []float32{1.5, 2}
	set.Publish(best)
	set.Publish(values)
	wait.For(t, "the answers", func() bool { return set.Status()[0].Sent == 2 })
	set.stop()
	messages, _ := broker.topics()
	if p := messages["penstock/hall/door/face"]; p == nil || !strings.Contains(string(p.Payload), `"found":[{"label":"shoe"`) {
		t.Errorf("%+v", p)
	}
	if p := messages["penstock/hall/gate/face"]; p == nil || !strings.Contains(string(p.Payload), `"values":[1.5,2]`) {
		t.Errorf("%+v", p)
	}
	if messages["homeassistant/sensor/penstock-hall-door/face-class/config"] == nil || messages["homeassistant/sensor/penstock-hall-gate/face-value/config"] == nil {
		t.Errorf("%v", topicsOf(broker))
	}
}
