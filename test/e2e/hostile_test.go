package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/shm"
)

// This test binary is also a process that performs the handshake correctly and
// then writes random data wherever the manager lets it.
const (
	roleVariable = "PENSTOCK_E2E_ROLE"
	roleScribble = "scribble"
)

func play(role string) int {
	if role != roleScribble {
		return 2
	}
	child, err := control.OpenChild()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s := child.Start()
	attached, files, conn, err := control.DialAttach(s.AttachSocket, control.Attach{
		Version: control.Version, IF: s.IF, Instance: s.Instance, Generation: s.Generation, PID: os.Getpid(), Ticket: s.Ticket,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	child.Notify(control.Notice{State: control.Loaded})
	for order := range child.Orders() {
		if order.Do == control.DoWake {
			break
		}
	}
	child.Notify(control.Notice{State: control.Linking})
	child.Notify(control.Notice{State: control.Ready})
	time.Sleep(100 * time.Millisecond) // the manager writes the epoch; it does not check that this process reported active
	child.Notify(control.Notice{State: control.Active})
	info, err := files[2].Stat() // the replies
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	replies, err := shm.Map(files[2], int(info.Size()), true)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Read-only memory must stay read-only.
	if _, err := shm.Map(files[1], int(attached.SlabBytes[0]), true); err == nil {
		fmt.Fprintln(os.Stderr, "the ring can be mapped writable")
		return 1
	}
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	memory := replies.Bytes()
	for {
		for range 4096 {
			memory[random.IntN(len(memory))] = byte(random.Uint32())
			// The words at the front control the ring, so they are overwritten
			// more often.
			memory[random.IntN(min(len(memory), 1024))] = byte(random.Uint32())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestHostileProcess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must.OK(t, err)
	good := nodetest.Card(t, "digest", small)
	nd := start(t, "hang_timeout: 500ms\n"+oneFunction(good)+
		fmt.Sprintf("  - {name: bad, model: %s, port: 0, share_percent: 20, environment: {%s: %s}}\n", programCard(t, self), roleVariable, roleScribble))
	manager := nodetest.Child(t, nd, "manager")

	ended := nodetest.NewAnswers()
	c := nodetest.Dial(t, nd, "bad", client.Options{Deliver: ended.Deliver(small), Timeout: 30 * time.Second})
	nodetest.Send(t, c, small, 0, 100, 5*time.Millisecond)
	got := stream(t, nd, 500, func() {})
	if got.By[client.StatusOK] != 500 || got.Lost > 0 || got.Wrong > 0 {
		t.Errorf("the neighbour: %s; want 500 right answers", got)
	}
	ended.Wait(100)
	if nodetest.Child(t, nd, "manager") != manager {
		t.Error("the manager died of it")
	}
	if f, err := nd.Function("bad"); err != nil || f.Lost > 0 {
		t.Errorf("status %+v, %v; want nothing lost", f, err)
	}
	nodetest.Settled(t, nd, "fn")
}
