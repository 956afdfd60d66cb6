package policies_test

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/plan/policies"
)

func TestLimits(t *testing.T) { plantest.Limits(t, policies.All()) }

func TestEstimates(t *testing.T) { plantest.Estimates(t, policies.All()) }
