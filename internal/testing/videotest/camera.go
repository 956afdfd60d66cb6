package videotest

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// Camera is an RTSP server (RFC 2326) with a password, which brings RTP to one client over TCP.
type Camera struct {
	// Source is where a sender's RTP comes in: rtp://127.0.0.1:PORT.
	Source string
	// Address is host and port of the server.
	Address string

	listener net.Listener
	packets  *net.UDPConn
	password string // user:password
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

// NewCamera starts a camera, which ends with the test.
func NewCamera(t testing.TB, user, password string) *Camera {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	c := &Camera{
		Source: "rtp://" + packets.LocalAddr().String(), Address: listener.Addr().String(),
		listener: listener, packets: packets, password: user + ":" + password,
	}
	c.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.conns = append(c.conns, conn)
			c.mu.Unlock()
			c.serving.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(c.Close)
	return c
}

// Close ends the server. It may be called again.
func (c *Camera) Close() {
	c.listener.Close()
	c.packets.Close()
	c.mu.Lock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.mu.Unlock()
	c.serving.Wait()
}

const session = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n" +
	"a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track1\r\n"

// serve answers the requests of a connection.
func (c *Camera) serve(conn net.Conn) {
	defer conn.Close()
	in := textproto.NewConn(conn)
	for {
		line, err := in.ReadLine()
		if err != nil {
			return
		}
		header, err := in.ReadMIMEHeader()
		if err != nil {
			return
		}
		method, _, _ := strings.Cut(line, " ")
		status, more, body := c.answer(method, header)
		if _, err := fmt.Fprintf(conn, "RTSP/1.0 %s\r\nCSeq: %s\r\n%s\r\n%s", status, header.Get("CSeq"), more, body); err != nil {
			return
		}
		if method == "PLAY" && strings.HasPrefix(status, "200") {
			c.play(conn)
			return
		}
	}
}

func (c *Camera) answer(method string, header textproto.MIMEHeader) (status, more, body string) {
	authorization := "Basic " + base64.StdEncoding.EncodeToString([]byte(c.password))
	switch {
	case method == "OPTIONS":
		return "200 OK", "Public: DESCRIBE, SETUP, PLAY\r\n", ""
	case header.Get("Authorization") != authorization:
		return "401 Unauthorized", "WWW-Authenticate: Basic realm=\"camera\"\r\n", ""
	case method == "DESCRIBE":
		return "200 OK", fmt.Sprintf("Content-Type: application/sdp\r\nContent-Length: %d\r\n", len(session)), session
	case method == "SETUP" && !strings.Contains(header.Get("Transport"), "TCP"):
		return "461 Unsupported Transport", "", ""
	case method == "SETUP":
		return "200 OK", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n", ""
	case method == "PLAY":
		return "200 OK", "Session: 1\r\n", ""
	}
	return "501 Not Implemented", "", ""
}

// play brings packets to a client until either ends (RFC 2326, 10.12).
func (c *Camera) play(conn net.Conn) {
	packet := make([]byte, 4+64<<10)
	packet[0] = '$'
	for {
		n, err := c.packets.Read(packet[4:])
		if err != nil {
			return
		}
		binary.BigEndian.PutUint16(packet[2:], uint16(n))
		if _, err := conn.Write(packet[:4+n]); err != nil {
			return
		}
	}
}
