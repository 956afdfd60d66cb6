package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestOOMKillsClaim(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.events")
	kills := func(n string) {
		must.OK(t, os.WriteFile(file, []byte("oom 9\noom_kill "+n+"\noom_group_kill 7\n"), 0o600))
	}
	var o OOMKills
	started := func() Counters {
		g := Counters{Path: "/node", File: file}
		var err error
		if g.Kills, err = g.count(); err != nil {
			t.Fatal(err)
		}
		return g
	}
	kills("5")
	a, b, c := started(), started(), started()
	kills("7") // two of the three
	claims := 0
	for _, g := range []Counters{a, b, c} {
		if o.Claim(g) != "" {
			claims++
		}
	}
	if claims != 2 {
		t.Errorf("%d of 2 OOM kills are claimed", claims)
	}
	kills("9") // two kills of other processes
	d := started()
	if where := o.Claim(d); where != "" {
		t.Errorf("a kill from before its start is claimed: %s", where)
	}
	kills("10")
	if where := o.Claim(d); where != "memory cgroup /node" {
		t.Errorf("claimed in %q", where)
	}
}

func TestMountShows(t *testing.T) {
	for _, c := range []struct {
		root, group string
		want        bool
	}{
		{"/", "/a/b", true},
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/a", "/ab", false},
		{"/a", "/", false},
		{"/", "", false}, // a version that the kernel has not mounted
	} {
		if got := (mount{root: c.root}).shows(c.group); got != c.want {
			t.Errorf("a mount of %s shows %q: %v", c.root, c.group, got)
		}
	}
}
