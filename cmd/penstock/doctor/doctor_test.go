package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestChecks(t *testing.T) {
	for i, c := range checks {
		if (c.run == nil) == (c.each == nil) || c.run != nil && c.subject == "" {
			t.Errorf("row %d (%q): want either run with a subject, or each", i, c.subject)
		}
	}
}

func TestReport(t *testing.T) {
	broken := func(context.Context, *machine) Finding { return fail("missing", "make it") }
	report := func(checks ...check) Report { return run(context.Background(), &machine{}, checks) }

	t.Run("print", func(t *testing.T) {
		var out strings.Builder
		report(
			check{subject: "kernel", run: func(context.Context, *machine) Finding { return pass("6.12") }},
			check{subject: "skipped", run: broken, applies: func(*machine) bool { return false }},
			check{subject: "library", run: broken},
			check{each: func(context.Context, *machine) []Finding { return []Finding{pass("idle").about("cuda:0")} }},
		).Print(&out)
		want := "ok   kernel             6.12\n" +
			"no   library            missing\n" +
			"                        -> make it\n" +
			"ok   cuda:0             idle\n" +
			"A node can run here, without: library.\n"
		if out.String() != want {
			t.Errorf("printed\n%swant\n%s", out.String(), want)
		}
	})

	for name, c := range map[string]struct {
		check   check
		healthy bool
		verdict string
	}{
		"optional": {check{subject: "library", run: broken}, true, "A node can run here, without: library."},
		"vital":    {check{subject: "library", vital: true, run: broken}, false, "A node cannot run here until this is repaired: library."},
		"fatal": {check{subject: "port", run: func(context.Context, *machine) Finding { return fail("gone", "").fatalIf(true) }}, false,
			"A node cannot run here until this is repaired: port."},
		"passed": {check{subject: "port", vital: true, run: func(context.Context, *machine) Finding { return pass("up").fatalIf(true) }}, true,
			"A node can run here, with all that Penstock can use."},
	} {
		t.Run(name, func(t *testing.T) {
			if r := report(c.check); r.Healthy() != c.healthy {
				t.Errorf("healthy %v, want %v: %+v", r.Healthy(), c.healthy, r)
			} else if r.verdict() != c.verdict {
				t.Errorf("verdict %q, want %q", r.verdict(), c.verdict)
			}
		})
	}
}

func TestConfiguration(t *testing.T) {
	m := &machine{}
	if r := run(context.Background(), m, configChecks); len(r) != 0 {
		t.Errorf("without a configuration: %+v", r)
	}
	m.CheckConfig = func(context.Context) ([]string, error) { return []string{"port 8080 is held"}, nil }
	want := Report{{Subject: "configuration", OK: true, Text: "a node can run with it; port 8080 is held"}}
	if r := run(context.Background(), m, configChecks); !slices.Equal(r, want) {
		t.Errorf("valid: %+v, want %+v", r, want)
	}
	m.CheckConfig = func(context.Context) ([]string, error) { return nil, errors.New("line 3\nline 7") }
	want = Report{{Subject: "configuration", Text: "line 3", Fatal: true}, {Subject: "configuration", Text: "line 7", Fatal: true}}
	if r := run(context.Background(), m, configChecks); !slices.Equal(r, want) {
		t.Errorf("invalid: %+v, want %+v", r, want)
	}
}

func TestONNXRuntime(t *testing.T) {
	for _, c := range []struct {
		path    string
		err     error
		healthy bool
	}{
		{path: "/lib/libonnxruntime.so", healthy: true},
		{err: errors.New("libonnxruntime.so: not found")},
	} {
		m := &machine{onnxLibrary: func() (string, error) { return c.path, c.err }}
		r := run(context.Background(), m, runtimeChecks)
		if r.Healthy() != c.healthy {
			t.Errorf("%q, %v: healthy %v, want %v", c.path, c.err, r.Healthy(), c.healthy)
		}
	}
}

func TestLab(t *testing.T) {
	m := &machine{}
	m.Config.Lab.RunLate = true
	r := run(context.Background(), m, configChecks)
	if len(r) != 1 || r[0].OK || r[0].Fatal || !strings.Contains(r[0].Text, `PENSTOCK_LAB={"run_late":true}`) || r[0].Fix != "unset PENSTOCK_LAB" {
		t.Errorf("found %+v", r)
	}
}
