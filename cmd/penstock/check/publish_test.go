package check

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestPublish(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "node.yaml")
	writes(t, file, "gateway: {keys: token}\npublish:\n"+
		"  - {name: a, kind: jsonl, file: none/answers.jsonl}\n"+
		"  - {name: b, kind: jsonl, file: .}\n"+
		"  - {name: c, kind: jsonl, file: answers.jsonl, functions: [face]}\n"+
		"  - {name: d, kind: jsonl, file: '-'}\n"+
		"  - {name: e, kind: webhook, address: 'http://127.0.0.1:1/', token_file: none}\n"+
		"  - {name: f, kind: webhook, address: 'http://127.0.0.1:1/', token_file: token}\n")
	writes(t, filepath.Join(dir, "token"), "secret-token\n")
	c, err := configs.Read(file)
	must.OK(t, err)
	c.RuntimeDir = filepath.Join(dir, "run")
	notes, err := inspect(context.Background(), c)
	if err == nil || strings.Count(err.Error(), "publish[") != 3 || !strings.Contains(err.Error(), ":3:34: publish[0].file: find folder of file: stat ") ||
		!strings.Contains(err.Error(), ":4:34: publish[1].file: ") || !strings.Contains(err.Error(), "is no regular file") ||
		!strings.Contains(err.Error(), "publish[4].token_file: read token: open "+filepath.Join(dir, "none")) || !strings.Contains(err.Error(), ":1:17: gateway.keys: "+filepath.Join(dir, "token")+" has no `keys:`") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	if !strings.Contains(strings.Join(notes, "\n"), "publish c takes answers of face, which is not among functions") {
		t.Errorf("%q", notes)
	}
}
