package planner_test

import (
	"testing"

	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/planner"
)

func TestLimits(t *testing.T) { plantest.Limits(t, planner.All()) }

func TestEstimates(t *testing.T) { plantest.Estimates(t, planner.All()) }
