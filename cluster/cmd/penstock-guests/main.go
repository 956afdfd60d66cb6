// Penstock-guests is the DRA driver of pods that run below functions (package guest). The Helm chart runs it on each node.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/guest"
)

func main() {
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	if err := run(log); err != nil {
		log.Error().Err(err).Msg("driver of guests ends")
		os.Exit(1)
	}
}

func run(log zerolog.Logger) error {
	o := guest.Options{Log: log, Now: time.Now}
	flag.StringVar(&o.Node, "node", os.Getenv("NODE_NAME"), "name of the node")
	flag.StringVar(&o.Kubelet, "kubelet-dir", "/var/lib/kubelet", "folder of the kubelet")
	flag.StringVar(&o.CDI, "cdi-dir", "/var/run/cdi", "folder of CDI files")
	flag.StringVar(&o.GPUKind, "gpu-kind", "nvidia.com/gpu", "kind of the CDI devices of GPUs, which are named for their UUIDs")
	flag.StringVar(&o.Library, "library", "/usr/lib/penstock/libpenstock-yield.so", "library that makes kernels wait for functions")
	flag.IntVar(&o.PerGPU, "per-gpu", 2, "max guests of a GPU, 1 to 8")
	flag.Parse() // --kubeconfig is a flag of package config
	if o.Node == "" || o.PerGPU < 1 || o.PerGPU > 8 {
		return fmt.Errorf("driver has --node %q and --per-gpu %d; want both, as the Helm chart sets them", o.Node, o.PerGPU)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	api, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	if o.Client, err = kubernetes.NewForConfig(api); err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	plans, err := client.New(api, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	o.Plan = func(ctx context.Context, name string) (*v1alpha1.GPUPlan, error) {
		plan := &v1alpha1.GPUPlan{}
		return plan, plans.Get(ctx, client.ObjectKey{Name: name}, plan)
	}
	return guest.New(o).Run(ctx)
}
