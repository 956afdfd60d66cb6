package e2e

import (
	"bufio"
	"encoding/json"
	"image/jpeg"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/models"
	pictures "github.com/penstock/penstock/models/picture"
)

// wallEvent is what an event says of the wall.
type wallEvent struct {
	Wall []struct {
		Function, Client string
		Number           int
		Found            []struct {
			Label          string
			X0, Y0, X1, Y1 int
		}
	}
}

// faceInput is that of function face.
var faceInput = &models.Input{Height: 128, Width: 128, Channels: 3, WireType: models.U8, WireLayout: models.HWC}

// With `pictures:` an open page gets pictures of UDP clients with their answers, until an edit of
// the configuration ends that.
func TestPictures(t *testing.T) {
	nd, url := startWithGateway(t)
	photo, err := pictures.Decode(t.Context(), photoOf(t))
	must.OK(t, err)
	pixels, _ := pictures.Resize(photo, faceInput)

	// A client sends the photo, one request after the other, while a page is open.
	c := nodetest.Dial(t, nd, "face", client.Options{Timeout: patience})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = c.Do(t.Context(), pixels, client.RequestOptions{}) // a busy machine may be late
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	response, err := http.Get(url + "/api/events")
	must.OK(t, err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	next := func() (e wallEvent) {
		t.Helper()
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				must.OK(t, json.Unmarshal([]byte(text), &e))
				return e
			}
		}
		t.Fatal("the events ended")
		return e
	}
	if e := next(); len(e.Wall) != 0 {
		t.Fatalf("without the key the wall has %+v", e.Wall)
	}

	edit := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(nd.Config)
		must.OK(t, err)
		must.OK(t, os.WriteFile(nd.Config, []byte(strings.Replace(string(text), from, to, 1)), 0o600))
	}
	edit("{name: face,", "{name: face, pictures: 10/s,")
	var e wallEvent
	wait.For(t, "a picture of the client", func() bool { e = next(); return len(e.Wall) == 1 && e.Wall[0].Number > 2 })
	shown := e.Wall[0]
	if shown.Function != "face" || shown.Client != c.LocalAddr().String() || len(shown.Found) != 1 || shown.Found[0].Label != "face" {
		t.Errorf("the wall has %+v, want a face of %v", shown, c.LocalAddr())
	}
	file, err := http.Get(url + "/api/wall/face")
	must.OK(t, err)
	defer file.Body.Close()
	copied, err := jpeg.Decode(file.Body)
	must.OK(t, err)
	if size := copied.Bounds().Size(); size.X != 128 || size.Y != 128 {
		t.Errorf("picture of %v, want 128 × 128", size)
	}

	edit(" pictures: 10/s,", "")
	wait.For(t, "the copies to end", func() bool {
		s, err := control.ReadSample(nodetest.Context(t), nd.Dir)
		return err == nil && len(s.Functions) == 2 && s.Functions[0].Picture == 0 && s.Functions[1].Picture == 0
	})
}
