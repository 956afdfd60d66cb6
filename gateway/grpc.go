package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/gateway/openinference/inference"
)

// rpc serves the Open Inference Protocol over gRPC, by the gateway's HTTP server, whose access and limits hold for it too. A call is a
// POST over HTTP/2 with messages (messages.go) as its body, and its status follows the answer in trailers (gRPC over HTTP2, in the
// documentation of gRPC). Package grpc's own server takes its messages at once, before their memory can be counted. Each method
// does what HTTP's path does. Except to infer, it answers HTTP's JSON as a message.
type rpc struct {
	inference.UnimplementedGRPCInferenceServiceServer
	server *server
	// ending ends when the gateway ends, by end.
	ending context.Context
	end    context.CancelFunc
}

func newRPC(s *server) *rpc {
	p := &rpc{server: s}
	p.ending, p.end = context.WithCancel(context.Background())
	return p
}

// service has the methods and the types of their messages.
var service = inference.File_inference_proto.Services().Get(0)

// serve answers a call.
func (p *rpc) serve(w http.ResponseWriter, r *http.Request) {
	method := service.Methods().ByName(protoreflect.Name(r.PathValue("method")))
	switch {
	case method == nil:
		writeError(w, http.StatusNotFound, fmt.Errorf("no such method: %q", r.PathValue("method"))) // UNIMPLEMENTED for a client
		return
	case r.ProtoMajor != 2 || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		writeError(w, http.StatusUnsupportedMediaType, errors.New("this path is gRPC's, want HTTP/2 and content type application/grpc"))
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Accept-Encoding", "identity, deflate, gzip")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	err := p.call(w, r, method)
	if p.ending.Err() != nil && err != nil {
		err = rpcstatus.Error(codes.Unavailable, "gateway ends")
	}
	status := rpcstatus.Convert(rpcError(err))
	w.Header().Set("Grpc-Status", strconv.Itoa(int(status.Code())))
	w.Header().Set("Grpc-Message", url.PathEscape(status.Message()))
}

// call calls a method.
func (p *rpc) call(w http.ResponseWriter, r *http.Request, method protoreflect.MethodDescriptor) error {
	ctx := r.Context()
	if text := r.Header.Get("Grpc-Timeout"); text != "" {
		limit, err := timeout(text)
		if err != nil {
			return err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	m := &messages{w: w, r: r, memory: p.server.memory, kind: method.Input(), encoding: takeEncoding(r.Header, "Grpc-Encoding")}
	m.ctx = context.WithValue(ctx, messagesKey{}, m)
	defer m.release()
	if method.IsStreamingClient() {
		m.stream = http.NewResponseController(w)
		// Shutdown waits for calls, and a stream may not end by itself.
		defer context.AfterFunc(p.ending, func() { _ = r.Body.Close() })()
		return inference.GRPCInferenceService_ServiceDesc.Streams[0].Handler(p, m)
	}
	for _, d := range inference.GRPCInferenceService_ServiceDesc.Methods {
		if d.MethodName == string(method.Name()) {
			answer, err := d.Handler(p, m.ctx, m.RecvMsg, nil)
			if err != nil {
				return err
			}
			return m.SendMsg(answer)
		}
	}
	return rpcstatus.Error(codes.Unimplemented, string(method.Name()))
}

// timeout reads the time that a client gives a call, such as 100m for 100 ms.
func timeout(text string) (time.Duration, error) {
	last := len(text) - 1
	unit := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}[text[last]]
	n, err := strconv.ParseInt(text[:last], 10, 64)
	if err != nil || n < 0 || unit == 0 {
		return 0, badRequest(fmt.Errorf("read grpc-timeout %q: want digits and one of H, M, S, m, u, n", text))
	}
	return time.Duration(min(n, math.MaxInt64/int64(unit))) * unit, nil
}

// codesOf are the codes of gRPC for the statuses of HTTP. Others are codes.Internal.
var codesOf = map[int]codes.Code{
	http.StatusBadRequest:            codes.InvalidArgument,
	http.StatusUnsupportedMediaType:  codes.InvalidArgument,
	http.StatusForbidden:             codes.PermissionDenied,
	http.StatusNotFound:              codes.NotFound,
	http.StatusRequestEntityTooLarge: codes.ResourceExhausted,
	http.StatusBadGateway:            codes.Unavailable,
	http.StatusServiceUnavailable:    codes.Unavailable,
	http.StatusGatewayTimeout:        codes.DeadlineExceeded,
}

// rpcError is an error for a client of gRPC.
func rpcError(err error) error {
	if _, own := rpcstatus.FromError(err); own { // nil too
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return rpcstatus.FromContextError(err).Err()
	}
	code, ok := codesOf[statusOf(err)]
	if !ok {
		code = codes.Internal
	}
	return rpcstatus.Error(code, err.Error())
}

// fill makes a message of what HTTP answers.
func fill[M proto.Message](m M, answer any, err error) (M, error) {
	var text []byte
	if err == nil {
		text, err = json.Marshal(answer)
	}
	if err == nil {
		err = protojson.Unmarshal(text, m)
	}
	return m, err
}

func (p *rpc) ServerLive(context.Context, *inference.ServerLiveRequest) (*inference.ServerLiveResponse, error) {
	return &inference.ServerLiveResponse{Live: true}, nil
}

func (p *rpc) ServerReady(ctx context.Context, _ *inference.ServerReadyRequest) (*inference.ServerReadyResponse, error) {
	_, err := p.server.ready(ctx, "", "")
	return &inference.ServerReadyResponse{Ready: err == nil}, nil
}

func (p *rpc) ServerMetadata(ctx context.Context, _ *inference.ServerMetadataRequest) (*inference.ServerMetadataResponse, error) {
	answer, err := p.server.describe(ctx, "", "")
	return fill(&inference.ServerMetadataResponse{}, answer, err)
}

func (p *rpc) ModelReady(ctx context.Context, q *inference.ModelReadyRequest) (*inference.ModelReadyResponse, error) {
	_, err := p.server.modelReady(ctx, q.Name, q.Version)
	if statusOf(err) == http.StatusForbidden {
		return nil, err
	}
	return &inference.ModelReadyResponse{Ready: err == nil}, nil
}

func (p *rpc) ModelMetadata(ctx context.Context, q *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	answer, err := about(p.server, openinference.Describe)(ctx, q.Name, q.Version)
	return fill(&inference.ModelMetadataResponse{}, answer, err)
}

func (p *rpc) ModelConfig(ctx context.Context, q *inference.ModelConfigRequest) (*inference.ModelConfigResponse, error) {
	answer, err := about(p.server, openinference.Configure)(ctx, q.Name, q.Version)
	return fill(&inference.ModelConfigResponse{}, map[string]any{"config": answer}, err)
}

func (p *rpc) ModelStatistics(ctx context.Context, q *inference.ModelStatisticsRequest) (*inference.ModelStatisticsResponse, error) {
	answer, err := p.server.statistics(ctx, q.Name, q.Version)
	return fill(&inference.ModelStatisticsResponse{}, answer, err)
}

func (p *rpc) RepositoryIndex(ctx context.Context, q *inference.RepositoryIndexRequest) (*inference.RepositoryIndexResponse, error) {
	return fill(&inference.RepositoryIndexResponse{}, map[string]any{"models": p.server.index(ctx, q.Ready)}, nil)
}

func (p *rpc) RepositoryModelLoad(ctx context.Context, q *inference.RepositoryModelLoadRequest) (*inference.RepositoryModelLoadResponse, error) {
	return &inference.RepositoryModelLoadResponse{}, p.server.loadModel(ctx, q.ModelName, func() (map[string]any, error) {
		parameters := map[string]any{}
		for key, v := range q.Parameters {
			parameters[key] = v.GetStringParam()
		}
		return parameters, nil
	})
}

func (p *rpc) RepositoryModelUnload(ctx context.Context, q *inference.RepositoryModelUnloadRequest) (*inference.RepositoryModelUnloadResponse, error) {
	_, err := p.server.unload(ctx, q.ModelName, "")
	return &inference.RepositoryModelUnloadResponse{}, err
}

func (p *rpc) SystemSharedMemoryStatus(ctx context.Context, q *inference.SystemSharedMemoryStatusRequest) (*inference.SystemSharedMemoryStatusResponse, error) {
	list, err := p.server.regions.find(ctx, q.Name)
	byName := map[string]*region{}
	for _, r := range list {
		byName[r.Name] = r
	}
	return fill(&inference.SystemSharedMemoryStatusResponse{}, map[string]any{"regions": byName}, err)
}

func (p *rpc) SystemSharedMemoryRegister(ctx context.Context, q *inference.SystemSharedMemoryRegisterRequest) (*inference.SystemSharedMemoryRegisterResponse, error) {
	return &inference.SystemSharedMemoryRegisterResponse{}, p.server.regions.register(ctx, region{Name: q.Name, Key: q.Key, Offset: q.Offset, Size: q.ByteSize})
}

func (p *rpc) SystemSharedMemoryUnregister(ctx context.Context, q *inference.SystemSharedMemoryUnregisterRequest) (*inference.SystemSharedMemoryUnregisterResponse, error) {
	_, err := p.server.regions.unregister(ctx, q.Name, "")
	return &inference.SystemSharedMemoryUnregisterResponse{}, err
}

func (p *rpc) CudaSharedMemoryUnregister(context.Context, *inference.CudaSharedMemoryUnregisterRequest) (*inference.CudaSharedMemoryUnregisterResponse, error) {
	return &inference.CudaSharedMemoryUnregisterResponse{}, nil
}

func (p *rpc) ModelInfer(ctx context.Context, m *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	f, err := p.server.named(ctx, configs.OperationInfer, m.ModelName, m.ModelVersion)
	if err != nil {
		return nil, err
	}
	text := proto.Size(m)
	for _, raw := range m.RawInputContents {
		text -= len(raw)
	}
	received := ctx.Value(messagesKey{}).(*messages)
	body := received.current
	q, err := p.server.tensors(ctx, body, text, func() (*openinference.Request, error) {
		return openinference.DecodeMessage(m, f.Card, p.server.regions.tensors(ctx, body))
	})
	if err != nil {
		return nil, err
	}

	var wanted functions.Wanted
	if at, ok := ctx.Deadline(); ok {
		wanted.Deadline = min(time.Until(at), functions.MaxWait)
	}
	answers, err := p.server.inferTensors(ctx, received.r.RemoteAddr, f, q, wanted)
	if err != nil {
		return nil, err
	}
	slowest, outputs, err := merge(f, answers)
	if err != nil {
		return nil, err
	}
	return openinference.EncodeMessage(q, f.Name, version(slowest), stages(slowest), outputs)
}

// ModelStreamInfer answers the messages of a stream in their order. An error does not end the stream.
func (p *rpc) ModelStreamInfer(stream inference.GRPCInferenceService_ModelStreamInferServer) error {
	ctx := stream.Context()
	for {
		q, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		answer := &inference.ModelStreamInferResponse{}
		if answer.InferResponse, err = p.ModelInfer(ctx, q); err != nil {
			answer.ErrorMessage = err.Error()
			answer.InferResponse = &inference.ModelInferResponse{Id: q.Id} // says which request it is
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}
