package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/traffic"
)

// The page's demo: the watched function answers the camera. A button multiplies the load of the
// crowded function by crowd. Rates are in requests per second.
const (
	watched = "face"
	crowded = "fashion"
	crowd   = 10
)

var cameraRates = map[string]int{"face": 10, "fashion": 400, "detect": 1}

// Camera runs a node with some load, and the page with the demo's buttons, until ctx ends.
func Camera(ctx context.Context, d Options, open bool) error {
	file, err := openLog(d.Out)
	if err != nil {
		return err
	}
	defer file.Close()

	nd, err := startOwn(ctx, d, file)
	if err != nil {
		return err
	}
	defer nd.Kill()

	load := cameraLoad{dir: nd.Dir, changed: make(chan struct{}, 1)}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		stop(load.run(ctx))
	}()
	defer func() { stop(nil); <-loaded }()

	o := gateway.Options{
		Address: configs.Default().Gateway.Address, Dir: nd.Dir, Version: d.Version,
		Log:  zerolog.New(file).With().Timestamp().Str("process", "gateway").Logger(),
		Demo: &gateway.Demo{Crowd: load.setCrowd, Kill: func() (string, error) { return killServing(nd.Dir) }},
	}
	err = gateway.Run(ctx, o, func(at netip.AddrPort) {
		address := "http://" + at.String()
		fmt.Printf("The page is at %s (log: %s). Ctrl-C ends the demo.\n", address, file.Name())
		if open {
			if err := exec.Command("xdg-open", address).Start(); err != nil {
				fmt.Fprintln(os.Stderr, "penstock demo: open the page:", err)
			}
		}
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// killServing kills the process that serves the watched function.
func killServing(dir string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := control.ReadStatus(ctx, dir)
	if err != nil {
		return "", err
	}
	f, ok := status.Function(watched)
	if !ok || len(f.Instances) == 0 {
		return "", fmt.Errorf("node has no function %s", watched)
	}
	p, ok := f.Instances[0].Serving()
	if !ok || p.PID <= 0 {
		return "", fmt.Errorf("function %s has no process that serves", watched)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("kill process %d of %s: %w", p.PID, watched, err)
	}
	return watched, nil
}

// cameraLoad sends the demo's requests.
type cameraLoad struct {
	dir     string
	crowd   atomic.Bool
	changed chan struct{} // crowd was set
}

func (l *cameraLoad) setCrowd(on bool) {
	l.crowd.Store(on)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// cameraPeriod bounds the memory of one run of the load generator.
const cameraPeriod = 30 * time.Second

// run sends requests until ctx ends. A change of the rates starts a new run.
func (l *cameraLoad) run(ctx context.Context) error {
	for seed := uint64(1); ctx.Err() == nil; seed++ {
		period, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- l.send(period, seed) }()
		var err error
		select {
		case err = <-ended:
		case <-l.changed:
			stop()
			err = <-ended
		}
		stop()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("send requests: %w", err)
		}
	}
	return nil
}

// send sends requests for one period.
func (l *cameraLoad) send(ctx context.Context, seed uint64) error {
	status, err := control.ReadStatus(ctx, l.dir)
	if err != nil {
		return err
	}
	rates := map[string]string{}
	for name, perSecond := range cameraRates {
		if name == crowded && l.crowd.Load() {
			perSecond *= crowd
		}
		rates[name] = fmt.Sprint(perSecond)
	}
	run, err := traffic.New(status, traffic.Options{Spec: loadgen.Spec{Duration: cameraPeriod, Seed: seed}, Rates: rates, Arrivals: "poisson", Streams: 1})
	if err != nil {
		return err
	}
	defer run.Close()
	_, err = loadgen.Run(ctx, run.Spec, loadgen.Options{Dial: loadgen.DialClient(client.Options{})})
	return err
}
