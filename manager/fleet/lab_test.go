package fleet

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// A process gets what the node's Lab settings say.
func TestProcessIsGrantedTheLab(t *testing.T) {
	lab := configs.Lab{Batching: control.Batching{Rule: control.BatchFixed, Size: 2, Delay: time.Millisecond}, CopyGather: true}
	f := named("a", 40)
	f.MaxPicture = "640x480"
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, f)
	b.cfg.Lab = lab
	b.turns()
	in := b.instance("a", 0)
	generation := in.pair.Active().Generation
	in.processes.hangUp(generation)

	path := filepath.Join(t.TempDir(), "a")
	l, err := control.ListenAttach(path, os.Getuid(), zerolog.Nop())
	must.OK(t, err)
	defer l.Close()
	admitted := make(chan error, 1)
	go func() {
		conn, hello, err := l.Accept()
		if err == nil {
			err = in.admit(conn, hello)
		}
		admitted <- err
	}()
	hello := control.Attach{Version: control.Version, IF: "a", Generation: generation, PID: os.Getpid(), Ticket: in.processes.of(generation).ticket}
	got, files, conn, err := control.DialAttach(path, hello)
	must.OK(t, <-admitted)
	must.OK(t, err)
	defer conn.Close()
	for _, f := range files {
		f.Close()
	}
	if got.Batching != lab.Batching || got.Copy != lab.CopyGather || got.LargestPicture != 640*480*4 {
		t.Errorf("granted %+v, want what %s and the function say", got, lab)
	}
}
