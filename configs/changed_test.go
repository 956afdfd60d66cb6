package configs

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestChangedKeys(t *testing.T) {
	for want, edit := range map[string]func(c *Config){
		"":                                nil,
		"shares.interval drain_timeout":   func(c *Config) { c.Shares.Interval, c.DrainTimeout = time.Minute, time.Minute },
		"reserved_cpus weights":           func(c *Config) { c.ReservedCPUs, c.Weights = 3, WeightsPrivate },
		"source.dpdk.lcores":              func(c *Config) { c.Source.DPDK = &DPDK{LCores: []int{1}} },
		"slab.huge_pages aggregate.slots": func(c *Config) { c.Slab.HugePages, c.Aggregate.Slots = false, 128 },
	} {
		a, b := Default(), Default()
		a.Source.DPDK, b.Source.DPDK = &DPDK{}, &DPDK{}
		b.Text, b.Digest, b.File, b.Lab = []byte("x"), "x", "x", Lab{CopyGather: true} // no keys
		if edit != nil {
			edit(&b)
		}
		if got := strings.Join(ChangedKeys(a, b), " "); got != want {
			t.Errorf("changed keys %q, want %q", got, want)
		}
	}
	dpdk := Default()
	dpdk.Source.DPDK = &DPDK{}
	if got := ChangedKeys(Default(), dpdk); !slices.Equal(got, []string{"source.dpdk"}) {
		t.Errorf("changed keys %v, want source.dpdk", got)
	}
}

func TestLive(t *testing.T) {
	for key, want := range map[string]bool{"slo": true, "port": false, "instances": false, "slo.x": false, "nothing": false} {
		if got := Live(key); got != want {
			t.Errorf("Live(%s) is %t", key, got)
		}
	}
}
