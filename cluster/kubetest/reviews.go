package kubetest

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// reviewTimeout bounds a review. A late one is no reason to refuse a request.
const reviewTimeout = 5 * time.Second

// serveReviews serves a webhook that has no opinion, and returns the path of the configuration that lets the API server ask it
// before all others. Nothing is cached, so the webhook sees every request.
func (c *Cluster) serveReviews(see func(authorizationv1.SubjectAccessReviewSpec)) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	c.reviews = &http.Server{ReadHeaderTimeout: reviewTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		see(review.Spec)
		json.NewEncoder(w).Encode(authorizationv1.SubjectAccessReview{TypeMeta: review.TypeMeta})
	})}
	go c.reviews.Serve(l)

	kubeconfig := c.folder.file("reviews.kubeconfig")
	if err := WriteKubeconfig(&rest.Config{Host: "http://" + l.Addr().String()}, kubeconfig); err != nil {
		return "", err
	}
	ttl := metav1.Duration{Duration: time.Second} // not used, but asked for
	text, err := yaml.Marshal(apiserverv1.AuthorizationConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserverv1.SchemeGroupVersion.String(), Kind: "AuthorizationConfiguration"},
		Authorizers: []apiserverv1.AuthorizerConfiguration{
			{Type: "Webhook", Name: "reviews", Webhook: &apiserverv1.WebhookConfiguration{
				AuthorizedTTL: ttl, CacheAuthorizedRequests: new(false),
				UnauthorizedTTL: ttl, CacheUnauthorizedRequests: new(false),
				Timeout:                                  metav1.Duration{Duration: reviewTimeout},
				SubjectAccessReviewVersion:               "v1",
				MatchConditionSubjectAccessReviewVersion: "v1",
				FailurePolicy:                            "NoOpinion",
				ConnectionInfo:                           apiserverv1.WebhookConnectionInfo{Type: "KubeConfigFile", KubeConfigFile: &kubeconfig},
				MatchConditions:                          []apiserverv1.WebhookMatchCondition{{Expression: "request.user.startsWith('system:serviceaccount:')"}},
			}},
			{Type: "Node", Name: "node"},
			{Type: "RBAC", Name: "rbac"},
		},
	})
	if err != nil {
		return "", err
	}
	path := c.folder.file("authorization.yaml")
	return path, os.WriteFile(path, text, 0o600)
}
