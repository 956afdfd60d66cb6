package grafana

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/penstock/penstock/internal/testing/keydoc"
	"github.com/penstock/penstock/internal/testing/must"
)

const (
	alertsFile     = "alerts.yaml"
	alertTestsFile = "alerts_test.yaml"
	dashboardFile  = "dashboard.json"
	metricsPage    = "../../docs/metrics.md"
	monitoringPage = "../../docs/monitoring.md"
)

// ruleFile is a file with rules of Prometheus.
type ruleFile struct {
	Groups []ruleGroup `yaml:"groups"`
}

type ruleGroup struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

type rule struct {
	Alert       string            `yaml:"alert,omitempty"`
	Record      string            `yaml:"record,omitempty"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must.OK(t, err)
	return text
}

// alerts returns the rules of alerts.yaml.
func alerts(t *testing.T) []rule {
	t.Helper()
	var file ruleFile
	must.OK(t, yaml.UnmarshalWithOptions(read(t, alertsFile), &file, yaml.DisallowUnknownField()))
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) == 0 {
		t.Fatalf("%s has groups %+v, want one with rules", alertsFile, file.Groups)
	}
	return file.Groups[0].Rules
}

// panel is what the tests read of a panel of the dashboard.
type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	Targets []struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	} `json:"targets"`
	GridPos struct {
		H, W, X, Y int
	} `json:"gridPos"`
}

type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Expr string `json:"expr"`
		} `json:"list"`
	} `json:"annotations"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	must.OK(t, json.Unmarshal(read(t, dashboardFile), &d))
	return d
}

// grafanaVariable matches a variable in an expression.
var grafanaVariable = regexp.MustCompile(`\$\w+|\$\{\w+\}`)

// expressions returns the expressions of the dashboard as Prometheus gets them.
func (d *dashboard) expressions() (list []string) {
	for _, a := range d.Annotations.List {
		list = append(list, a.Expr)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")
			list = append(list, grafanaVariable.ReplaceAllString(expr, ".*"))
		}
	}
	return list
}

func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	variables := []string{"$__rate_interval"}
	for _, v := range d.Templating.List {
		variables = append(variables, "$"+v.Name)
	}
	var ids []int
	for i, p := range d.Panels {
		if slices.Contains(ids, p.ID) {
			t.Errorf("panel %q has the id %d of another one", p.Title, p.ID)
		}
		ids = append(ids, p.ID)
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %q has no expression", p.Title)
		}
		var refs []string
		for _, target := range p.Targets {
			if slices.Contains(refs, target.RefID) {
				t.Errorf("panel %q has two targets %s", p.Title, target.RefID)
			}
			refs = append(refs, target.RefID)
			for _, name := range grafanaVariable.FindAllString(target.Expr, -1) {
				if !slices.Contains(variables, name) {
					t.Errorf("panel %q uses %s, which the dashboard does not define", p.Title, name)
				}
			}
		}
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("panel %q lies outside of the grid: %+v", p.Title, g)
		}
		for _, other := range d.Panels[:i] {
			o := other.GridPos
			if g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("panels %q and %q overlap", p.Title, other.Title)
			}
		}
	}
}

// metric is a row of docs/metrics.md.
type metric struct {
	kind   string
	labels []string
}

var metricRow = regexp.MustCompile("(?m)^\\| `(penstock_\\w+)` \\| (\\w+) \\| ([^|]*) \\|")

// pageMetrics reads the metrics of docs/metrics.md, which a test of package manager holds to the code.
// The others are Prometheus's own and those of its Go client.
func pageMetrics(t *testing.T) map[string]metric {
	t.Helper()
	known := map[string]metric{
		"up": {}, "ALERTS": {}, "process_start_time_seconds": {}, "process_cpu_seconds_total": {}, "process_resident_memory_bytes": {},
	}
	for _, row := range metricRow.FindAllStringSubmatch(string(read(t, metricsPage)), -1) {
		var labels []string
		for _, label := range strings.Split(row[3], ",") {
			labels = append(labels, strings.Trim(label, " `"))
		}
		known[row[1]] = metric{row[2], labels}
	}
	if len(known) < 20 {
		t.Fatalf("%s lists %d metrics; the test looks in the wrong place", metricsPage, len(known))
	}
	return known
}

var (
	metricName = regexp.MustCompile(`\b(penstock_\w+|process_\w+|up|ALERTS)\b(\{[^}]*\})?`)
	labelName  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	histogram  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// targetLabels are labels that Prometheus adds, or that belong to histograms and alerts.
var targetLabels = []string{"job", "instance", "exported_instance", "le", "alertname", "alertstate"}

// TestMetricNames checks that each metric and label of dashboard and alerts exists.
func TestMetricNames(t *testing.T) {
	known := pageMetrics(t)
	d := readDashboard(t)
	texts := map[string][]string{dashboardFile: d.expressions(), alertTestsFile: {string(read(t, alertTestsFile))}}
	for _, v := range d.Templating.List {
		if v.Definition != "" { // else it is a list of data sources
			texts[dashboardFile] = append(texts[dashboardFile], v.Definition)
		}
	}
	for _, r := range alerts(t) {
		texts[alertsFile] = append(texts[alertsFile], r.Expr)
	}
	for file, list := range texts {
		for _, text := range list {
			found := metricName.FindAllStringSubmatch(text, -1)
			if len(found) == 0 {
				t.Errorf("%s: %s names no metric", file, text)
			}
			for _, use := range found {
				name := use[1]
				m, ok := known[name]
				if base := histogram.ReplaceAllString(name, ""); !ok && known[base].kind == "histogram" {
					m, ok = known[base], true
				}
				if !ok {
					t.Errorf("%s uses %s, which %s does not list", file, name, metricsPage)
					continue
				}
				for _, label := range labelName.FindAllStringSubmatch(use[2], -1) {
					if !slices.Contains(m.labels, label[1]) && !slices.Contains(targetLabels, label[1]) {
						t.Errorf("%s uses the label %s of %s, which has %v", file, label[1], name, m.labels)
					}
				}
			}
		}
	}
}

// promtool runs Prometheus's checker in this folder.
func promtool(t *testing.T, arguments ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("not on this machine: promtool is missing (apt-get install prometheus; .ci/run installs it)")
	}
	if out, err := exec.CommandContext(t.Context(), path, arguments...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
}

func TestPromtool(t *testing.T) {
	t.Run("alerts", func(t *testing.T) { promtool(t, "check", "rules", alertsFile) })
	t.Run("alert tests", func(t *testing.T) { promtool(t, "test", "rules", alertTestsFile) })
	t.Run("dashboard", func(t *testing.T) {
		d := readDashboard(t)
		var group ruleGroup
		group.Name = "dashboard"
		for i, expr := range d.expressions() {
			group.Rules = append(group.Rules, rule{Record: fmt.Sprintf("dashboard:expression:%d", i), Expr: expr})
		}
		text, err := yaml.Marshal(ruleFile{Groups: []ruleGroup{group}})
		must.OK(t, err)
		file := filepath.Join(t.TempDir(), "dashboard.yaml")
		must.OK(t, os.WriteFile(file, text, 0o600))
		promtool(t, "check", "rules", file)
	})
}

// TestAlertsTested checks that a test fires each alert.
func TestAlertsTested(t *testing.T) {
	tests := string(read(t, alertTestsFile))
	var names []string
	for _, r := range alerts(t) {
		if slices.Contains(names, r.Alert) {
			t.Errorf("%s has two alerts %s", alertsFile, r.Alert)
		}
		names = append(names, r.Alert)
		if !strings.Contains(tests, `alertname="`+r.Alert+`"`) {
			t.Errorf("%s does not fire %s", alertTestsFile, r.Alert)
		}
		for _, key := range []string{"summary", "meaning", "see"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no annotation %s", r.Alert, key)
			}
		}
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has severity %q", r.Alert, s)
		}
	}
}

// TestAlertsPage holds the table of docs/monitoring.md to the rules. The links of pages are checked by
// test/pages.
func TestAlertsPage(t *testing.T) {
	var table strings.Builder
	table.WriteString("| alert | severity | meaning | see |\n|---|---|---|---|\n")
	for _, r := range alerts(t) {
		see := r.Annotations["see"]
		page, _, _ := strings.Cut(see, ".md")
		fmt.Fprintf(&table, "| `%s` | %s | %s | [%s](%s) |\n", r.Alert, r.Labels["severity"], r.Annotations["meaning"], page, see)
	}
	keydoc.Golden(t, monitoringPage, keydoc.Section(t, monitoringPage, "alerts", table.String()))
}
