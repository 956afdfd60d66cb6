package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/topology"
)

func TestClaimCPUs(t *testing.T) {
	dir := t.TempDir()
	all := []int{0, 1, 2, 3, 4, 5}
	for _, cpu := range all {
		folder := filepath.Join(dir, fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology", cpu))
		if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "core_id"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	on := func(lcores ...int) configs.Config {
		var c configs.Config
		c.Source.DPDK = &configs.DPDK{LCores: lcores}
		return c
	}
	for _, c := range []struct {
		name    string
		others  []int // claimed by another node
		config  configs.Config
		allowed []int
		want    []int // to run on
		claimed []int
		log     string
	}{
		{"no DPDK", []int{1}, configs.Config{}, all, []int{0, 2, 3, 4, 5}, []int{0, 2, 3, 4, 5}, ""},
		{"cores that poll", nil, on(4, 5), all, []int{0, 1, 2, 3}, all, ""},
		{"isolated cores that poll", nil, on(4, 5), all[:4], []int{0, 1, 2, 3}, all, ""},
		{"cores that another node has", []int{3, 4}, on(4, 5), all, []int{0, 1, 2}, []int{0, 1, 2, 5}, "other nodes have claimed CPUs of source.dpdk.lcores"},
		{"nothing else", nil, on(4, 5), all[4:], []int{4, 5}, []int{4, 5}, ""},
		{"all taken", []int{0, 1, 2, 3}, on(5), all, []int{0, 1, 2, 3, 4}, []int{5}, "this node shares them"},
	} {
		var log bytes.Buffer
		others := topology.Take(dir, c.others)
		cpus, unclaim := claimCPUs(dir, c.allowed, c.config, orchestrator.Near{}, zerolog.New(&log))
		others.Release()
		claimed := topology.Take(dir, all)
		if !slices.Equal(cpus, c.want) || !slices.Equal(claimed.Busy, c.claimed) || (c.log == "") != (log.Len() == 0) || !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: runs on %v, want %v; has claimed %v, want %v; log %s", c.name, cpus, c.want, claimed.Busy, c.claimed, &log)
		}
		claimed.Release()
		unclaim()
		if left := topology.Take(dir, all); len(left.Busy) > 0 {
			t.Errorf("%s: CPUs %v are still claimed", c.name, left.Busy)
		} else {
			left.Release()
		}
	}
}
