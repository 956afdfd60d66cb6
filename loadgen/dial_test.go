package loadgen_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/wire"
)

// answering returns the address of a socket that answers each one-datagram
// request with the first byte of its picture as the class. It never answers
// picture 2.
func answering(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must.OK(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		buffer := make([]byte, 65536)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			header, err := wire.DecodeHeader(buffer[:n])
			if err != nil || header.Type != wire.TypeData {
				continue
			}
			picture := buffer[n-int(header.Length) : n]
			if picture[0] == 2 {
				continue // lost
			}
			result := wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK, Batch: 1, Credit: 16}
			conn.WriteToUDPAddrPort(wire.AppendResult(nil, header.RequestID, &result, topK(uint16(picture[0]), 1), 1024, 0, false), from)
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestDialClient(t *testing.T) {
	addr := answering(t)
	spec := constant(t, 300, 300*time.Millisecond)
	spec.Grace = 3 * time.Second // even on a busy machine, all answers arrive
	spec.Functions[0].Addr = addr.String()
	spec.Functions[0].Streams = 3
	spec.Functions[0].SLO = time.Minute
	report, err := loadgen.Run(t.Context(), spec, loadgen.Options{Dial: loadgen.DialClient(client.Options{})})
	must.OK(t, err)
	f := report.Functions[0]
	if f.Sent != 90 || f.OK != 60 || f.Unanswered != 30 || f.MeanBatch != 1 {
		t.Errorf("%d sent, %d ok, %d unanswered, batch %v; want 90, 60, 30 (every third picture), 1", f.Sent, f.OK, f.Unanswered, f.MeanBatch)
	}
	if f.P50Millis <= 0 {
		t.Errorf("p50 %v ms: an answer before its request", f.P50Millis)
	}
}

// When a function stops answering, it grants no more credit: requests that wait
// for credit become late.
func TestDialClientDropped(t *testing.T) {
	const objective = 20 * time.Millisecond
	m, err := clienttest.NewManager(func(q clienttest.Request) (wire.Result, []byte, bool) {
		return wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK, Batch: 1, Credit: 1, Objective: objective}, topK(1, 1), q.Picture[0] == 0
	}, clienttest.ManagerOptions{})
	must.OK(t, err)
	t.Cleanup(m.Close)
	spec := constant(t, 100, 500*time.Millisecond)
	spec.Grace = 10 * time.Second // the lost requests time out after 2 s
	spec.Functions[0].Addr, spec.Functions[0].SLO = m.Addr().String(), objective
	spec.Functions[0].Pictures = pictures(50)
	report, err := loadgen.Run(t.Context(), spec, loadgen.Options{Dial: loadgen.DialClient(client.Options{})})
	must.OK(t, err)
	f := report.Functions[0]
	if f.Sent != 50 || f.OK != 1 || f.Dropped < 30 || f.Late != f.Dropped || f.Unsent != 0 {
		t.Errorf("%d sent, %d ok, %d late, %d dropped, %d unsent; want 50, 1, all but a few late and dropped, 0", f.Sent, f.OK, f.Late, f.Dropped, f.Unsent)
	}
}
