package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// pageStep is a line of test/browser/page.mjs.
type pageStep struct {
	Step          string
	Width, Height int
	Boxes         []struct {
		Label string
		Box   []int
	}
	Text  string
	Moved float64
	Marks []struct{ Kind, Function, Text string }
	Lost  int
	Hash  string
	Rows  int
	From  []int

	Receivers   string
	Waterfalls  int
	File        string
	Scheme      string
	ScrollWidth int
	Violations  []struct{ ID, Impact string }
	Errors      []string
	Error       string
}

// A user opens the page in Chromium, with a camera that shows a bundled picture.
func TestPage(t *testing.T) {
	modules := os.Getenv("PENSTOCK_NODE_MODULES")
	if modules == "" {
		t.Skip("not on this machine: PENSTOCK_NODE_MODULES names no folder with playwright-core and axe-core (.ci/run installs them, and Chromium)")
	}
	nd, url := startWithGateway(t, "publish: [{name: hook, kind: webhook, address: 'http://127.0.0.1:1/'}]\n")
	photo := photoOf(t)
	response, err := http.Post(url+"/v2/models/face/infer", "image/jpeg", bytes.NewReader(photo))
	must.OK(t, err)
	response.Body.Close()
	dir := t.TempDir()
	file, video := filepath.Join(dir, "astronaut.jpg"), filepath.Join(dir, "astronaut.mjpeg")
	for _, path := range []string{file, video} {
		must.OK(t, os.WriteFile(path, photo, 0o600))
	}
	text, err := exec.Command(penstock, "infer", "--runtime-dir", nd.Dir, "-o", "json", "face", file).Output()
	must.OK(t, err)
	var direct found
	if err := json.Unmarshal(text, &direct); err != nil || len(direct.Found) != 1 {
		t.Fatalf("%s, %v", text, err)
	}

	screenshots := dir
	if kept := os.Getenv("PENSTOCK_SCREENSHOTS"); kept != "" {
		screenshots = kept
	}
	script, err := filepath.Abs("../browser/page.mjs")
	must.OK(t, err)
	command := exec.CommandContext(longContext(t), "node", script, modules, url, "face", screenshots, video)
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	must.OK(t, err)
	out, err := command.StdoutPipe()
	must.OK(t, err)
	must.OK(t, command.Start())
	var steps []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var s pageStep
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		steps = append(steps, s.Step)
		t.Logf("%.300s", lines.Bytes())
		checkPage(t, &s, direct.Found[0].Box)
		switch s.Step {
		case "kill":
			active, _ := nodetest.Serving(t, nd, "face")
			nodetest.Kill(t, active.PID)
			fmt.Fprintln(in, "killed")
		case "gateway":
			nodetest.Kill(t, nodetest.Child(t, nd, "gateway"))
			fmt.Fprintln(in, "killed")
		}
	}
	in.Close()
	if err := command.Wait(); err != nil {
		t.Errorf("page.mjs: %v", err)
	}
	if want := []string{"camera", "charts", "kill", "mark", "zoom", "slow", "gateway", "back", "access", "access", "access", "end"}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
}

// checkPage checks what the page shows in a step. want is the face's box in the photo.
func checkPage(t *testing.T, s *pageStep, want []int) {
	t.Helper()
	switch s.Step {
	case "camera":
		// The browser cuts the photo, which is square, to another shape.
		const photoSide = 512
		scale := float64(max(s.Width, s.Height)) / photoSide
		x, y := (float64(s.Width)-scale*photoSide)/2, (float64(s.Height)-scale*photoSide)/2
		box := image.Rect(int(x+scale*float64(want[0])), int(y+scale*float64(want[1])), int(x+scale*float64(want[2])), int(y+scale*float64(want[3])))
		got := image.Rect(s.Boxes[0].Box[0], s.Boxes[0].Box[1], s.Boxes[0].Box[2], s.Boxes[0].Box[3])
		if len(s.Boxes) != 1 || s.Boxes[0].Label != "face" || overlap(got, box) < 0.9 {
			t.Errorf("boxes %+v in %d × %d, want a face near %v (overlap %.2f)", s.Boxes, s.Width, s.Height, box, overlap(got, box))
		}
		if !strings.HasPrefix(s.Text, "face: ok, ") {
			t.Errorf("text %q", s.Text)
		}
	case "charts":
		if s.Moved <= 0 {
			t.Errorf("charts moved by %v s", s.Moved)
		}
	case "mark":
		i := slices.IndexFunc(s.Marks, func(m struct{ Kind, Function, Text string }) bool { return m.Kind == "failure" })
		if i < 0 || s.Marks[i].Function != "face" || !strings.Contains(s.Marks[i].Text, "killed by signal 9") || s.Lost != 0 {
			t.Errorf("marks %+v, %d lost", s.Marks, s.Lost)
		}
	case "zoom":
		if len(s.From) != s.Rows || s.Rows == 0 || !strings.Contains(s.Hash, "from=") {
			t.Errorf("%d rows from %v, address %q", s.Rows, s.From, s.Hash)
		}
	case "slow":
		if !strings.Contains(s.Receivers, "hook waiting: 0 sent, 0 dropped, 0 refused") || !strings.Contains(s.Receivers, "connection refused") {
			t.Errorf("receivers %q", s.Receivers)
		}
		if s.Waterfalls == 0 || s.File != "penstock-face.json" {
			t.Errorf("%d waterfalls, file %q: %s", s.Waterfalls, s.File, s.Text)
		}
	case "access":
		if len(s.Violations) > 0 || s.ScrollWidth > s.Width {
			t.Errorf("%d wide, %s: content is %d wide, violations %+v", s.Width, s.Scheme, s.ScrollWidth, s.Violations)
		}
	case "end":
		if len(s.Errors) > 0 {
			t.Errorf("the page logged errors: %q", s.Errors)
		}
	case "failed":
		t.Errorf("%s; the page logged %q", s.Error, s.Errors)
	}
}

// overlap is the intersection of two boxes over their union.
func overlap(a, b image.Rectangle) float64 {
	area := func(r image.Rectangle) float64 { return float64(r.Dx() * r.Dy()) }
	both := area(a.Intersect(b))
	return both / (area(a) + area(b) - both)
}
