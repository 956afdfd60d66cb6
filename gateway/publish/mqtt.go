package publish

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/penstock/penstock/configs"
)

// keepAlive is the time in seconds after which the gateway pings a broker that sends nothing.
const keepAlive = 30

// The payloads of the availability topic, which Home Assistant expects by default.
const (
	online  = "online"
	offline = "offline"
)

// publisherQoS is the MQTT quality of service of all messages: the broker confirms each.
const publisherQoS = 1

// mqtt publishes messages through a broker: the answers of each stream and function at
// TOPIC/STREAM/FUNCTION, and whether the gateway is connected at TOPIC/status.
type mqtt struct {
	broker    *url.URL
	spec      *configs.Publish
	version   string
	id        string
	client    *paho.Client
	announced map[entity]bool // in the discovery topics, since the connection
}

func newMQTT(broker *url.URL, spec *configs.Publish, version string) *mqtt {
	return &mqtt{broker: broker, spec: spec, version: version, id: "penstock-" + strings.ToLower(rand.Text()[:10])}
}

func (m *mqtt) availability() string { return m.spec.Topic + "/status" }

func (m *mqtt) state(l lane) string { return m.spec.Topic + "/" + l.stream + "/" + l.function }

// open connects. The broker publishes the last will, offline, when the connection ends.
func (m *mqtt) open(ctx context.Context) error {
	conn, err := m.dial(ctx)
	if err != nil {
		return err
	}
	client := paho.NewClient(paho.ClientConfig{
		Conn: &brokerConn{Conn: conn, timeout: m.spec.Timeout}, AuthHandler: noAuth{}, PacketTimeout: m.spec.Timeout,
		OnServerDisconnect: func(*paho.Disconnect) {}, // lost reports it
	})
	request := &paho.Connect{
		ClientID: m.id, CleanStart: true, KeepAlive: keepAlive,
		WillMessage: &paho.WillMessage{Topic: m.availability(), Payload: []byte(offline), QoS: publisherQoS, Retain: true},
		Properties:  &paho.ConnectProperties{ReceiveMaximum: paho.Uint16(1), MaximumPacketSize: paho.Uint32(maxBrokerPacket), RequestProblemInfo: true},
	}
	if m.broker.User != nil {
		request.UsernameFlag, request.Username = true, m.broker.User.Username()
		if password, ok := m.broker.User.Password(); ok {
			request.PasswordFlag, request.Password = true, []byte(password)
		}
	}
	reply, err := client.Connect(ctx, request)
	if err != nil {
		conn.Close()
		if reply != nil && reply.ReasonCode >= packets.ConnackUnspecifiedError {
			reason, _, _ := strings.Cut((&packets.Connack{ReasonCode: reply.ReasonCode}).Reason(), " - ")
			return fmt.Errorf("connect to broker: it refuses the connection: %s", cmp.Or(reason, fmt.Sprintf("reason %#x", reply.ReasonCode)))
		}
		return fmt.Errorf("connect to broker: %w; want a broker that speaks MQTT 5", err)
	}
	m.client, m.announced = client, map[entity]bool{}
	return m.publish(ctx, m.availability(), []byte(online), true)
}

// dial opens a connection to the broker, with TLS for mqtts.
func (m *mqtt) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, m.spec.Timeout)
	defer cancel()
	var conn net.Conn
	var err error
	if m.broker.Scheme == "mqtts" {
		conn, err = (&tls.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(m.broker.Hostname(), cmp.Or(m.broker.Port(), "8883")))
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(m.broker.Hostname(), cmp.Or(m.broker.Port(), "1883")))
	}
	if err != nil {
		return nil, fmt.Errorf("connect to broker: %w", err)
	}
	return conn, nil
}

func (m *mqtt) lost() <-chan struct{} { return m.client.Done() }

// close ends the connection. The broker publishes the last will.
func (m *mqtt) close() {
	if m.client != nil {
		_ = m.client.Disconnect(&paho.Disconnect{ReasonCode: packets.DisconnectDisconnectWithWillMessage}) // it may be lost already
	}
	m.client = nil
}

// send publishes an answer. Before the first one of a stream and function it announces their
// entities to Home Assistant.
func (m *mqtt) send(ctx context.Context, message message) error {
	if m.spec.Discovery != "" {
		for _, e := range entities(message) {
			if m.announced[e] {
				continue
			}
			topic, payload := m.discover(e)
			if err := m.publish(ctx, topic, payload, true); err != nil {
				return err
			}
			m.announced[e] = true
		}
	}
	return m.publish(ctx, m.state(message.lane), message.text, false)
}

// publish sends a message and waits until the broker has confirmed it.
func (m *mqtt) publish(ctx context.Context, topic string, payload []byte, retain bool) error {
	reply, err := m.client.Publish(ctx, &paho.Publish{Topic: topic, Payload: payload, QoS: publisherQoS, Retain: retain})
	switch {
	case err == nil:
		return nil
	case reply != nil && reply.ReasonCode >= packets.PubackUnspecifiedError:
		return refusal("broker does not take topic %s: reason %#x", topic, reply.ReasonCode)
	}
	return fmt.Errorf("publish to broker: %w", err)
}

// maxBrokerPacket is the max length of a packet from the broker, in bytes. It sends confirmations
// only: the gateway subscribes to nothing.
const maxBrokerPacket = 16 << 10

// errBrokerPacket is returned for a packet that a broker has no reason to send.
var errBrokerPacket = errors.New("broker sends a packet that is not expected")

// brokerConn is a connection to a broker. It ends when the broker sends a packet that is too long or
// of another type than those that a publisher gets, because the library would allocate memory for
// it. One goroutine reads. Writers lock it for a packet.
type brokerConn struct {
	net.Conn
	sync.Mutex
	timeout time.Duration

	state  headerState
	length int // of the packet that is read: so far, or what is left of it
	shift  int // of the next digit of length
}

// headerState is what the next byte from the broker is.
type headerState uint8

const (
	packetType headerState = iota
	packetLength
	packetBody
)

// maxLengthShift is the shift of the fourth and last digit of a packet's length (MQTT 5, 1.5.5).
const maxLengthShift = 21

func (c *brokerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for i := 0; i < n; {
		b := p[i]
		switch c.state {
		case packetType:
			switch b >> 4 {
			case packets.CONNACK, packets.PUBACK, packets.PINGRESP, packets.DISCONNECT:
			default:
				return 0, fmt.Errorf("%w: type %d", errBrokerPacket, b>>4)
			}
			c.state, c.length, c.shift = packetLength, 0, 0
			i++
		case packetLength:
			c.length |= int(b&0x7f) << c.shift
			c.shift += 7
			i++
			switch {
			case c.length > maxBrokerPacket, b > 0x7f && c.shift > maxLengthShift:
				return 0, fmt.Errorf("%w: more than %d bytes", errBrokerPacket, maxBrokerPacket)
			case b <= 0x7f && c.length == 0:
				c.state = packetType
			case b <= 0x7f:
				c.state = packetBody
			}
		case packetBody:
			part := min(c.length, n-i)
			c.length -= part
			i += part
			if c.length == 0 {
				c.state = packetType
			}
		}
	}
	return n, err
}

// Write ends with an error if the broker does not read.
func (c *brokerConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// noAuth takes no part in MQTT's enhanced authentication, which the gateway does not ask for.
type noAuth struct{}

func (noAuth) Authenticate(*paho.Auth) *paho.Auth { return &paho.Auth{} }

func (noAuth) Authenticated() {}
