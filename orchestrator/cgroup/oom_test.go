package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestLoggedOOMKill(t *testing.T) {
	const log = `6,1,1000000,-;Linux version 6.18
4,2,50000000,-;Memory cgroup out of memory: Killed process 4711 (penstock) total-vm:1kB, anon-rss:1kB
 SUBSYSTEM=memory
3,3,90000000,-;Out of memory: Killed process 4712 (python3) total-vm:1kB
3,4,90000001,-;oom_reaper: reaped process 4713 (python3), now anon-rss:0kB
`
	for name, c := range map[string]struct {
		pid   int
		since time.Duration
		want  bool
	}{
		"for its cgroup's limit":     {4711, 40 * time.Second, true},
		"for the machine's memory":   {4712, 40 * time.Second, true},
		"another with its id before": {4711, 60 * time.Second, false},
		"only reaped":                {4713, 0, false},
		"part of an id":              {471, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := loggedOOMKill(strings.NewReader(log), c.pid, c.since); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

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
		if o.Claim(g, 1, time.Now()) != "" {
			claims++
		}
	}
	if claims != 2 {
		t.Errorf("%d of 2 OOM kills are claimed", claims)
	}
	kills("9") // two kills of other processes
	d := started()
	if where := o.Claim(d, 1, time.Now()); where != "" {
		t.Errorf("a kill from before its start is claimed: %s", where)
	}
	kills("10")
	if where := o.Claim(d, 1, time.Now()); where != "memory cgroup /node" {
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
