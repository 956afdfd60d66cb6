package livetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/penstock/penstock/internal/testing/must"
)

// uses are the requests of service accounts.
type uses struct {
	mu     sync.Mutex
	verbs  map[string]map[string]bool // such as "list core/pods", by account
	writes []string                   // of the operator, such as "create core/pods shop/faces-1", without leases
}

const (
	operatorAccount = "penstock-operator"
	agentAccount    = "penstock-agent"
)

func (u *uses) add(review authorizationv1.SubjectAccessReviewSpec) {
	a := review.ResourceAttributes
	if a == nil {
		return // discovery, which every account may do
	}
	account := review.User[strings.LastIndex(review.User, ":")+1:]
	verb := right(a.Verb, a.Group, a.Resource, a.Subresource)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.verbs == nil {
		u.verbs = map[string]map[string]bool{}
	}
	if u.verbs[account] == nil {
		u.verbs[account] = map[string]bool{}
	}
	if a.Verb == "bind" {
		verb += " " + a.Name
	}
	u.verbs[account][verb] = true
	switch a.Verb {
	case "create", "update", "patch", "delete":
		if account == operatorAccount && a.Resource != "leases" {
			u.writes = append(u.writes, fmt.Sprintf("%s %s/%s", verb, a.Namespace, a.Name))
		}
	}
}

// written returns what the operator wrote, after the first n writes.
func (u *uses) written(n int) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.writes[n:])
}

func right(verb, group, resource, subresource string) string {
	if group == "" {
		group = "core"
	}
	if subresource != "" {
		resource += "/" + subresource
	}
	return verb + " " + group + "/" + resource
}

// granted returns the rights that a role of the chart gives.
func granted(t *testing.T, kind, name string) map[string]bool {
	t.Helper()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader([]byte(render(t)["rbac.yaml"]))))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			t.Fatalf("the chart has no %s %s", kind, name)
		}
		must.OK(t, err)
		var role rbacv1.ClusterRole
		must.OK(t, yaml.Unmarshal(document, &role))
		if role.Kind != kind || role.Name != name {
			continue
		}
		all := map[string]bool{}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all[strings.TrimSpace(right(verb, group, resource, "")+" "+strings.Join(rule.ResourceNames, " "))] = true
					}
				}
			}
		}
		return all
	}
}

// check compares what an account did with what it may do.
func (u *uses) check(t *testing.T, account string, may map[string]bool) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, verb := range slices.Sorted(maps.Keys(u.verbs[account])) {
		if !may[verb] {
			t.Errorf("%s needs %q: the chart's role does not allow it", account, verb)
		}
	}
	for _, verb := range slices.Sorted(maps.Keys(may)) {
		if !u.verbs[account][verb] {
			t.Errorf("%s may %q: it never did in this test; remove the verb, or add the case", account, verb)
		}
	}
}
