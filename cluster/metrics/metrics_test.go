package metrics

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func reader(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	ok(t, v1alpha1.AddToScheme(scheme))
	half, many := v1alpha1.Rate(0.5), v1alpha1.Rate(1200)
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&v1alpha1.Function{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "faces"},
			Status: v1alpha1.FunctionStatus{PlannedRate: &many, ObservedRate: &half, AssignedRate: &many, Segments: 3, ReadySegments: 2,
				Conditions: []metav1.Condition{
					{Type: v1alpha1.Planned, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPlanned},
					{Type: v1alpha1.Ready, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStarting},
				}},
		},
		&v1alpha1.Function{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new"}},
		&v1alpha1.Fleet{
			ObjectMeta: metav1.ObjectMeta{Name: "pool"},
			Status: v1alpha1.FleetStatus{GPUs: 8, UsedGPUs: 5,
				Conditions: []metav1.Condition{{Type: v1alpha1.Planned, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonChanging}}},
		},
	).Build()
}

func TestCollect(t *testing.T) {
	elected := make(chan struct{})
	c := New(reader(t), elected)
	if n := testutil.CollectAndCount(c); n != 0 {
		t.Errorf("an operator that is not elected has %d metrics", n)
	}
	close(elected)

	var want strings.Builder
	for _, m := range []struct{ name, help, samples string }{
		{"fleet_condition", "1 if the condition is true, else 0.", `{fleet="pool",reason="Changing",type="Planned"} 0`},
		{"fleet_gpus", "GPUs that can serve.", `{fleet="pool"} 8`},
		{"fleet_used_gpus", "GPUs with segments.", `{fleet="pool"} 5`},
		{"function_assigned_rate", "Rate in requests per second that the segments can serve.", `{function="faces",namespace="shop"} 1200`},
		{"function_condition", "1 if the condition is true, else 0.", `{function="faces",namespace="shop",reason="Planned",type="Planned"} 1` +
			"\n" + `{function="faces",namespace="shop",reason="Starting",type="Ready"} 0`},
		{"function_observed_rate", "Rate in requests per second that clients sent, with refused requests.", `{function="faces",namespace="shop"} 0.5`},
		{"function_planned_rate", "Rate in requests per second that the plan was made for.", `{function="faces",namespace="shop"} 1200`},
		{"function_ready_segments", "Segments that serve.", `{function="faces",namespace="shop"} 2` + "\n" + `{function="new",namespace="shop"} 0`},
		{"function_segments", "Segments in the plan.", `{function="faces",namespace="shop"} 3` + "\n" + `{function="new",namespace="shop"} 0`},
	} {
		name := "penstock_cluster_" + m.name
		want.WriteString("# HELP " + name + " " + m.help + "\n# TYPE " + name + " gauge\n")
		for sample := range strings.SplitSeq(m.samples, "\n") {
			want.WriteString(name + sample + "\n")
		}
	}
	ok(t, testutil.CollectAndCompare(c, strings.NewReader(want.String())))
}

// TestReadFails has no metrics rather than old or partial ones.
func TestReadFails(t *testing.T) {
	elected := make(chan struct{})
	close(elected)
	broken := interceptor.NewClient(reader(t), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no cache")
		},
	})
	registry := prometheus.NewRegistry()
	ok(t, registry.Register(New(broken, elected)))
	if all, err := registry.Gather(); err == nil || len(all) > 0 {
		t.Errorf("gathered %v, error %v", all, err)
	}
}

// TestAlerts checks that the chart's alerts use metrics of this package.
func TestAlerts(t *testing.T) {
	alerts, err := os.ReadFile("../chart/files/alerts.yaml")
	ok(t, err)
	var all strings.Builder
	for _, d := range descriptors {
		all.WriteString(d.String())
	}
	used := regexp.MustCompile(`penstock_cluster_\w+`).FindAllString(string(alerts), -1)
	if len(used) == 0 {
		t.Error("no alert uses a metric of this package")
	}
	for _, name := range used {
		if !strings.Contains(all.String(), `fqName: "`+name+`"`) {
			t.Errorf("alerts.yaml uses %s, which does not exist", name)
		}
	}
}
