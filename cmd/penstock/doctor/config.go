package doctor

import (
	"context"
	"strings"

	"github.com/penstock/penstock/configs"
)

var configChecks = []check{
	{subject: "lab", run: lab, applies: func(m *machine) bool { return m.Config.Lab != configs.Lab{} }},
	{subject: "configuration", each: configuration, applies: func(m *machine) bool { return m.CheckConfig != nil }},
}

// lab says that nodes of this environment are baselines.
func lab(_ context.Context, m *machine) Finding {
	return fail("nodes started here run as a baseline for comparisons, not as Penstock: "+m.Config.Lab.Environment(), "unset "+configs.LabVariable)
}

// configuration has one finding per problem.
func configuration(ctx context.Context, m *machine) (list []Finding) {
	notes, err := m.CheckConfig(ctx)
	if err == nil {
		return []Finding{pass(strings.Join(append([]string{"a node can run with it"}, notes...), "; "))}
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		list = append(list, fail(line, "").fatalIf(true))
	}
	return list
}
