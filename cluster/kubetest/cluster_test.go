package kubetest

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/penstock/penstock/internal/testing/wait"
)

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestControlPlane(t *testing.T) {
	c := Start(t, Options{Scheduler: true, Controllers: true, Kwok: true, Manifests: []string{"../chart/crds"}})
	ctx := t.Context()

	t.Run("manifests", func(t *testing.T) {
		output, err := c.Kubectl(ctx, nil, "get", "functions.penstock.io,fleets.penstock.io,gpuplans.penstock.io", "-A")
		if err != nil {
			t.Errorf("%v\n%s", err, output)
		}
	})

	t.Run("rights", func(t *testing.T) {
		config, err := c.ServiceAccount("default", "reader")
		if err != nil {
			t.Fatal(err)
		}
		reader := clientOf(t, config)
		list := func() error {
			_, err := reader.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			return err
		}
		if err := list(); !apierrors.IsForbidden(err) {
			t.Fatalf("without a role: %v", err)
		}
		for _, arguments := range [][]string{
			{"create", "role", "reader", "--verb=list", "--resource=pods"},
			{"create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader"},
		} {
			if _, err := c.Kubectl(ctx, nil, arguments...); err != nil {
				t.Fatal(err)
			}
		}
		wait.For(t, "the role", func() bool { return list() == nil })
		if err := reader.CoreV1().Pods("default").Delete(ctx, "none", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a verb that the role lacks: %v", err)
		}
	})

	t.Run("fake nodes", func(t *testing.T) {
		if err := c.AddFakeNodes(ctx, 3, map[string]string{"pool": "a"}, GPU{}, GPU{}, GPU{}, GPU{}, GPU{}, GPU{Uncut: true}); err != nil {
			t.Fatal(err)
		}
		slices, err := clientOf(t, c.Admin()).ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		devices := 0
		for _, s := range slices.Items {
			devices += len(s.Spec.Devices)
		}
		// An A100 has 14 places: 7 of 1g, 3 of 2g, 2 of 3g, and one each of 4g and 7g.
		if len(slices.Items) != 3*3 || devices != 3*(5*14+1) {
			t.Errorf("%d slices with %d devices", len(slices.Items), devices)
		}
		runPod(t, c, "fake", map[string]string{"pool": "a"})
	})

	t.Run("server restarts", func(t *testing.T) {
		server := c.Process("kube-apiserver")
		server.Kill()
		if _, err := c.Kubectl(ctx, nil, "get", "nodes"); err == nil {
			t.Error("a killed server answers")
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.AwaitServer(ctx); err != nil {
			t.Fatal(err)
		}
		output, err := c.Kubectl(ctx, nil, "get", "nodes", "-o", "name")
		if err != nil || strings.Count(string(output), "node/fake-") != 3 {
			t.Errorf("after the restart: %s, %v", output, err)
		}
	})
}

// runPod waits until a pod is Ready.
func runPod(t *testing.T, c *Cluster, name string, labels map[string]string) {
	t.Helper()
	client := clientOf(t, c.Admin())
	_, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: labels,
			Containers:   []corev1.Container{{Name: "pause", Image: pauseName, ImagePullPolicy: corev1.PullNever}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitPod(t, c, name)
}

func awaitPod(t *testing.T, c *Cluster, name string) {
	t.Helper()
	wait.For(t, "pod "+name+" to be ready", func() bool {
		for _, condition := range getPod(t, c, name).Status.Conditions {
			if condition.Type == corev1.PodReady {
				return condition.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// A program that fails to start is named, with its last words.
func TestFailingStart(t *testing.T) {
	c := &Cluster{folder: &folder{path: t.TempDir()}, processes: map[string]*Process{}}
	shell, err := c.Run("shell", nil, "sh", "-c", "echo no such flag >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = shell.await(t.Context(), func(context.Context) error { return errors.New("no answer") })
	for _, part := range []string{"start shell", "exit status 3", "no answer", "no such flag"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not have %q", err, part)
		}
	}
}
