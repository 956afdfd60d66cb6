package gateway

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/internal/testing/zmtptest"
	"github.com/penstock/penstock/wire"
)

// startZeroMQ serves the fake node's functions by ZeroMQ. Frigate gets the answers of a function.
func startZeroMQ(t *testing.T, frigate string, answer clienttest.Handler) (address net.Addr, log *logtest.Log) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ps") // short enough for a socket
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path, log := filepath.Join(dir, "s"), &logtest.Log{}
	s := newTestServer(t, answer)
	served := make(chan struct{})
	ctx := t.Context() // ends before cleanups
	go func() {
		defer close(served)
		s.runZeroMQ(ctx, []configs.ZeroMQ{{Address: "ipc://" + path, Frigate: frigate}}, zerolog.New(log))
	}()
	t.Cleanup(func() { <-served })
	wait.For(t, "the socket to listen", func() bool { return log.Count("gateway listens") > 0 })
	return &net.UnixAddr{Net: "unix", Name: path}, log
}

// dialer is a client of ZeroMQ that sends what it likes.
type dialer struct{ *zmq4.Conn }

func dialZeroMQ(t *testing.T, address net.Addr) *dialer {
	t.Helper()
	c, err := net.Dial(address.Network(), address.String())
	must.OK(t, err)
	t.Cleanup(func() { c.Close() })
	return &dialer{zmtptest.Shake(t, c, zmq4.Dealer)}
}

func (d *dialer) ask(t *testing.T, parts ...string) (answer []string) {
	t.Helper()
	must.OK(t, d.SendMsg(zmq4.NewMsgFromString(parts)))
	m, err := d.RecvMsg()
	must.OK(t, err)
	for _, part := range m.Frames {
		answer = append(answer, string(part))
	}
	return answer
}

func TestZeroMQErrors(t *testing.T) {
	address, _ := startZeroMQ(t, "", func(q clienttest.Request) (wire.Result, []byte, bool) {
		if takes := map[int]int{1: 48, 13: 8}[len(q.Picture)]; takes != 0 {
			return wire.Result{Status: wire.StatusRefused, PictureBytes: uint32(takes)}, nil, true
		}
		return oneBox(q)
	})
	client := dialZeroMQ(t, address)
	many := slices.Repeat([]string{"id"}, maxEnvelope+1)
	for name, c := range map[string]struct {
		send []string
		want string // of the whole answer
	}{
		"no empty part":       {[]string{"finder", strings.Repeat("x", 1000)}, `error {"stream":"zeromq"|no empty part with the function's name`},
		"a long part":         {[]string{"finder", strings.Repeat("x", maxHead+1)}, "error |part 2 has 4097 bytes, want at most 4096"},
		"many ids":            {append(many, "", "finder", "x"), "error |no empty part"},
		"no function":         {[]string{"7", ""}, "error |no empty part with the function's name"},
		"an unknown function": {[]string{"7", "", "finda", "x"}, `7  unknown |no such function: \"finda\"; the node has`},
		"no payload":          {[]string{"", "finder"}, " error |picture is empty"},
		"a short payload":     {[]string{"", "finder", "x"}, " refused |the picture has 1 bytes, and the function takes 48"},
		"a damaged photo":     {[]string{"", "finder", "\xff\xd8\xff\xe0 no photo"}, " error |picture"},
		"a photo for tensors": {[]string{"", "raw", "\xff\xd8\xff\xe0 no photo"}, " refused |the picture has 13 bytes, and the function takes 8"},
		"Frigate":             {[]string{"", `{"shape":[1,4,4,3]}`, "x"}, ` {"error":"the request names no function; want`},
		"Frigate's damage":    {[]string{"", `{`, "x"}, ` {"error":"read request of Frigate: unexpected end of JSON`},
		"Frigate's model":     {[]string{"", `{"model_request":true,"model_name":"a.onnx"}`}, `names no function|"model_available":true,"model_loaded":false`},
	} {
		got := strings.Join(client.ask(t, c.send...), " ")
		for _, want := range strings.Split(c.want, "|") {
			if !strings.Contains(got, want) {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
	}
	if got := client.ask(t, "", "finder", strings.Repeat("p", 48)); len(got) != 4 || got[1] != "ok" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestZeroMQHostile(t *testing.T) {
	address, log := startZeroMQ(t, "", oneBox)
	good := dialZeroMQ(t, address)
	for _, peer := range zmtptest.HostilePeers(zeromqLimits) {
		t.Run(peer.Name, func(t *testing.T) {
			zmtptest.WaitEnd(t, peer.Send(t, address, zmq4.Dealer))
			wait.For(t, "the log to say "+peer.Want, func() bool { return log.Count(peer.Want) > 0 })
		})
	}
	if got := good.ask(t, "", "finder", strings.Repeat("p", 48)); len(got) != 4 || got[1] != "ok" {
		t.Errorf("afterwards: %q", got)
	}
}

//go:embed testdata/zeromq.py
var zeromqProgram string

// TestZeroMQClients has the clients of libzmq, with heartbeats.
func TestZeroMQClients(t *testing.T) {
	frigateBoxes := func(q clienttest.Request) (wire.Result, []byte, bool) {
		r, payload, ok := oneBox(q)
		return r, wire.AppendBoxes(payload, []wire.Box{{Class: 0, Score: 0.5, X0: 0, Y0: 0.5, X1: 0.25, Y1: 1}}), ok
	}
	address, log := startZeroMQ(t, "finder", frigateBoxes)
	out, err := zmtptest.Python(t, zeromqProgram, "ipc://"+address.String()).Output()
	must.OK(t, err)
	var got struct {
		REQ    []json.RawMessage // of each part that is JSON, else its text
		DEALER []string          // ids and statuses
		Rows   [][][]float64
		Errors []string // of Frigate
		Ready  map[string]bool
	}
	must.OK(t, json.Unmarshal(out, &got))

	var line stream.Line
	must.OK(t, json.Unmarshal(got.REQ[1], &line))
	if string(got.REQ[0]) != `"ok"` || line.Status != "ok" || line.Model != 3 || len(line.Found) != 2 || line.Found[0].Label != "dog" {
		t.Errorf("REQ: %s", got.REQ)
	}
	if payload := must.Get(json.Marshal(2 * 22))(t); string(got.REQ[2]) != string(payload) {
		t.Errorf("the payload has %s bytes, want two boxes", got.REQ[2])
	}
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i, " ok"))
	}
	if slices.Sort(want); !slices.Equal(got.DEALER, want) {
		t.Errorf("DEALER: %s", got.DEALER)
	}
	if !got.Ready["model_available"] || !got.Ready["model_loaded"] {
		t.Errorf("Frigate's model: %v", got.Ready)
	}
	// Class, score, top, left, bottom, right. The second tensor is twice as wide as high, so that a quarter of the model's
	// picture lies above it.
	for i, want := range []string{
		"[[1 0.75 0.25 0.25 0.75 0.75] [0 0.5 0.5 0 1 0.25] [0 0 0 0 0 0]]",
		"[[1 0.75 0 0.25 1 0.75] [0 0.5 0.5 0 1 0.25] [0 0 0 0 0 0]]",
	} {
		if rows := got.Rows[i]; fmt.Sprint(rows[:3]) != want || len(rows) != 20 {
			t.Errorf("tensor %d: rows for Frigate are %v, want %s", i, rows, want)
		}
	}
	for i, text := range got.Errors {
		if !strings.Contains(text, "want uint8 [1 HEIGHT WIDTH 3]; set input_tensor: nhwc") {
			t.Errorf("Frigate's tensor %d: %s", i, text)
		}
	}
	if log.Count("cannot answer Frigate") == 0 {
		t.Error("the log does not say why Frigate gets no answer")
	}
}
