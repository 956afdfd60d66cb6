package shm

import "testing"

// BenchmarkChannel sends one request and receives its answer.
func BenchmarkChannel(b *testing.B) {
	for name, call := range map[string]func(*testing.B, *pair, *Consumer){"alone": alone, "across": across} {
		b.Run(name, func(b *testing.B) {
			p := makePair(b, testGeometry)
			defer p.close()
			c := p.attach(b, 1)
			defer c.Close()
			p.channel.SetEpoch(1)
			acquire(b, c)
			b.ReportAllocs()
			call(b, p, c)
		})
	}
}

// alone finds work at the first poll, on both sides.
func alone(b *testing.B, p *pair, c *Consumer) {
	slots := make([]uint32, 1)
	for b.Loop() {
		p.publish(0)
		c.Wait(0)
		answer(c, slots)
		if n, err := p.channel.Receive(slots, 0); n != 1 || err != nil {
			b.Fatalf("received %d, %v", n, err)
		}
	}
}

// across spins or sleeps on both sides.
func across(b *testing.B, p *pair, c *Consumer) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		slots := make([]uint32, 1)
		for c.Entitled() {
			c.Wait(0)
			answer(c, slots)
		}
	}()
	slots := make([]uint32, 1)
	for b.Loop() {
		p.publish(0)
		if n, err := p.channel.Receive(slots, 0); n != 1 || err != nil {
			b.Fatalf("received %d, %v", n, err)
		}
	}
	p.channel.SetEpoch(2)
	c.Interrupt()
	<-ended
}

// answer answers all available requests; slots is its buffer.
func answer(c *Consumer, slots []uint32) {
	n := c.Take(slots)
	c.Start(slots[:n])
	for _, slot := range slots[:n] {
		c.Complete(slot, Result{Length: 1})
	}
	c.Flush()
}

// BenchmarkAcquire hands the ring to a generation and back.
func BenchmarkAcquire(b *testing.B) {
	p := makePair(b, testGeometry)
	defer p.close()
	sides := []*Consumer{p.attach(b, 1), p.attach(b, 2)}
	b.ReportAllocs()
	generation := uint32(0)
	for b.Loop() {
		c := sides[generation%2]
		generation++
		p.channel.SetEpoch(c.generation)
		acquire(b, c)
		c.Release()
	}
	for _, c := range sides {
		c.Close()
	}
}

// BenchmarkAnnounce announces requests to a consumer that does not watch, as for each burst of
// datagrams.
func BenchmarkAnnounce(b *testing.B) {
	p := makePair(b, testGeometry)
	defer p.close()
	for b.Loop() {
		p.channel.Announce()
	}
}
