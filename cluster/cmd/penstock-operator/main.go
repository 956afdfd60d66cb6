// Penstock-operator carries out the plans of fleets on Kubernetes (package operator).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/zerologr"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	servedmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/penstock/penstock/cluster/metrics"
	"github.com/penstock/penstock/cluster/operator"
)

func main() {
	if err := run(); err != nil {
		log.Log.Error(err, "operator ends")
		os.Exit(1)
	}
}

func run() error {
	var o operator.Options
	flag.StringVar(&o.AgentImage, "agent-image", "", "image of penstock-agent, for pods on GPUs")
	flag.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the operator")
	prometheus := flag.String("prometheus-namespace", "", "namespace of Prometheus, which may read the metrics of functions' pods; none if left out")
	prometheusLabels := map[string]string{}
	flag.Func("prometheus-label", "label KEY=VALUE of Prometheus' pods, once per label; all pods of its namespace if left out", func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		prometheusLabels[key] = value
		if !ok {
			return errors.New("want KEY=VALUE")
		}
		return nil
	})
	elect := flag.Bool("leader-elect", true, "wait until no other operator of the namespace runs")
	pages := flag.String("metrics-address", ":8080", "address of /metrics; 0: none")
	health := flag.String("health-address", ":8081", "address of /healthz and /readyz; 0: none")
	profiles := flag.String("pprof-address", "0", "address of /debug/pprof, for profiles of this program; 0: none")
	level := zerolog.InfoLevel
	flag.TextVar(&level, "log-level", level, "debug, info, warn or error")
	flag.Parse() // --kubeconfig is a flag of package config

	zerologr.SetMaxV(1)
	logger := zerologr.New(new(zerolog.New(os.Stderr).Level(level).With().Timestamp().Logger()))
	log.SetLogger(logger)
	klog.SetLogger(logger)
	if o.AgentImage == "" || o.Namespace == "" {
		return errors.New("--agent-image and --namespace are needed; the Helm chart sets them")
	}
	if *prometheus != "" {
		o.Prometheus = &networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: *prometheus}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: prometheusLabels},
		}
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	api, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	api.QPS = -1 // the API server is fair to its clients by itself
	// If the node of the operator that works is cut off, another one takes over in time to plan around that node, too.
	lease, renew, retry := 5*time.Second, 3*time.Second, time.Second
	m, err := manager.New(api, manager.Options{
		Scheme:                        operator.Scheme(),
		LeaderElection:                *elect,
		LeaderElectionID:              "penstock-operator",
		LeaderElectionNamespace:       o.Namespace,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
		LeaderElectionReleaseOnCancel: true, // this program ends with its manager
		Metrics:                       server.Options{BindAddress: *pages},
		HealthProbeBindAddress:        *health,
		Controller:                    ctrlconfig.Controller{EnableWarmup: new(true)}, // its cache is full when it takes over
		PprofBindAddress:              *profiles,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:                {Label: operator.OurPods, Transform: operator.Strip},
				&corev1.Node{}:               {Transform: operator.Strip},
				&resourceapi.ResourceSlice{}: {Transform: operator.Strip},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	if err := errors.Join(
		m.AddHealthzCheck("ping", healthz.Ping),
		m.AddReadyzCheck("ping", healthz.Ping),
		operator.Add(ctx, m, o),
		servedmetrics.Registry.Register(metrics.New(m.GetClient(), m.Elected())),
	); err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}
	return m.Start(ctx)
}
