package zmtp_test

import (
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/zmtptest"
)

// TestZMQ4 shows the faults of zmq4 that this package works around. If it fails with a newer release, ask again whether
// its sockets can replace control/link.go (docs/adr/0020-zeromq-without-sockets.md).
func TestZMQ4(t *testing.T) {
	open := func(c net.Conn, server bool) (*zmq4.Conn, error) {
		return zmq4.Open(c, null.Security(), zmq4.Pair, zmq4.SocketIdentity("x"), server, nil)
	}
	t.Run("handshake panics", func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		go io.Copy(io.Discard, theirs)
		go theirs.Write(zmtptest.BadHandshake())
		defer func() {
			if recover() == nil {
				t.Error("zmq4 checks the properties of a handshake now")
			}
		}()
		_, _ = open(ours, true)
	})
	t.Run("frames have no limit", func(t *testing.T) {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		must.OK(t, err)
		defer l.Close()
		theirs, err := net.Dial("unix", l.Addr().String())
		must.OK(t, err)
		defer theirs.Close()
		ours, err := l.Accept()
		must.OK(t, err)
		defer ours.Close()
		shaken := make(chan struct{})
		go func() {
			defer close(shaken)
			_, _ = open(theirs, false)
		}()
		z, err := open(ours, true)
		must.OK(t, err)
		<-shaken
		const claimed = 256 << 20
		theirs.Write(zmtptest.Claim(0, claimed))
		theirs.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = z.RecvMsg()
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc < claimed {
			t.Error("zmq4 does not allocate what a header claims any more")
		}
	})
}
