// Penstock-agent runs next to a node in a pod, and makes the node run the pod's part of a GPUPlan. The operator writes its
// flags.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/penstock/penstock/cluster/agent"
	"github.com/penstock/penstock/internal/webserver"
)

func main() {
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	if err := run(log); err != nil {
		log.Error().Err(err).Msg("agent ends")
		os.Exit(1)
	}
}

func run(log zerolog.Logger) error {
	o := agent.Options{Log: log}
	plan := flag.String("gpuplan", "", "name of the GPUPlan")
	flag.StringVar(&o.Dir, "runtime-dir", "/run/penstock", "runtime folder of the node, which both containers share")
	listen := flag.String("listen", ":9651", "address of the pages /rates, /readyz, /drained and /end")
	kubeconfig := flag.String("kubeconfig", "", "file that says where the API server is; the pod's service account if left out")
	folder := flag.String("make-folder", "", "only make this folder, for the user of the pod")
	flag.Parse()
	if *folder != "" {
		return os.MkdirAll(*folder, 0o700)
	}
	o.Name, o.Namespace = os.Getenv("POD_NAME"), os.Getenv("POD_NAMESPACE")
	var err error
	if o.Address, err = netip.ParseAddr(os.Getenv("POD_IP")); err != nil || o.Name == "" || o.Namespace == "" || *plan == "" {
		return fmt.Errorf("agent has --gpuplan %q, POD_NAME %q, POD_NAMESPACE %q and POD_IP %q; want all of them, as the operator sets them",
			*plan, o.Name, o.Namespace, os.Getenv("POD_IP"))
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var config *rest.Config
	if *kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", *kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	plans, err := agent.Watch(ctx, config, *plan, o.Dir, log)
	if err != nil {
		return err
	}

	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("serve pages: %w", err)
	}
	a := agent.New(o)
	pages := webserver.New(l, a.Pages(), webserver.Options{Connections: 64, Log: log})
	defer pages.Close()
	failed := make(chan error, 1)
	go func() { failed <- pages.Run() }()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, plans) }()
	select {
	case err = <-failed:
		return fmt.Errorf("serve pages: %w", err)
	case err = <-ended:
		return err
	}
}
