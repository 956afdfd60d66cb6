package page

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestReport(t *testing.T) {
	const evil = `</script><script>alert(1)</script>`
	r := Report{Title: evil, Version: evil, Runs: []Run{{Name: evil, Functions: json.RawMessage(`[{"name": "` + evil + `"}]`)}}}
	var b bytes.Buffer
	must.OK(t, r.Write(&b))
	text := b.String()
	if strings.Contains(text, "alert(1)</script>") || strings.Count(text, `alert(1)\u003c/script`) != 4 {
		t.Error("a name ends the script")
	}
	runs := regexp.MustCompile(`(?s)id="runs">(.*?)</script>`).FindStringSubmatch(text)
	var back Report
	if runs == nil || json.Unmarshal([]byte(runs[1]), &back) != nil || back.Runs[0].Name != evil {
		t.Errorf("the runs do not come back: %q", runs)
	}

	// Each import of a module is in the map.
	var modules struct{ Imports map[string]string }
	found := regexp.MustCompile(`(?s)<script type="importmap">(.*?)</script>`).FindStringSubmatch(text)
	must.OK(t, json.Unmarshal([]byte(found[1]), &modules))
	for name, url := range modules.Imports {
		source, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(url, "data:text/javascript;base64,"))
		must.OK(t, err)
		for _, m := range regexp.MustCompile(`(?m)^import .* from "(.*)";`).FindAllStringSubmatch(string(source), -1) {
			if modules.Imports[m[1]] == "" {
				t.Errorf("%s imports %s, which the report lacks", name, m[1])
			}
		}
	}
	if len(modules.Imports) != len(reportModules) || modules.Imports[modulePrefix+"report.js"] == "" {
		t.Errorf("%d modules", len(modules.Imports))
	}
}
