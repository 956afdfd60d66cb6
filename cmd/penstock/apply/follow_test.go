package apply

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/migfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/planner/follow"
)

const published = "../../../plan/testdata/parvagpu/prof_data"

// newFollower is a follower of a node on three A100s, whose services are these rows. mig is the key.
func newFollower(t *testing.T, mig string, rows string) (*follower, *migfake.Node, *bytes.Buffer) {
	t.Helper()
	n := migfake.NewNode(t, 3)
	dir := t.TempDir()
	for _, model := range []string{"resnet50", "vgg19"} {
		card := "name: " + model + "\nversion: 1\nframework: \"null\"\nslo: 10s\nbatches: [1]\ndecoder: {name: raw}\noutputs: [{name: y, shape: [1]}]\n" +
			"input: {size: [8, 8, 1], wire: {type: u8, layout: hwc}, tensor: {type: u8, layout: hwc}}\n"
		must.OK(t, os.WriteFile(filepath.Join(dir, model+".yaml"), []byte(card), 0o600))
	}
	services := filepath.Join(dir, "services.csv")
	must.OK(t, os.WriteFile(services, []byte("model,rate_rps,slo_ms\n"+rows), 0o600))
	n.File = filepath.Join(dir, "node.yaml")
	must.OK(t, os.WriteFile(n.File, []byte("mig: "+mig+"\ndevices: [cpu]\nmodels: ["+dir+"]\nfunctions: []\n"), 0o600))
	var log bytes.Buffer
	c := configs.Config{RuntimeDir: n.Serve(t), Plan: configs.Plan{Profiles: published, Services: services, Follow: 10 * time.Second}}
	return &follower{c: c, openMIG: n.Open, log: zerolog.New(&log), rates: follow.New(follow.Default)}, n, &log
}

func processes(n *migfake.Node, function string) (sum int) {
	for _, s := range n.Runs[function].Segments {
		sum += s.Processes
	}
	return sum
}

// TestFollow doubles a rate, and halves it again.
func TestFollow(t *testing.T) {
	f, n, log := newFollower(t, "manage", "resnet50,1000,100\nvgg19,50,300\n")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	step := func(rps uint64) {
		t.Helper()
		must.OK(t, f.step(context.Background(), now))
		now = now.Add(10 * time.Second)
		n.Offered["resnet50"] += 10 * rps
		n.Offered["vgg19"] += 10 * 40
	}
	step(900)
	first, other := processes(n, "resnet50"), n.Runs["vgg19"].Segments
	if first == 0 || len(other) != 1 {
		t.Fatalf("runs %v:\n%s", n.Runs, log)
	}
	for range 5 {
		step(900)
	}
	taken := len(n.Taken)
	step(2000)
	step(2000)
	if got := processes(n, "resnet50"); got <= first || len(n.Taken) == taken || n.Runs["vgg19"].Segments[0] != other[0] {
		t.Errorf("%d processes after %d, vgg19 in %v after %v:\n%s", got, first, n.Runs["vgg19"].Segments, other, log)
	}
	many := processes(n, "resnet50")
	for range 59 {
		step(900)
	}
	if got := processes(n, "resnet50"); got != many {
		t.Errorf("%d processes after less than ten minutes, want %d", got, many)
	}
	for range 4 {
		step(900)
	}
	if got := processes(n, "resnet50"); got >= many || n.Runs["vgg19"].Segments[0] != other[0] {
		t.Errorf("%d processes in the end, want less than %d:\n%s", got, many, log)
	}
	if !strings.Contains(log.String(), `"service":"resnet50","rate_rps":2300`) {
		t.Error(log)
	}
}

func TestFollowCannot(t *testing.T) {
	for _, c := range []struct{ name, mig, rows, want string }{
		{"no permission", "keep", "resnet50,1000,100\n", "add `mig: manage`"},
		{"too small", "manage", "resnet50,100000,100\n", "is too small: 0 of 1 services fit"},
		{"no model", "manage", "bert,10,6000\n", `service "bert": find card: unknown model "bert"`},
		{"a bad rate", "manage", "bert,NaN,6000\n", `rate_rps "NaN": want a number of requests per second above 0`},
	} {
		f, n, _ := newFollower(t, c.mig, c.rows)
		if err := f.step(context.Background(), time.Now()); err == nil || !strings.Contains(err.Error(), c.want) || len(n.Taken)+len(n.Runs) > 0 {
			t.Errorf("%s: %v, took %v", c.name, err, n.Taken)
		}
	}
}
