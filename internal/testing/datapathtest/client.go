package datapathtest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// PictureBytes is the size of a request: a picture of 32 x 32 x 3, three fragments of a client.
const PictureBytes = 32 * 32 * 3

// Picture returns a picture in which each byte differs from its neighbours.
func Picture(seed byte) []byte {
	p := make([]byte, PictureBytes)
	for i := range p {
		p[i] = seed + byte(i*7) + byte(i>>8)
	}
	return p
}

// Client is a client whose answers wait in a channel, by tag.
type Client struct {
	client *client.Client
	t      testing.TB
	ends   chan Ending
}

// Ending is the end of a request, as the test keeps it.
type Ending struct {
	client.Result
	Payload []byte
}

// Dial connects a client to a port.
func Dial(t testing.TB, to netip.AddrPort) *Client {
	t.Helper()
	c := &Client{t: t, ends: make(chan Ending, 1024)}
	var err error
	c.client, err = client.Dial(context.Background(), to.String(), client.Options{
		Timeout: Patience, ResendAfter: Patience, InFlight: 32,
		Deliver: func(r *client.Result) {
			c.ends <- Ending{Result: *r, Payload: append([]byte(nil), r.Payload...)}
		},
	})
	must.OK(t, err)
	t.Cleanup(func() { c.client.Close() })
	return c
}

// Send sends a picture with a tag.
func (c *Client) Send(tag uint64) {
	c.t.Helper()
	if _, err := c.client.Send(Picture(byte(tag)), client.RequestOptions{Tag: tag}); err != nil {
		c.t.Fatal(err)
	}
}

// Ended returns how many ends wait for Next.
func (c *Client) Ended() int { return len(c.ends) }

// Next returns the next end of a request.
func (c *Client) Next() Ending {
	c.t.Helper()
	select {
	case e := <-c.ends:
		if e.Err != nil {
			c.t.Fatalf("request %d: %v", e.Tag, e.Err)
		}
		return e
	case <-time.After(Patience):
		c.t.Fatal("no answer")
		return Ending{}
	}
}

// Statuses returns the next n ends, by tag.
func (c *Client) Statuses(n int) map[uint64]client.Status {
	c.t.Helper()
	ends := map[uint64]client.Status{}
	for range n {
		e := c.Next()
		ends[e.Tag] = e.Status
	}
	return ends
}

// RawClient sends and receives single datagrams.
type RawClient struct {
	t  testing.TB
	fd int
}

// DialRaw connects a socket to a port.
func DialRaw(t testing.TB, to netip.AddrPort) *RawClient {
	t.Helper()
	return DialRawFrom(t, netip.AddrFrom4([4]byte{127, 0, 0, 1}), to)
}

// DialRawFrom is DialRaw from an address of this machine.
func DialRawFrom(t testing.TB, from netip.Addr, to netip.AddrPort) *RawClient {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must.OK(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must.OK(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}))
	must.OK(t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	limit := unix.NsecToTimeval(int64(Patience))
	must.OK(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	return &RawClient{t, fd}
}

// Write sends a datagram.
func (c *RawClient) Write(datagram []byte) {
	c.t.Helper()
	if _, err := unix.Write(c.fd, datagram); err != nil {
		c.t.Fatal(err)
	}
}

// Fragment sends fragment i of a picture that is cut into fragments of fragmentBytes.
func (c *RawClient) Fragment(id uint32, picture []byte, fragmentBytes, i int, flags wire.Flags) {
	c.t.Helper()
	c.Write(Fragment(id, picture, fragmentBytes, i, flags))
}

// Fragment returns the datagram of fragment i of a picture that is cut into fragments of fragmentBytes.
func Fragment(id uint32, picture []byte, fragmentBytes, i int, flags wire.Flags) []byte {
	h := wire.FragmentHeader(wire.TypeData, id, len(picture), fragmentBytes, i)
	h.Flags |= flags
	d := make([]byte, wire.DatagramSize(&h))
	h.Put(d)
	copy(d[wire.PayloadOffset(&h):], picture[h.Offset:][:h.Length])
	return d
}

// Receive returns the next datagram.
func (c *RawClient) Receive() []byte {
	c.t.Helper()
	b := make([]byte, 1<<16)
	return b[:c.ReceiveTo(b)]
}

// ReceiveTo is Receive without allocations.
func (c *RawClient) ReceiveTo(b []byte) int {
	c.t.Helper()
	for {
		n, err := unix.Read(c.fd, b)
		if err == unix.EINTR { // a socket with a time limit is not restarted, signal(7)
			continue
		}
		if err != nil {
			c.t.Fatalf("no answer: %v", err)
		}
		return n
	}
}

// Result returns the next result. It skips NACKs: on a busy machine fragments may come so
// late that the node requests them again.
func (c *RawClient) Result() (wire.Header, wire.Result, []byte) {
	c.t.Helper()
	datagram := c.Receive()
	for {
		if _, err := wire.DecodeNACK(datagram); err != nil {
			break
		}
		datagram = c.Receive()
	}
	h, result, payload, err := wire.DecodeResult(datagram)
	must.OK(c.t, err)
	return h, result, payload
}
