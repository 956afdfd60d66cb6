package check

import (
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/cgroup"
	"github.com/penstock/penstock/orchestrator/sandbox"
	"github.com/penstock/penstock/shm"
)

// Sandbox is the sandbox that a configuration asks for, nil if it is off.
func Sandbox(c configs.Config) (*orchestrator.Sandbox, error) {
	if c.Sandbox.Off {
		return nil, nil
	}
	u, err := sandbox.FindUser(c.Sandbox.User)
	if err != nil {
		return nil, fmt.Errorf("find user of the sandbox: %w", err)
	}
	limits := cgroup.Limits{MemoryBytes: int64(c.Sandbox.Memory), Tasks: int64(c.Sandbox.Processes)}
	if limits.MemoryBytes == 0 {
		limits.MemoryBytes = shm.TotalMemory() / 2
	}
	return &orchestrator.Sandbox{User: u, Readable: c.Sandbox.Readable, Limits: limits}, nil
}
