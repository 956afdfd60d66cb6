package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
)

// TestKeys runs a function with a key: without it there is no answer, on this machine too. The key changes without an outage.
func TestKeys(t *testing.T) {
	const old, next = "the old key of the function", "the new key of the function"
	file, own := filepath.Join(t.TempDir(), "keys"), filepath.Join(t.TempDir(), "own")
	write := func(path string, keys ...string) {
		must.OK(t, os.WriteFile(path, []byte(strings.Join(keys, "\n")), 0o600))
	}
	write(file, old)
	write(own, old)
	nd, url := startWithGateway(t, fmt.Sprintf("  - {name: locked, model: fashion, port: 0, slo: 5s, key: %s}\n", file))
	wait.For(t, "the gateway to know the function", func() bool { return gatewayReady(url, "locked") })

	ask := func(keyFile string) error {
		t.Helper()
		c := nodetest.Dial(t, nd, "locked", client.Options{KeyFile: keyFile, Timeout: 10 * time.Second})
		_, err := c.Do(t.Context(), make([]byte, 28*28), client.RequestOptions{})
		return err
	}
	if err := ask(""); !errors.Is(err, client.ErrKey) {
		t.Errorf("without a key: %v", err)
	}
	must.OK(t, ask(own))
	var picture bytes.Buffer
	must.OK(t, png.Encode(&picture, image.NewGray(image.Rect(0, 0, 28, 28))))
	response, err := http.Post(url+"/v2/models/locked/infer", "image/png", &picture)
	must.OK(t, err)
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("HTTP: %s", response.Status)
	}
	if out, err := run(t, nd.Dir, "load", "--rate", "locked=50", "--duration", "500ms", "--warmup", "0s"); err != nil {
		t.Errorf("load: %v\n%s", err, out)
	}

	// A client that runs on meanwhile: the next key is added first, then the old one is taken out.
	c := nodetest.Dial(t, nd, "locked", client.Options{KeyFile: own, Timeout: 10 * time.Second})
	do := func() {
		t.Helper()
		if _, err := c.Do(t.Context(), make([]byte, 28*28), client.RequestOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	do()
	write(file, old, next)
	another := filepath.Join(t.TempDir(), "another")
	write(another, next)
	wait.For(t, "the node to read its keys", func() bool { do(); return ask(another) == nil })
	write(own, next)
	write(file, next)
	write(another, old)
	wait.For(t, "the node to read its keys", func() bool { do(); return errors.Is(ask(another), client.ErrKey) })
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	do()

	for _, reason := range []string{"token", "proof"} {
		if n := nodetest.Metric(t, nd, fmt.Sprintf(`penstock_source_drops_total{function="locked",reason=%q}`, reason)); n < 1 {
			t.Errorf("%v datagrams are counted as %s", n, reason)
		}
	}
}
