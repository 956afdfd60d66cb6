package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway"
	"github.com/penstock/penstock/gateway/stream"
	"github.com/penstock/penstock/shm/cpuset"
)

// gatewayNice is the priority of the gateway, which decodes pictures. Next to the data path and the
// functions, which have objectives to keep, it counts a tenth (sched(7)). If they use all CPUs, it
// still runs.
const gatewayNice = 10

// lowerPriority gives all threads of this process, and those that they start, gatewayNice.
func lowerPriority() error {
	// A thread inherits from the one that started it. So a second pass finds any that was started
	// during the first.
	for range 2 {
		threads, err := cpuset.Threads()
		if err != nil {
			return err
		}
		for _, id := range threads {
			if err := unix.Setpriority(unix.PRIO_PROCESS, id, gatewayNice); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}

	// With autogroups the kernel compares sessions first (sched(7)).
	session, err := unix.Getsid(0)
	if err != nil || session != os.Getpid() {
		return err // the session of a shell has its own priority
	}
	err = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(gatewayNice)), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without them
	}
	return err
}

func gatewayCommand() *cobra.Command {
	var flags nodeFlags
	return flags.childOfUp(&cobra.Command{
		Use:   "gateway",
		Short: "Serve the functions of a node over HTTP",
		Long: `Serves the functions of the node with this configuration over HTTP: the Open Inference
Protocol, and photos as they are (docs/http.md). penstock up starts it.`,
		Example: `  penstock gateway --config node.yaml
  curl --data-binary @face.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:9651/v2/models/face/infer`,
	}, func(ctx context.Context, c configs.Config, log zerolog.Logger) error {
		debug.SetMemoryLimit(gateway.MemoryLimit)
		if err := lowerPriority(); err != nil {
			log.Warn().Err(err).Msg("lower the gateway's priority")
		}
		var streams []stream.Spec
		for _, s := range c.Streams {
			streams = append(streams, stream.Spec(s))
		}
		return gateway.Run(ctx, gateway.Options{
			Streams: streams, Publish: c.Publish, ZeroMQ: c.ZeroMQ, Address: c.Gateway.Address, Dir: c.RuntimeDir, Keys: c.Gateway.Keys, TLS: c.Gateway.TLS,
			Load: c.Gateway.Load, SharedMemory: c.Gateway.SharedMemory, Version: version, Log: log,
		}, nil)
	})
}
