package main

import (
	"context"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/gateway"
	"github.com/penstock/penstock/gateway/stream"
)

// gatewayNice gives picture decoding in the gateway a lower priority than the data path
// and the functions.
const gatewayNice = 5

func gatewayCommand() *cobra.Command {
	var flags nodeFlags
	var phone string
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Serve the functions of a node over HTTP",
		Long: `Serves the functions of the node with this configuration over HTTP: the Open Inference
Protocol, and photos as they are (docs/http.md). penstock up starts it.

With --phone it serves the page to a phone, next to the gateway of the running node: over HTTPS,
with a certificate that it makes, to the first browser that opens the printed address.`,
		Example: `  penstock gateway --config node.yaml
  penstock gateway --phone
  curl --data-binary @face.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:9651/v2/models/face/infer`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags.takeRun()
			debug.SetMemoryLimit(gateway.MemoryLimit)
			if phone != "" {
				return gatewayPhone(cmd.Context(), &flags, phone)
			}
			c, log, end, err := flags.begin("gateway")
			if err != nil {
				return err
			}
			defer end()
			if err := unix.Setpriority(unix.PRIO_PROCESS, 0, gatewayNice); err != nil {
				log.Warn().Err(err).Msg("lower the gateway's priority")
			}
			var streams []stream.Spec
			for _, s := range c.Streams {
				streams = append(streams, stream.Spec(s))
			}
			return gateway.Run(cmd.Context(), gateway.Options{
				Streams: streams, Publish: c.Publish, Address: c.Gateway.Address, Dir: c.RuntimeDir, TokenFile: c.Gateway.TokenFile, Version: version, Log: log,
			}, nil)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&phone, "phone", "", phoneUsage)
	cmd.Flags().Lookup("phone").NoOptDefVal = phoneAuto
	return cmd
}

// gatewayPhone is `penstock gateway --phone`. Without a configuration it finds the running node.
func gatewayPhone(ctx context.Context, flags *nodeFlags, phone string) error {
	c, _, err := flags.read()
	if err != nil {
		return err
	}
	dir := c.RuntimeDir
	if flags.config == "" {
		if dir, err = nodeFolder(flags.dir); err != nil {
			return err
		}
	}
	log, end := openLog(c.Log, "gateway")
	defer end()
	return runPhone(ctx, phone, gateway.Options{Dir: dir, Version: version, Log: log})
}
