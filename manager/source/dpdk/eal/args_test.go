//go:build dpdk

package eal

import (
	"strings"
	"testing"
)

func TestMemoryLiesWhereTheNICIs(t *testing.T) {
	for socket, want := range map[int]string{-1: "-m 512", 0: "--socket-mem 512", 2: "--socket-mem 0,0,512"} {
		args := strings.Join(Options{MemoryMiB: 512, Socket: socket}.Args(), " ")
		if !strings.Contains(args, "--in-memory --single-file-segments "+want) {
			t.Errorf("on node %d DPDK is started with %q, want %q in it", socket, args, want)
		}
	}
}
