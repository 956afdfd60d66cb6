package e2e

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/models"
	pictures "github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/wire"
)

// pythonAnswer is what testdata/client.py prints of an answer.
type pythonAnswer struct {
	Kind, Payload string
	Classes       []uint16
	Scores        []float64
	Corners       [][4]float64
}

// The Python client gets the same answers as the Go client for the bundled pictures.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	python := pythonWith(t, "numpy", "install Debian's python3-numpy")
	nd := start(t, "functions:\n  - {name: face, port: 0, slo: 20s, max_picture: 1920x1080}\n  - {name: detect, port: 0, slo: 20s}\n  - {name: fashion, port: 0, slo: 20s}\n")
	for _, name := range zoo.Names() {
		t.Run(name, func(t *testing.T) {
			card, err := zoo.Registry{Cache: t.TempDir()}.Find(name)
			must.OK(t, err)
			in := &card.Input
			sent, files := bundledPictures(t, in)
			arguments := append([]string{"testdata/client.py", nodetest.Address(t, nd, name), strconv.Itoa(in.Height), strconv.Itoa(in.Width), strconv.Itoa(in.Channels)}, files...)
			out := runClient(t, python, arguments...)

			if name == "face" {
				runPage(t, python, nodetest.Address(t, nd, name))
			}
			c := nodetest.Dial(t, nd, name, client.Options{Timeout: patience})
			lines := json.NewDecoder(bytes.NewReader(out))
			for i, p := range sent {
				want, err := c.Do(t.Context(), p, client.RequestOptions{Deadline: patience})
				must.OK(t, err)
				var got pythonAnswer
				if err := lines.Decode(&got); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if got.Payload != hex.EncodeToString(want.Payload) {
					t.Errorf("%s: payload %s, want %x", files[i], got.Payload, want.Payload)
				}
				checkDecoded(t, got, want)
			}
		})
	}
}

// runClient runs a program that uses the Python client.
func runClient(t *testing.T, python string, arguments ...string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), python, arguments...)
	command.Env = append(os.Environ(), "PYTHONPATH="+absolute(t, "../../python"), "PYTHONDONTWRITEBYTECODE=1")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return out
}

// runPage runs the programs of docs/python.md with another address.
func runPage(t *testing.T, python, to string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/python.md")
	must.OK(t, err)
	listings := regexp.MustCompile("(?ms)^```python\n(.*?)^```").FindAllSubmatch(page, -1)
	if len(listings) != 5 {
		t.Fatalf("docs/python.md has %d programs, want 5", len(listings))
	}
	var program string
	address := regexp.MustCompile(`"127\.0\.0\.1:5001(.*?)"`)
	for _, l := range listings {
		program += address.ReplaceAllString(string(l[1]), fmt.Sprintf(`"%s$1", timeout=%g`, to, patience.Seconds()))
	}
	program += "detect([np.zeros((128, 128, 3), np.uint8)] * 3)\n"
	if out := runClient(t, python, "-c", program); !bytes.HasPrefix(out, []byte("[] [] ")) {
		t.Errorf("the programs of docs/python.md printed %s", out)
	}
}

// pythonWith returns a python3 that has the module. It skips the test if there is none.
func pythonWith(t *testing.T, module, hint string) string {
	t.Helper()
	for _, name := range []string{os.Getenv("PENSTOCK_PYTHON"), "python3", "/usr/bin/python3"} {
		if path, err := exec.LookPath(name); err == nil && exec.Command(path, "-c", "import "+module).Run() == nil {
			return path
		}
	}
	t.Skipf("no python3 has %s: %s", module, hint)
	return ""
}

// bundledPictures returns the photos that ship with Penstock, resized, and files with their
// bytes.
func bundledPictures(t *testing.T, in *models.Input) (sent [][]byte, files []string) {
	t.Helper()
	names, err := fs.Glob(zoo.PictureFS(), "*.jpg")
	if err != nil || len(names) == 0 {
		t.Fatalf("found %d bundled pictures, %v", len(names), err)
	}
	dir := t.TempDir()
	for _, name := range names {
		content, err := fs.ReadFile(zoo.PictureFS(), name)
		must.OK(t, err)
		photo, err := pictures.Decode(t.Context(), content)
		must.OK(t, err)
		pixels, _ := pictures.Resize(photo, in)
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file, pixels, 0o600))
		sent, files = append(sent, pixels), append(files, file)
	}
	return sent, files
}

// checkDecoded compares what both clients read of the same payload.
func checkDecoded(t *testing.T, got pythonAnswer, answer client.Result) {
	t.Helper()
	want := pythonAnswer{Payload: got.Payload}
	switch answer.Kind {
	case wire.KindBoxes:
		want.Kind = "boxes"
		boxes, err := wire.DecodeBoxes(nil, answer.Payload)
		must.OK(t, err)
		for _, b := range boxes {
			want.Classes = append(want.Classes, b.Class)
			want.Scores = append(want.Scores, float64(b.Score))
			want.Corners = append(want.Corners, [4]float64{float64(b.X0), float64(b.Y0), float64(b.X1), float64(b.Y1)})
		}
	case wire.KindTopK:
		want.Kind = "classes"
		classes, err := wire.DecodeTopK(nil, answer.Payload)
		must.OK(t, err)
		for _, c := range classes {
			want.Classes = append(want.Classes, c.Class)
			want.Scores = append(want.Scores, float64(c.P))
		}
	}
	if got.Kind != want.Kind || !slices.Equal(got.Classes, want.Classes) || !slices.Equal(got.Scores, want.Scores) || !slices.Equal(got.Corners, want.Corners) {
		t.Errorf("the Python client read\n%+v, want\n%+v", got, want)
	}
}
