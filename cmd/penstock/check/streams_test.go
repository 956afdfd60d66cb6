package check

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestStreams(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	writes(t, file, "streams:\n"+
		"  - {name: a, source: none.mp4, to: [face]}\n"+
		"  - {name: b, source: 'gopher://me:secret@host/', to: [face]}\n"+
		"  - {name: c, source: 'rtsp://me:secret@host/', to: [face]}\n"+
		"http: 127.0.0.1:0\n")
	c, err := configs.Read(file)
	must.OK(t, err)
	c.RuntimeDir = filepath.Join(filepath.Dir(file), "run")
	_, err = inspect(context.Background(), c)
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Count(err.Error(), "streams[") != 2 ||
		!strings.Contains(err.Error(), ":2:23: streams[0].source: find source: stat ") || !strings.Contains(err.Error(), `:3:23: streams[1].source: source begins with "gopher://"`) {
		t.Error(err)
	}

	writes(t, file, "streams: [{name: c, source: 'rtsp://me:secret@host/', to: [face]}]\nhttp: 127.0.0.1:0\n")
	if c, err = configs.Read(file); err != nil {
		t.Fatal(err)
	}
	c.RuntimeDir = filepath.Join(filepath.Dir(file), "run")
	notes, err := inspect(context.Background(), c)
	if err != nil || !strings.Contains(strings.Join(notes, "\n"), "stream c sends to face, which is not among functions") {
		t.Errorf("%q, %v", notes, err)
	}
}
