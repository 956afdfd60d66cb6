package gateway

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/webserver"
	"github.com/penstock/penstock/wire"
)

// dial serves the fake node's functions by the gateway's own server, and returns a client of gRPC and the server.
func dial(t *testing.T, answer clienttest.Handler, a *access) (inference.GRPCInferenceServiceClient, *server) {
	t.Helper()
	s := newTestServer(t, answer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	web := webserver.New(l, a.guard(s.routes()), webserver.Options{Connections: 16, HTTP2: true, Log: zerolog.Nop()})
	web.RegisterOnShutdown(s.rpc.end)
	ended := make(chan error, 1)
	go func() { ended <- web.Run() }()
	connection, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.OK(t, err)
	t.Cleanup(func() {
		ending, cancel := context.WithTimeout(context.Background(), drainTimeout)
		defer cancel()
		must.OK(t, web.Shutdown(ending))
		must.OK(t, <-ended)
		connection.Close()
		if !s.memory.bodies.TryAcquire(maxBodies) {
			t.Error("memory of bodies was not freed")
		}
	})
	return inference.NewGRPCInferenceServiceClient(connection), s
}

// pictureMessage has a picture of finder as raw contents.
func pictureMessage(images int) *inference.ModelInferRequest {
	return &inference.ModelInferRequest{
		ModelName: "finder", Id: "7",
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "image", Datatype: "UINT8", Shape: []int64{int64(images), 4, 4, 3}}},
		RawInputContents: [][]byte{make([]byte, images*4*4*3)},
	}
}

// TestGRPC compares the answers of gRPC with the JSON of HTTP.
func TestGRPC(t *testing.T) {
	c, s := dial(t, oneBox, ownAccess(t))
	path := func(method, path, body string) string {
		w := httptest.NewRecorder()
		ownAccess(t).guard(s.routes()).ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, strings.NewReader(body)))
		return strings.TrimSpace(w.Body.String())
	}
	for _, c := range []struct {
		name, http string
		call       func(context.Context) (proto.Message, error)
		empty      proto.Message
	}{
		{"server", path("GET", "/v2", ""), func(ctx context.Context) (proto.Message, error) {
			return c.ServerMetadata(ctx, &inference.ServerMetadataRequest{})
		}, &inference.ServerMetadataResponse{}},
		{"model", path("GET", "/v2/models/finder", ""), func(ctx context.Context) (proto.Message, error) {
			return c.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "finder", Version: "3"})
		}, &inference.ModelMetadataResponse{}},
		{"config", `{"config":` + path("GET", "/v2/models/finder/config", "") + "}", func(ctx context.Context) (proto.Message, error) {
			return c.ModelConfig(ctx, &inference.ModelConfigRequest{Name: "finder"})
		}, &inference.ModelConfigResponse{}},
		{"state", `{"config":` + path("GET", "/v2/models/counter/config", "") + "}", func(ctx context.Context) (proto.Message, error) {
			return c.ModelConfig(ctx, &inference.ModelConfigRequest{Name: "counter"})
		}, &inference.ModelConfigResponse{}},
		{"statistics", path("GET", "/v2/models/finder/stats", ""), func(ctx context.Context) (proto.Message, error) {
			return c.ModelStatistics(ctx, &inference.ModelStatisticsRequest{Name: "finder"})
		}, &inference.ModelStatisticsResponse{}},
		{"all statistics", path("GET", "/v2/models/stats", ""), func(ctx context.Context) (proto.Message, error) {
			return c.ModelStatistics(ctx, &inference.ModelStatisticsRequest{})
		}, &inference.ModelStatisticsResponse{}},
		{"index", `{"models":` + path("POST", "/v2/repository/index", `{"ready":true}`) + "}", func(ctx context.Context) (proto.Message, error) {
			return c.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{Ready: true})
		}, &inference.RepositoryIndexResponse{}},
		{"index without a body", `{"models":` + path("POST", "/v2/repository/index", "") + "}", func(ctx context.Context) (proto.Message, error) {
			return c.RepositoryIndex(ctx, &inference.RepositoryIndexRequest{})
		}, &inference.RepositoryIndexResponse{}},
		{"live", `{"live":true}`, func(ctx context.Context) (proto.Message, error) {
			return c.ServerLive(ctx, &inference.ServerLiveRequest{})
		}, &inference.ServerLiveResponse{}},
		{"ready", `{"ready":true}`, func(ctx context.Context) (proto.Message, error) {
			return c.ServerReady(ctx, &inference.ServerReadyRequest{})
		}, &inference.ServerReadyResponse{}},
		{"model ready", `{"ready":true}`, func(ctx context.Context) (proto.Message, error) {
			return c.ModelReady(ctx, &inference.ModelReadyRequest{Name: "finder"})
		}, &inference.ModelReadyResponse{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, err := c.call(t.Context())
			must.OK(t, err)
			if err := protojson.Unmarshal([]byte(c.http), c.empty); err != nil || !proto.Equal(answer, c.empty) {
				t.Errorf("%v, want %s of HTTP (%v)", answer, c.http, err)
			}
		})
	}
}

// TestGRPCInfer infers by raw contents, by typed contents and by a stream.
func TestGRPCInfer(t *testing.T) {
	c, _ := dial(t, oneBox, ownAccess(t))
	check := func(answer *inference.ModelInferResponse, images int64) {
		t.Helper()
		if answer.GetModelVersion() != "3" || answer.Id != "7" || len(answer.Outputs) != 4 || answer.Parameters["infer_us"].GetInt64Param() != 5000 {
			t.Fatalf("%v", answer)
		}
		boxes, values := answer.Outputs[0], make([]float32, 4*images)
		_, err := binary.Decode(answer.RawOutputContents[0], binary.LittleEndian, values)
		if boxes.Name != "boxes" || boxes.Shape[0] != images || err != nil || values[0] != 0.25 || values[4*images-1] != 0.75 {
			t.Errorf("%v: %v, %v", boxes, values, err)
		}
	}
	answer, err := c.ModelInfer(t.Context(), pictureMessage(2))
	must.OK(t, err)
	check(answer, 2)

	typed := pictureMessage(1)
	typed.RawInputContents = nil
	typed.Inputs[0].Contents = &inference.InferTensorContents{UintContents: make([]uint32, 48)}
	answer, err = c.ModelInfer(t.Context(), typed)
	must.OK(t, err)
	check(answer, 1)

	stream, err := c.ModelStreamInfer(t.Context())
	must.OK(t, err)
	wrong := pictureMessage(1)
	wrong.ModelName = "nope"
	for _, q := range []*inference.ModelInferRequest{pictureMessage(1), wrong, pictureMessage(3)} {
		must.OK(t, stream.Send(q))
	}
	must.OK(t, stream.CloseSend())
	for _, images := range []int64{1, 0, 3} {
		answer, err := stream.Recv()
		must.OK(t, err)
		if images > 0 {
			check(answer.InferResponse, images)
		} else if !strings.Contains(answer.ErrorMessage, `no such function: "nope"`) || answer.InferResponse.Id != "7" {
			t.Errorf("%v", answer)
		}
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("%v, want the end of the stream", err)
	}

	// The gateway ends streams that are open. The helper checks that it ends in time.
	stream, err = c.ModelStreamInfer(t.Context())
	must.OK(t, err)
	must.OK(t, stream.Send(pictureMessage(1)))
	_, err = stream.Recv()
	must.OK(t, err)
}

// TestGRPCErrors sends calls that fail.
func TestGRPCErrors(t *testing.T) {
	message := func(change func(*inference.ModelInferRequest)) *inference.ModelInferRequest {
		m := pictureMessage(1)
		change(m)
		return m
	}
	for _, c := range []struct {
		name   string
		answer clienttest.Handler
		q      *inference.ModelInferRequest
		code   codes.Code
		err    string
	}{
		{"unknown", oneBox, message(func(m *inference.ModelInferRequest) { m.ModelName = "nope" }), codes.NotFound, `no such function: "nope"`},
		{"version", oneBox, message(func(m *inference.ModelInferRequest) { m.ModelVersion = "2" }), codes.NotFound, "serves version 3 of its model, not 2"},
		{"input", oneBox, message(func(m *inference.ModelInferRequest) { m.Inputs[0].Name = "x" }), codes.InvalidArgument, `no input "x", want "image"`},
		{"too short", oneBox, message(func(m *inference.ModelInferRequest) { m.RawInputContents[0] = nil }), codes.InvalidArgument, `input "image": has 0 bytes, the shape wants 48`},
		{"output", oneBox, message(func(m *inference.ModelInferRequest) {
			m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "x"}}
		}), codes.InvalidArgument, `no output "x"`},
		{"too long", oneBox, pictureMessage(maxMessage/48 + 1), codes.ResourceExhausted, "want at most 33554432"},
		{"busy", status(wire.StatusBusy), message(func(*inference.ModelInferRequest) {}), codes.Unavailable, "busy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := dial(t, c.answer, ownAccess(t))
			_, err := client.ModelInfer(t.Context(), c.q)
			if rpcstatus.Code(err) != c.code || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %v: %s", err, c.code, c.err)
			}
		})
	}
}

// TestGRPCAccess sends calls with keys and without.
func TestGRPCAccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, file, keyLine("finder", "finder", "infer"), keyLine("other", "raw", "infer, look"))
	c, _ := dial(t, oneBox, publicAccess(t, file, zerolog.Nop()))
	live := func(ctx context.Context) error {
		_, err := c.ServerLive(ctx, &inference.ServerLiveRequest{})
		return err
	}
	infer := func(ctx context.Context) error {
		_, err := c.ModelInfer(ctx, pictureMessage(1))
		return err
	}
	count := func(ctx context.Context) error {
		_, err := c.ModelStatistics(ctx, &inference.ModelStatisticsRequest{})
		return err
	}
	for _, call := range []struct {
		name, token string
		call        func(context.Context) error
		code        codes.Code
		err         string
	}{
		{"no key", "", live, codes.Unauthenticated, ""},
		{"wrong key", "Bearer x", infer, codes.Unauthenticated, ""},
		{"live", "Bearer other", live, codes.OK, ""},
		{"infer", "Bearer finder", infer, codes.OK, ""},
		{"other function", "Bearer other", infer, codes.PermissionDenied, `key other is not for the function "finder"`},
		{"statistics", "Bearer other", count, codes.OK, ""},
		{"other operation", "Bearer finder", count, codes.PermissionDenied, "key finder does not allow the operation look"},
	} {
		err := call.call(metadata.AppendToOutgoingContext(t.Context(), "authorization", call.token))
		if rpcstatus.Code(err) != call.code || err != nil && !strings.Contains(err.Error(), call.err) {
			t.Errorf("%s: %v, want %v %s", call.name, err, call.code, call.err)
		}
	}
}
