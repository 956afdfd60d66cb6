package check

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
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
	report := func(checks ...row) Report { return run(context.Background(), &machine{}, checks) }

	t.Run("print", func(t *testing.T) {
		var out strings.Builder
		report(
			row{subject: "kernel", run: func(context.Context, *machine) Finding { return pass("6.12") }},
			row{subject: "skipped", run: broken, applies: func(*machine) bool { return false }},
			row{subject: "library", run: broken},
			row{each: func(context.Context, *machine) []Finding { return []Finding{pass("idle").about("cuda:0")} }},
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
		check   row
		healthy bool
		verdict string
	}{
		"optional": {row{subject: "library", run: broken}, true, "A node can run here, without: library."},
		"vital":    {row{subject: "library", vital: true, run: broken}, false, "A node cannot run here until this is repaired: library."},
		"fatal": {row{subject: "port", run: func(context.Context, *machine) Finding { return fail("gone", "").fatalIf(true) }}, false,
			"A node cannot run here until this is repaired: port."},
		"passed": {row{subject: "port", vital: true, run: func(context.Context, *machine) Finding { return pass("up").fatalIf(true) }}, true,
			"A node can run here."},
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
	file := filepath.Join(t.TempDir(), "node.yaml")
	read := func(text string) configs.Config {
		writes(t, file, text)
		c, err := configs.Read(file)
		must.OK(t, err)
		c.RuntimeDir = filepath.Join(filepath.Dir(file), "run")
		return c
	}
	r := Configuration(t.Context(), read("http: 127.0.0.1:0\nfunctions: []\n"))
	if want := (Finding{Subject: "configuration", OK: true, Text: "a node can run with it; functions: 0"}); !r.Healthy() || !slices.Contains(r, want) {
		t.Errorf("valid: %+v, want %+v", r, want)
	}
	r = Configuration(t.Context(), read("http: 127.0.0.1:0\nmodels: [nowhere, nothere]\nfunctions: []\n"))
	if len(r) != 2 || r.Healthy() || !strings.Contains(r[0].Text, "node.yaml:2:10: models[0]: ") || !strings.Contains(r[1].Text, "models[1]") {
		t.Errorf("invalid: %+v", r)
	}
	if want := "A node cannot run here until this is repaired: configuration."; r.verdict() != want {
		t.Errorf("verdict %q, want %q", r.verdict(), want)
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
	m.config.Lab.CopyGather = true
	r := run(context.Background(), m, labChecks)
	if len(r) != 1 || r[0].OK || r[0].Fatal || !strings.Contains(r[0].Text, `PENSTOCK_LAB={"copy_gather":true}`) || r[0].Fix != "unset PENSTOCK_LAB" {
		t.Errorf("found %+v", r)
	}
}
