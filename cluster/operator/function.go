package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

// Functions is the function controller. It gives each Function a Service of its name, for clients that follow no `moved`.
type Functions struct {
	client.Client
	Events events.EventRecorder
}

// Reconcile makes a Function's Service, or corrects it.
func (r *Functions) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	f := &v1alpha1.Function{}
	if err := r.Get(ctx, req.NamespacedName, f); err != nil || f.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: f.Name}}
	foreign := false
	_, err := controllerutil.CreateOrUpdate(ctx, r, s, func() error {
		if foreign = s.UID != "" && !metav1.IsControlledBy(s, f); foreign {
			return nil
		}
		metav1.SetMetaDataLabel(&s.ObjectMeta, managedBy, operatorName)
		metav1.SetMetaDataLabel(&s.ObjectMeta, v1alpha1.FunctionLabel, f.Name)
		s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(f, v1alpha1.GroupVersion.WithKind("Function"))}
		s.Spec.Selector = map[string]string{v1alpha1.ServingLabel(f.Name): v1alpha1.Serving}
		s.Spec.Ports = []corev1.ServicePort{{
			Name:       "requests",
			Protocol:   corev1.ProtocolUDP,
			Port:       f.Spec.Port,
			TargetPort: intstr.FromInt32(f.Spec.Port),
		}}
		return nil
	})
	if foreign {
		r.Events.Eventf(f, s, corev1.EventTypeWarning, "ServiceExists", "CreateService",
			"the namespace has another Service named %s: delete it, or give the function another name", f.Name)
	}
	if err != nil {
		err = fmt.Errorf("write service: %w", err)
	}
	return result(0, err)
}
