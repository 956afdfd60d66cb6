package cameratest

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Camera is a GigE Vision camera that loses packets. It sends again those that a command names.
type Camera struct {
	conn *net.UDPConn
	to   netip.AddrPort
	done chan struct{}

	mu      sync.Mutex // guards below
	random  *rand.Rand
	lose    float64
	picture [][]byte // packets of the latest one
	block   uint64
	lost    int
}

// NewCamera returns a camera at an address, that sends to another one and loses a part of its packets.
func NewCamera(at, to netip.AddrPort, lose float64) (*Camera, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	c := &Camera{conn: conn, to: to, lose: lose, random: rand.New(rand.NewPCG(1, 2)), done: make(chan struct{})}
	go c.serve()
	return c, nil
}

// Close ends the camera.
func (c *Camera) Close() {
	c.conn.Close()
	<-c.done
}

// Lost is how many packets it has lost.
func (c *Camera) Lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Send sends a picture, not faster than a network of 10 Gbit/s.
func (c *Camera) Send(g *GVSP) {
	packets := g.Packets()
	c.mu.Lock()
	c.picture, c.block = packets, g.Block
	c.mu.Unlock()
	const burst = 64
	pace := time.NewTicker(burst * 1500 * 8 * time.Second / 10e9)
	defer pace.Stop()
	for i := range packets {
		if i%burst == 0 {
			<-pace.C
		}
		c.packet(i, i)
	}
}

// packet sends packets of the latest picture, unless they get lost.
func (c *Camera) packet(first, last int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := first; i <= min(last, len(c.picture)-1); i++ {
		if c.random.Float64() < c.lose {
			c.lost++
			continue
		}
		c.conn.WriteToUDPAddrPort(c.picture[i], c.to)
	}
}

// serve sends packets again (PACKETRESEND_CMD with a block id of 16 bits).
func (c *Camera) serve() {
	defer close(c.done)
	b := make([]byte, 1500)
	for {
		n, err := c.conn.Read(b)
		if err != nil {
			return
		}
		c.mu.Lock()
		ours := n == 20 && binary.BigEndian.Uint64(b)>>16 == 0x42000040000c && uint64(binary.BigEndian.Uint32(b[8:])) == c.block
		c.mu.Unlock()
		if ours {
			c.packet(int(binary.BigEndian.Uint32(b[12:])), int(binary.BigEndian.Uint32(b[16:])))
		}
	}
}
