package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/gateway/openinference/inference"
)

// rpc serves the Open Inference Protocol over gRPC, by the gateway's HTTP server, whose access and limits hold for it too:
//
//  1. serve gives the messages of a call to package grpc one by one, in memory that counts (messages).
//  2. Package grpc decodes a message and calls its method.
//  3. The method does what HTTP's path does. Except to infer, it answers HTTP's JSON as a message.
type rpc struct {
	inference.UnimplementedGRPCInferenceServiceServer
	server *server
	grpc   *grpc.Server
	// ending ends when the gateway ends, by end.
	ending context.Context
	end    context.CancelFunc
}

func newRPC(s *server) *rpc {
	p := &rpc{server: s, grpc: grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.UnaryInterceptor(
		func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, method grpc.UnaryHandler) (any, error) {
			answer, err := method(ctx, q)
			return answer, rpcError(err)
		}))}
	p.ending, p.end = context.WithCancel(context.Background())
	inference.RegisterGRPCInferenceServiceServer(p.grpc, p)
	return p
}

// service has the methods and the types of their messages.
var service = inference.File_inference_proto.Services().Get(0)

// serve answers a call.
func (p *rpc) serve(w http.ResponseWriter, r *http.Request) {
	method := service.Methods().ByName(protoreflect.Name(r.PathValue("method")))
	if method == nil { // package grpc would read the whole body
		writeError(w, http.StatusNotFound, fmt.Errorf("no such method: %q", r.PathValue("method"))) // UNIMPLEMENTED for a client
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	m := &messages{ctx: ctx, cancel: cancel, from: r.Body, memory: p.server.memory, kind: method.Input(), answered: make(chan struct{}, 1)}
	defer m.release()
	m.encoding = takeEncoding(r.Header, "Grpc-Encoding") // package grpc refuses others
	if method.IsStreamingClient() {
		m.stream = http.NewResponseController(w)
		// Shutdown waits for calls, and a stream may not end by itself.
		defer context.AfterFunc(p.ending, func() { _ = m.from.Close() })()
	}
	r = r.WithContext(context.WithValue(ctx, messagesKey{}, m))
	r.Body = m
	p.grpc.ServeHTTP(flusher{w, m.stream}, r)
}

// flusher is an http.ResponseWriter as package grpc wants it. The answer of a call that is no stream goes out at once, at its end.
type flusher struct {
	http.ResponseWriter
	stream *http.ResponseController // nil: the call is none
}

func (f flusher) Flush() {
	if f.stream != nil {
		_ = f.stream.Flush() // the client may have gone
	}
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
	answer, err := p.server.metadata(ctx, q.Name, q.Version)
	return fill(&inference.ModelMetadataResponse{}, answer, err)
}

func (p *rpc) ModelConfig(ctx context.Context, q *inference.ModelConfigRequest) (*inference.ModelConfigResponse, error) {
	answer, err := p.server.config(ctx, q.Name, q.Version)
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
	body := ctx.Value(messagesKey{}).(*messages).current
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
	from, _ := peer.FromContext(ctx) // each call has one
	answers, err := p.server.inferTensors(ctx, from.Addr.String(), f, q, wanted)
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
		ctx.Value(messagesKey{}).(*messages).answered <- struct{}{}
	}
}
