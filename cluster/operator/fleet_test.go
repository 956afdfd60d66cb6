package operator

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// TestPages checks which pods may connect to which TCP ports of the functions' pods.
func TestPages(t *testing.T) {
	prometheus := &networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "monitoring"}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{appName: "prometheus"}},
	}
	for _, test := range []struct {
		name       string
		prometheus *networkingv1.NetworkPolicyPeer
		want       map[string][]int32 // by namespace
	}{
		{"without Prometheus", nil, map[string][]int32{"penstock-system": {9650, 9651}}},
		{"with Prometheus", prometheus, map[string][]int32{"penstock-system": {9650, 9651}, "monitoring": {9650}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := testWorld(t)
			fleets := &Fleets{Client: w.api, Namespace: "penstock-system", Prometheus: test.prometheus, Now: time.Now}
			if err := fleets.prepareNamespace(t.Context(), get(w, "lab", &v1alpha1.Fleet{}), "a"); err != nil {
				t.Fatal(err)
			}

			got := map[string][]int32{}
			for _, rule := range get(w, "a/penstock", &networkingv1.NetworkPolicy{}).Spec.Ingress {
				for _, port := range rule.Ports {
					switch {
					case *port.Protocol == corev1.ProtocolUDP && len(rule.From) == 0:
					case *port.Protocol != corev1.ProtocolTCP || len(rule.From) != 1 || len(rule.From[0].PodSelector.MatchLabels) == 0:
						t.Errorf("rule for all pods: %+v", rule)
					default:
						namespace := rule.From[0].NamespaceSelector.MatchLabels[corev1.LabelMetadataName]
						got[namespace] = append(got[namespace], port.Port.IntVal)
					}
				}
			}
			if !maps.EqualFunc(got, test.want, slices.Equal) {
				t.Errorf("pages are open to %v, want %v", got, test.want)
			}
		})
	}
}
