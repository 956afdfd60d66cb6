// Package doctor checks what a machine offers to a node, and says how to fix what is missing.
//
// A check is a row of a table and a function that returns a Finding; each file has the
// checks of one area. To add a check, write the function and add its row.
//
//	doctor.go   the order of all checks, and the report
//	machine.go  what the checks examine; tests replace its parts
package doctor

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
	configChecks,
)

// check is one row of a table. It has either run or each.
type check struct {
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

// Options say for which node the machine is examined.
type Options struct {
	Config configs.Config
	// CheckConfig checks Config as `penstock check` does: notes may surprise the operator but
	// are no problems. Nil skips this check.
	CheckConfig func(context.Context) (notes []string, err error)
}

// Report is the findings of all checks.
type Report []Finding

// Examine runs all checks on this machine. It changes nothing, except that it starts and
// stops an MPS daemon if the machine has a GPU and no node runs there.
func Examine(ctx context.Context, o Options) Report { return run(ctx, thisMachine(o), checks) }

func run(ctx context.Context, m *machine, checks []check) (r Report) {
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
	switch {
	case len(fatal) > 0:
		return "A node cannot run here until this is repaired: " + strings.Join(fatal, ", ") + "."
	case len(missing) > 0:
		return "A node can run here, without: " + strings.Join(missing, ", ") + "."
	}
	return "A node can run here, with all that Penstock can use."
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
