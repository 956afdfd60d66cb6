package nodetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/node"
)

// Picture returns a picture whose bytes depend on i.
func Picture(bytes, i int) []byte {
	p := make([]byte, bytes)
	for j := range p {
		p[j] = byte(j*7 + i*13)
	}
	return p
}

// Digest returns the null model's answer to a picture.
func Digest(p []byte) float32 { return null.Value(null.Digest(p), 0, 0) }

// IsDigest reports whether the payload of an ok answer is the digest of that picture.
func IsDigest(payload, p []byte) bool {
	return len(payload) == 4 && math.Float32frombits(binary.LittleEndian.Uint32(payload)) == Digest(p)
}

// Right reports whether an ok answer is the digest of the picture whose number is the answer's tag.
func Right(r *client.Result, bytes int) bool {
	return IsDigest(r.Payload, Picture(bytes, int(r.Tag)))
}

// Address returns the UDP address of a function of a node.
func Address(t testing.TB, n *node.Node, function string) string {
	t.Helper()
	f, err := n.Function(function)
	must.OK(t, err)
	return fmt.Sprintf("127.0.0.1:%d", f.Port)
}

// Dial connects a client with a function until the test ends.
func Dial(t testing.TB, n *node.Node, function string, o client.Options) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), Address(t, n, function), o)
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Send sends n pictures, one per gap. Their numbers, from first, are their tags.
func Send(t testing.TB, c *client.Client, bytes, first, n int, gap time.Duration) {
	t.Helper()
	due := time.NewTicker(max(gap, 1))
	defer due.Stop()
	for i := first; i < first+n; i++ {
		if _, err := c.Send(Picture(bytes, i), client.RequestOptions{Tag: uint64(i)}); err != nil {
			t.Fatalf("send request %d: %v", i, err)
		}
		<-due.C
	}
}

// Answers counts how requests ended, and checks each ok answer. Its fields may be read when Wait has returned
// and nothing more is sent.
type Answers struct {
	By    map[client.Status]int
	Lost  int // ended without an answer
	Wrong int // ok, and not the digest

	mu      sync.Mutex
	ended   int
	changed sync.Cond
}

// NewAnswers returns Answers without any.
func NewAnswers() *Answers {
	a := &Answers{By: map[client.Status]int{}}
	a.changed.L = &a.mu
	return a
}

// Deliver returns a client.Options.Deliver for pictures of that many bytes. Tags are the numbers of pictures.
func (a *Answers) Deliver(bytes int) func(*client.Result) {
	return func(r *client.Result) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ended++
		if r.Err != nil {
			a.Lost++
		} else {
			a.By[r.Status]++
			if r.Status == client.StatusOK && !Right(r, bytes) {
				a.Wrong++
			}
		}
		a.changed.Broadcast()
	}
}

// Count returns how many requests have ended.
func (a *Answers) Count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// Wait waits until n requests have ended.
func (a *Answers) Wait(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.ended < n {
		a.changed.Wait()
	}
}

// Accepted counts the answers to requests that the node had accepted.
func (a *Answers) Accepted() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return uint64(a.By[client.StatusOK] + a.By[client.StatusLate] + a.By[client.StatusFailed])
}

func (a *Answers) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("%d ended, %v, %d without an answer, %d wrong", a.ended, a.By, a.Lost, a.Wrong)
}
