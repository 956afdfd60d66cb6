package page

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"
)

// Report compares finished runs. It is plain data.
type Report struct {
	Title string `json:"title"`
	// Version is that of the penstock that writes the report.
	Version string `json:"version"`
	Runs    []Run  `json:"runs"`
}

// Run is what was measured of some functions at the same time.
type Run struct {
	Name string `json:"name"`
	// Note says what a reader must know of the run, such as that it was interrupted.
	Note string `json:"note,omitempty"`
	// Functions is the list of functions in a report of `penstock load -o json`
	// (loadgen.FunctionReport). report.js reads it.
	Functions json.RawMessage `json:"functions"`
}

// reportModules are the modules of a report, and styles its style sheets.
var (
	reportModules = []string{"report.js", "data.js", "palette.js", "vendor/uplot/uPlot.esm.js"}
	reportStyles  = []string{"vendor/uplot/uPlot.min.css", "style.css"}
)

// reportPolicy lets a report load nothing. Its own modules are data in its import map.
const reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:; img-src data:; base-uri 'none'; form-action 'none'"

// modulePrefix replaces "./" in the imports of a report's modules, because they have no folder.
const modulePrefix = "penstock/"

// Write writes the report as an HTML file.
func (r *Report) Write(w io.Writer) error {
	runs, err := json.Marshal(r) // it escapes <, so that no text ends the script
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	imports := map[string]string{}
	for _, name := range reportModules {
		text := strings.ReplaceAll(file(name), ` from "./`, ` from "`+modulePrefix)
		imports[modulePrefix+name] = "data:text/javascript;base64," + base64.StdEncoding.EncodeToString([]byte(text))
	}
	modules, err := json.Marshal(map[string]any{"imports": imports})
	if err != nil {
		return fmt.Errorf("encode modules: %w", err)
	}

	var b bytes.Buffer
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n")
	fmt.Fprintf(&b, "<!-- Charts by uPlot:\n%s-->\n", file("vendor/uplot/LICENSE"))
	fmt.Fprintf(&b, "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">\n", reportPolicy)
	fmt.Fprintf(&b, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>%s</title>\n", html.EscapeString(r.Title))
	for _, name := range reportStyles {
		fmt.Fprintf(&b, "<style>\n%s</style>\n", file(name))
	}
	fmt.Fprintf(&b, "<script type=\"importmap\">%s</script>\n</head>\n<body>\n", modules)
	fmt.Fprintf(&b, "<header><h1>%s</h1><p>penstock report %s</p></header>\n<main id=\"report\"></main>\n", html.EscapeString(r.Title), html.EscapeString(r.Version))
	fmt.Fprintf(&b, "<script type=\"application/json\" id=\"runs\">%s</script>\n", runs)
	fmt.Fprintf(&b, "<script type=\"module\">import \"%sreport.js\";</script>\n</body>\n</html>\n", modulePrefix)
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// file returns a file of the page.
func file(name string) string {
	text, err := Files.ReadFile(name)
	if err != nil {
		panic(err) // the names are above
	}
	return string(text)
}
