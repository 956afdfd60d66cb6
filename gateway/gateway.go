// Package gateway serves a node's functions over HTTP: inference by the Open Inference Protocol and
// by photos as they are, and a page that shows the node at work.
//
// It is a client of the node. Pictures go to the functions over UDP, like those of any other
// client, and a gateway that dies changes nothing for the others.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/gateway/history"
	"github.com/penstock/penstock/gateway/publish"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/internal/webserver"
)

// Options configure a gateway.
type Options struct {
	// Address is where it listens. Other addresses than those of this machine's loopback need a
	// key in every request.
	Address netip.AddrPort
	// Dir is the node's runtime folder.
	Dir string
	// Keys is a file of the keys that requests need. If it is empty, the gateway makes a key in the runtime
	// folder, unless Address is one of this machine's loopback.
	Keys string
	// Load lets clients load and unload functions.
	Load bool
	// SharedMemory lets clients put tensors into files of /dev/shm.
	SharedMemory bool
	// TLS is the certificate; the zero value serves without.
	TLS configs.TLS
	// Streams are sources of video that are kept running.
	Streams []stream.Spec
	// Publish are receivers of the answers of streams and of HTTP inference.
	Publish []configs.Publish
	// ZeroMQ are addresses for clients of ZeroMQ.
	ZeroMQ []configs.ZeroMQ
	// Version is that of Penstock.
	Version string
	// Demo adds the buttons of the demo to the page; nil for none.
	Demo *Demo
	Log  zerolog.Logger
}

// Demo is what the page of a demo can do to its node.
type Demo struct {
	// Crowd multiplies the load of a function, or ends that.
	Crowd func(on bool)
	// Kill kills the process that serves a function. It returns the function's name.
	Kill func() (string, error)
}

// The limits of what clients can make a gateway hold.
const (
	maxBody        = 64 << 20 // bytes of one request
	maxConnections = 1024
	drainTimeout   = functions.MaxWait
)

// retryListen is the time between two attempts to listen on an address that is taken.
const retryListen = 2 * time.Second

// server handles the requests of a gateway.
type server struct {
	functions  *functions.Set
	streams    *stream.Set
	publishers *publish.Set
	history    *history.Recorder
	events     *events
	wall       *wall
	pictures   *pictures
	demo       *Demo
	version    string
	mayLoad    bool
	memory     *memory
	cameras    *cameras
	rpc        *rpc
	regions    *regions
	metrics    *prometheus.Registry
}

// Run follows the node and serves until ctx ends; then it answers what it has accepted. If the address is taken, it
// tries again until it is free. ready, if not nil, is called with the address once it listens.
func Run(ctx context.Context, o Options, ready func(netip.AddrPort)) error {
	access, err := newAccess(o.Address, o.Dir, o.Keys, o.Log)
	if err != nil {
		return err
	}
	s := newServer(o)
	s.metrics.MustRegister(access.refused)
	options := webserver.Options{Connections: maxConnections, HTTP2: true, Log: o.Log}
	following, stop := context.WithCancel(context.Background())
	var followed sync.WaitGroup
	if o.TLS.Certificate != "" {
		c, err := newCertificate(o.TLS, o.Log)
		if err != nil {
			stop()
			return err
		}
		options.Certificate = c.current.Load
		s.metrics.MustRegister(c.end)
		followed.Go(func() { c.follow(following) })
	}
	followed.Go(func() { access.follow(following) })
	followed.Go(func() { s.functions.Run(following) })
	followed.Go(func() { s.pictures.run(following) })
	streaming, stopStreams := context.WithCancel(ctx)
	followed.Go(func() { s.runStreams(streaming) })
	followed.Go(func() { s.runZeroMQ(streaming, o.ZeroMQ, o.Log) })
	publishing, stopPublishing := context.WithCancel(context.Background())
	var published sync.WaitGroup
	published.Go(func() { s.publishers.Run(publishing) })
	defer func() {
		stopStreams()
		stop()
		followed.Wait()
		stopPublishing() // after the last answer
		published.Wait()
	}()
	listener, err := listen(ctx, o) // nil if ctx ends first
	if err != nil || listener == nil {
		return err
	}
	defer listener.Close()

	// A client that knows a function, from the time before a restart, must find it.
	select {
	case <-s.functions.Tried():
	case <-time.After(firstAnswer):
	case <-ctx.Done():
	}
	web := webserver.New(listener, access.guard(s.routes()), options)
	web.RegisterOnShutdown(s.events.close) // Shutdown waits for requests
	web.RegisterOnShutdown(s.rpc.end)
	ended := make(chan error, 1)
	go func() { ended <- web.Run() }()
	address := netip.MustParseAddrPort(listener.Addr().String())
	o.Log.Info().Str("address", o.TLS.Scheme()+address.String()).Msg("gateway listens")
	if ready != nil {
		ready(address)
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve http: %w", err)
	case <-ctx.Done():
	}
	draining, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := web.Shutdown(draining); err != nil {
		return fmt.Errorf("end http server: %w", err)
	}
	return nil
}

// firstAnswer is how long the gateway waits for the functions of a node that starts.
const firstAnswer = 2 * time.Second

func newServer(o Options) *server {
	s := &server{
		history: history.NewRecorder(), events: newEvents(), wall: newWall(),
		demo: o.Demo, version: o.Version, mayLoad: o.Load, memory: newMemory(), cameras: newCameras(),
		metrics: prometheus.NewRegistry(), regions: &regions{permitted: o.SharedMemory},
	}
	s.rpc = newRPC(s)
	s.functions = functions.NewSet(o.Dir, s.observe, o.Log)
	s.pictures = newPictures(o, s.functions, s.wall)
	s.publishers = publish.NewSet(o.Publish, o.Version, o.Log)
	shown := &frames{wall: s.wall, shown: map[string]time.Time{}}
	observe := func(r stream.Result) {
		shown.observe(r)
		if !s.publishers.Empty() {
			s.publishers.Publish(publish.FromStream(&r))
		}
	}
	s.streams = stream.NewSet(o.Streams, stream.SetOptions{Node: stream.Node{Functions: s.functions}, Observe: observe, Log: o.Log})
	return s
}

// listen opens the address. It returns nil if ctx ends before the address is free.
func listen(ctx context.Context, o Options) (net.Listener, error) {
	for reported := false; ; {
		l, err := net.Listen("tcp", o.Address.String())
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen for http: %w; `gateway: {address: ...}` in the configuration sets the address", err)
		}
		if !reported {
			reported = true
			o.Log.Warn().Err(err).Msg("the gateway's address is taken; the node runs without it until the address is free")
		}
		select {
		case <-time.After(retryListen):
		case <-ctx.Done():
			return nil, nil
		}
	}
}
