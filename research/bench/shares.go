package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testbed"
)

// setShare orders a share and waits until the serving process has it.
func setShare(ctx context.Context, b *testbed.Harness, name string, percent float64, change configs.Change) error {
	before, _, f, err := servingProcess(b, name)
	if err != nil {
		return err
	}
	if testbed.Same(f.SharePercent, percent) {
		return nil
	}
	if err := b.Order(control.SharePath, control.ShareOrder{Name: name, SharePercent: percent}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("share %.1f of %s was not applied within a minute", percent, name))
	defer cancel()
	return b.WaitFor(limit, "a share", func() bool {
		p, in, f, err := servingProcess(b, name)
		if err != nil || p.PID == 0 || p.WarmingUp || !testbed.Same(f.SharePercent, percent) {
			return false
		}
		switch change {
		case configs.ChangePartition:
			return len(in.SMGroups) > 0 && slices.Equal(in.SMGroups, p.SMGroups)
		case configs.ChangeInPlace:
			return true
		}
		return p.Generation != before.Generation
	})
}

// shadowReady waits until a function has all its batch sizes and a sleeping shadow, which
// the next change needs.
func shadowReady(ctx context.Context, b *testbed.Harness, name string) error {
	limit, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s had no shadow within a minute", name))
	defer cancel()
	return b.WaitFor(limit, "a shadow", func() bool {
		p, in, _, err := servingProcess(b, name)
		return err == nil && !p.WarmingUp && slices.ContainsFunc(in.Processes, func(p control.ProcessStatus) bool {
			return p.Role == control.Shadow && p.State == control.Loaded
		})
	})
}
