//go:build dpdk

package eal

import (
	"strings"
	"testing"
)

// Idle pollers keep mbufs that other pollers cannot get. All of them together keep less than
// the sixteenth below which a group considers mbufs few.
func TestIdlePollersKeepFewMbufs(t *testing.T) {
	for _, mbufs := range []int{256, 1024, 40_000, 1 << 20} {
		for _, lcores := range []int{2, 4, 64} {
			if kept := lcores * cacheOf(mbufs, lcores) * 3 / 2; kept >= mbufs/16 {
				t.Errorf("%d pollers keep %d of %d mbufs", lcores, kept, mbufs)
			}
		}
	}
	if got := cacheOf(4096, 1); got != cacheMbufs {
		t.Errorf("a single poller keeps %d", got)
	}
}

func TestMemoryLiesWhereTheNICIs(t *testing.T) {
	for socket, want := range map[int]string{-1: "-m 512", 0: "--socket-mem 512", 2: "--socket-mem 0,0,512"} {
		args := strings.Join(Options{MemoryMiB: 512, Socket: socket}.Args(), " ")
		if !strings.Contains(args, "--in-memory --single-file-segments "+want) {
			t.Errorf("on node %d DPDK is started with %q, want %q in it", socket, args, want)
		}
	}
}
