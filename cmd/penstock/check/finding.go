// Package check finds what a node needs and a machine or a configuration lacks, and says how to fix
// it: Machine is `penstock doctor`, Configuration is `penstock check`. Both return findings.
//
// A check of the machine is a row of a table and a function that returns a Finding; each file has
// the checks of one area. To add a check, write the function and add its row. A problem of a
// configuration has its place in the file.
//
//	finding.go        the order of the checks of a machine, and the report
//	machine.go        what these checks examine; tests replace its parts
//	configuration.go  the checks of a configuration
package check

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/penstock/penstock/configs"
)

// checks are all checks in the order of the report.
var checks = slices.Concat(
	cpuChecks,
	runtimeChecks,
	kernelChecks,
	sandboxChecks,
	gpuChecks,
	pythonChecks,
	videoChecks,
	dpdkChecks,
	labChecks,
)

var labChecks = []row{{subject: "lab", run: lab, applies: func(m *machine) bool { return m.config.Lab != configs.Lab{} }}}

// lab says that nodes of this environment are baselines.
func lab(_ context.Context, m *machine) Finding {
	return fail("nodes started here run as a baseline for comparisons, not as Penstock: "+m.config.Lab.Environment(), "unset "+configs.LabVariable)
}

// row is one check of a table. It has either run or each.
type row struct {
	subject string // of findings that do not name their own
	vital   bool   // no node runs if the check fails

	applies func(*machine) bool // nil: always
	run     func(context.Context, *machine) Finding
	each    func(context.Context, *machine) []Finding // one finding per device, per library...
}

// Finding is what a check found.
type Finding struct {
	Subject string
	OK      bool
	Text    string
	Fix     string // a command or a setting, empty if nothing needs fixing
	Fatal   bool   // no node runs with this configuration until it is fixed
}

func pass(text string) Finding { return Finding{OK: true, Text: text} }

func fail(text, fix string) Finding { return Finding{Text: text, Fix: fix} }

// failed is fail for an error without a known fix.
func failed(err error) Finding { return fail(err.Error(), "") }

func (f Finding) about(subject string) Finding {
	f.Subject = subject
	return f
}

func (f Finding) fatalIf(fatal bool) Finding {
	f.Fatal = fatal && !f.OK
	return f
}

// Report is a list of findings.
type Report []Finding

// Machine checks this machine for a node with a configuration. It changes nothing, except that it
// starts and stops an MPS daemon if the machine has a GPU and no node runs there.
func Machine(ctx context.Context, c configs.Config) Report { return run(ctx, thisMachine(c), checks) }

func run(ctx context.Context, m *machine, checks []row) (r Report) {
	for _, c := range checks {
		if c.applies != nil && !c.applies(m) {
			continue
		}

		var found []Finding
		if c.run != nil {
			found = []Finding{c.run(ctx, m)}
		} else {
			found = c.each(ctx, m)
		}

		for _, f := range found {
			if f.Subject == "" {
				f.Subject = c.subject
			}
			f.Fatal = f.Fatal || c.vital && !f.OK
			r = append(r, f)
		}
	}
	return r
}

// Healthy reports whether a node can run here.
func (r Report) Healthy() bool {
	return !slices.ContainsFunc(r, func(f Finding) bool { return f.Fatal })
}

// verdict says in one line whether a node can run here, and what is missing for that, or for more.
func (r Report) verdict() string {
	var missing, fatal []string
	for _, f := range r {
		switch {
		case f.Fatal:
			fatal = append(fatal, f.Subject)
		case !f.OK:
			missing = append(missing, f.Subject)
		}
	}
	fatal, missing = slices.Compact(fatal), slices.Compact(missing)
	switch {
	case len(fatal) > 0:
		return "A node cannot run here until this is repaired: " + strings.Join(fatal, ", ") + "."
	case len(missing) > 0:
		return "A node can run here, without: " + strings.Join(missing, ", ") + "."
	}
	return "A node can run here."
}

// Print writes one line per finding and one per fix, then the verdict.
func (r Report) Print(w io.Writer) {
	for _, f := range r {
		mark := "ok  "
		if !f.OK {
			mark = "no  "
		}
		fmt.Fprintf(w, "%s %-18s %s\n", mark, f.Subject, f.Text)
		if f.Fix != "" {
			fmt.Fprintf(w, "     %-18s -> %s\n", "", f.Fix)
		}
	}
	fmt.Fprintln(w, r.verdict())
}
