package fleet

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// place is an instance's position, in which one process succeeds another. Generations
// keep counting when a function is removed and added again: the orchestrator remembers
// old ones.
type place struct {
	name     string
	instance int
}

func (p place) String() string { return fmt.Sprintf("%s/%d", p.name, p.instance) }

// generations are those of removed instances, and the tickets of all. The control loop owns it.
type generations struct {
	key  []byte // of tickets
	last map[place]uint32
}

func newGenerations() generations {
	return generations{key: []byte(rand.Text()), last: map[place]uint32{}}
}

// retire records the last generation of an instance that is removed.
func (g *generations) retire(p place, last uint32) { g.last[p] = last }

// ticket is what the process of a generation must show when it attaches. It is derived
// from a key, because a desired state is sent many times.
func (g *generations) ticket(p place, generation uint32) string {
	mac := hmac.New(sha256.New, g.key)
	fmt.Fprintf(mac, "%s/%d/%d", p.name, p.instance, generation)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}
