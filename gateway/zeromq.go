package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control/zmtp"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// Requests by ZeroMQ (docs/zeromq.md). A client is a REQ or a DEALER. Its request is
//
//	ENVELOPE..., empty, FUNCTION, PAYLOAD...
//
// and the answer, which may overtake others of the connection,
//
//	ENVELOPE..., empty, STATUS, JSON, PAYLOAD
//
// A request of Frigate has a header of JSON in place of the function (detect).

// The limits of what a client of ZeroMQ can make a gateway hold, besides its memory for bodies.
const (
	maxEnvelope  = 8       // parts
	maxHead      = 4 << 10 // bytes of each of them, and of the function's name
	maxParts     = maxEnvelope + 2 + 64
	maxQuestions = 32 // of a connection that are not answered
)

// zeromqLimits are those of a connection. A message is in memory as a body of HTTP is.
var zeromqLimits = zmtp.Limits{Bytes: maxBody, Parts: maxParts, Timeout: functions.MaxWait, Idle: true}

// fromZeroMQ stands for the stream in an answer.
const fromZeroMQ = "zeromq"

// socket is an address for clients of ZeroMQ.
type socket struct {
	*server
	configs.ZeroMQ
	log zerolog.Logger
}

// runZeroMQ serves until ctx ends. If an address is taken, it tries again until it is free.
func (s *server) runZeroMQ(ctx context.Context, specs []configs.ZeroMQ, log zerolog.Logger) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, spec := range specs {
		z := &socket{server: s, ZeroMQ: spec, log: log.With().Str("address", spec.Address).Logger()}
		all.Go(func() { z.run(ctx) })
	}
}

func (z *socket) run(ctx context.Context) {
	for reported := false; ctx.Err() == nil; reported = true {
		l, err := zmtp.Listen(z.Address)
		if err == nil {
			z.log.Info().Msg("gateway listens for ZeroMQ")
			zmtp.Serve(ctx, l, zmq4.Router, zeromqLimits, z.log, func(c *zmtp.Conn) error { return z.serve(ctx, c) })
			return
		}
		if !reported {
			z.log.Warn().Err(err).Msg("cannot listen for ZeroMQ; trying again until it works")
		}
		select {
		case <-time.After(retryListen):
		case <-ctx.Done():
		}
	}
}

// question is a request.
type question struct {
	envelope [][]byte // up to the empty part
	head     []byte   // the function's name, or Frigate's header
	body     *buffer  // the other parts without gaps
	err      error    // why it cannot be answered
}

// serve answers a client until it goes.
func (z *socket) serve(ctx context.Context, c *zmtp.Conn) error {
	var answering sync.WaitGroup
	defer answering.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for places := make(chan struct{}, maxQuestions); ; {
		places <- struct{}{}
		q, err := z.receive(ctx, c)
		if err != nil {
			return err
		}
		answering.Go(func() {
			defer func() { <-places }()
			answer := append(q.envelope, z.answer(ctx, q)...)
			if q.body != nil {
				q.body.release()
			}
			if c.Send(answer...) != nil {
				c.Close() // ends receive
			}
		})
	}
}

// receive reads a request. After an error of question it has read it to its end.
func (z *socket) receive(ctx context.Context, c *zmtp.Conn) (*question, error) {
	m, err := c.Next()
	if err != nil {
		return nil, err
	}
	q := &question{}
	for last := false; q.head == nil && err == nil; {
		var part []byte
		switch n := len(q.envelope); {
		case last || n > maxEnvelope:
			q.envelope = nil
			err = errors.New("message has no empty part with the function's name after it; a DEALER sends b\"\", NAME, PAYLOAD")
		case n > 0 && len(q.envelope[n-1]) == 0:
			q.head, last, err = m.Part(maxHead)
		default:
			if part, last, err = m.Part(maxHead); err == nil {
				q.envelope = append(q.envelope, part)
			}
		}
	}
	if err == nil {
		q.body, err = z.memory.read(ctx, m, maxBody)
	}
	if q.err = err; err != nil {
		_, err = io.Copy(io.Discard, m)
	}
	return q, err
}

// answer returns the parts of an answer after the envelope.
func (z *socket) answer(ctx context.Context, q *question) [][]byte {
	if bytes.HasPrefix(q.head, []byte("{")) {
		return z.detect(ctx, q)
	}
	began := time.Now()
	r := stream.Result{Stream: fromZeroMQ, Function: string(q.head)}
	var size image.Point
	f, err := z.functions.Function(string(q.head))
	if err = cmp.Or(q.err, err); err == nil {
		size = image.Pt(f.Card.Input.Width, f.Card.Input.Height)
		var found []functions.Detection
		if !f.TakesPhotos() || picture.Format(q.body.data) == "" || len(q.body.data) == f.Card.Input.WireBytes() {
			r.Answer, err = f.Infer(ctx, q.body.data, functions.Wanted{})
			found = f.InInput(&r.Answer)
		} else {
			var photo functions.Prepared
			if photo, err = z.memory.prepare(ctx, f, q.body.data); err == nil {
				r.Answer, found, err = f.InferPrepared(ctx, &photo, functions.Wanted{})
			}
			size = photo.Size
		}
		r.Items = f.Items(r.Answer, found)
	}
	r.Err, r.Status, r.Age = err, zeromqStatus(err), time.Since(began)
	r.Frame.Image = &picture.Raw{Shape: wire.Picture{Width: size.X, Height: size.Y}}
	text, err := json.Marshal(r.Line())
	if err != nil { // a model that computes NaN
		r.Status = client.StatusFailed.String()
		text, _ = json.Marshal(stream.Line{Stream: fromZeroMQ, Function: r.Function, Status: r.Status, Error: "encode answer: " + err.Error()})
	}
	return [][]byte{[]byte(r.Status), text, r.Answer.Payload}
}

// zeromqStatus is the status of an answer with that error.
func zeromqStatus(err error) string {
	var own *httpError
	if errors.As(err, &own) && own.status == http.StatusServiceUnavailable {
		return client.StatusBusy.String()
	}
	return stream.StatusOf(err)
}

// frigateRows is the max number of detections in an answer to Frigate.
const frigateRows = 20

// frigateHeader is that of a request of Frigate's detector plugin zmq (frigate/detectors/plugins/zmq_ipc.py of Frigate
// 0.17). At first it asks whether its model is there, and would send the file if not.
type frigateHeader struct {
	Shape        []int  `json:"shape"`
	DType        string `json:"dtype"`
	ModelRequest bool   `json:"model_request"`
	ModelData    bool   `json:"model_data"`
}

// detect answers Frigate: with a header and rows of class, score, and top, left, bottom, right in fractions of the
// picture. Frigate takes an error, which is one part, for an answer without detections, and logs its length.
func (z *socket) detect(ctx context.Context, q *question) [][]byte {
	rows, model, err := z.frigate(ctx, q)
	var failed client.StatusError
	if err != nil && !errors.As(err, &failed) {
		z.log.Warn().Err(err).Msg("cannot answer Frigate")
	}
	if err != nil || model {
		reply := map[string]any{}
		if model {
			reply["model_available"], reply["model_loaded"] = true, err == nil
		}
		if err != nil {
			reply["error"] = err.Error()
		}
		text, _ := json.Marshal(reply)
		return [][]byte{text}
	}
	return [][]byte{fmt.Appendf(nil, `{"shape":[%d,6],"dtype":"float32"}`, frigateRows), rows}
}

// frigate returns the rows for a picture. model reports that Frigate asks for its model instead.
func (z *socket) frigate(ctx context.Context, q *question) (rows []byte, model bool, err error) {
	var h frigateHeader
	if err := cmp.Or(q.err, json.Unmarshal(q.head, &h)); err != nil {
		return nil, false, fmt.Errorf("read request of Frigate: %w", err)
	}
	model = h.ModelRequest || h.ModelData
	if z.Frigate == "" {
		return nil, model, errors.New("the request names no function; want `zeromq: [{address: ..., frigate: FUNCTION}]` in the configuration")
	}
	f, err := z.functions.Function(z.Frigate)
	if err == nil && !f.Card.FindsBoxes() {
		err = fmt.Errorf("function %s finds no boxes: its decoder is %q", f.Name, f.Card.Decoder.Name)
	}
	if model || err != nil {
		return nil, model, cmp.Or(err, z.functions.Ready(z.Frigate))
	}

	photo := &picture.Raw{Pix: q.body.data}
	if n := len(h.Shape); n == 3 || n == 4 && h.Shape[0] == 1 {
		if size := h.Shape[n-3:]; size[2] == 3 && h.DType == "uint8" {
			photo.Shape = wire.Picture{Format: wire.FormatRGB8, Width: size[1], Height: size[0]}
		}
	}
	if err := photo.Shape.Check(len(photo.Pix), len(photo.Pix)); err != nil {
		return nil, false, fmt.Errorf("tensor is %s %v of %d bytes, want uint8 [1 HEIGHT WIDTH 3]; "+
			"set input_tensor: nhwc, input_dtype: int and input_pixel_format: rgb under model in Frigate", h.DType, h.Shape, len(photo.Pix))
	}
	var prepared functions.Prepared
	err = z.memory.decode(ctx, f.Card.Input.WireBytes(), func() (err error) {
		prepared, err = f.Prepare(photo)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	a, _, err := f.InferPrepared(ctx, &prepared, functions.Wanted{})
	if err != nil {
		return nil, false, err
	}
	boxes := slices.Clone(a.Boxes)
	for i := range a.Polygons {
		boxes = append(boxes, a.Polygons[i].Outline())
	}
	for _, b := range boxes[:min(len(boxes), frigateRows)] {
		for _, v := range []float32{float32(b.Class), b.Score, b.Y0, b.X0, b.Y1, b.X1} {
			rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(v))
		}
	}
	return append(rows, make([]byte, frigateRows*6*4-len(rows))...), false, nil
}
